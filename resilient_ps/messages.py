"""What processes say to each other.

Clients and the coordinator send `Request`s; a request is one message per server with one `Part`
per shard addressed there. Servers send `Answer`s: one `PartAnswer` per part, in as many messages
as it takes (parts become ready at different times). The rest is greeting and inspection.

Values and keys of all parts stand one behind the other in one array each: a part says how many of
them are its own. A sender may give `values` in several pieces; a receiver gets one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilient_ps.ids import NOWHERE, READER, Position, WorkerId

Keys: TypeAlias = NDArray[np.uint64]
Values: TypeAlias = NDArray[Any]

NO_KEYS: Keys = np.empty(0, np.uint64)
PROTOCOL = 1


class Kind(IntEnum):
    """What a request asks of each of its shards."""

    OPEN_TABLE = 1  # make the table known: `table`, text = its specification as JSON
    DROP_TABLE = 2
    OPEN_JOB = 3  # make the job known: worker.job, text = its specification as JSON
    CLOSE_JOB = 4
    FENCE = 5  # takeover (i): worker.incarnation takes worker.rank; answers tick and cursor
    REDO = 6  # takeover (iii), BSP: forget what the rank pushed for `clock`
    PUSH = 7
    TUNE = 8  # set the learning rate of `table` to `rate`
    PULL = 9
    TICK = 10  # the worker has ended `clock`; text = cursor
    JOIN = 11  # `n` = number of the intent
    LEAVE = 12  # `n` = number of the intent


class Status(IntEnum):
    """What became of one part of a request."""

    OK = 0
    NOT_OWNER = 1  # not the primary of this shard (any more, or yet): read the routing again
    FENCED = 2  # a later incarnation of the rank exists; value = it
    GAP = 3  # an earlier push is missing; value = the last one held
    BUSY = 4  # a bound of memory is reached until other ranks tick; send again later
    DEADLINE = 5  # the pull waited as long as it may; text = for whom
    UNKNOWN = 6  # no such table, job or rank here; text = what
    REFUSED = 7  # the request is wrong; text = why
    NOT_REPEATABLE = 8  # a repeated clock differs from the first time; text = how
    LEFT = 9  # the rank has left the job


class Part(NamedTuple):
    """One shard's part of a request. `prev`: see `PushId`. `count` keys, `elements` values."""

    shard: int
    seen: Position = NOWHERE
    prev: int = 0
    count: int = 0  # type: ignore[assignment]  # shadows tuple.count, which nobody needs
    elements: int = 0


@dataclass(slots=True)
class Request:
    """A request to some shards of one server. Which fields matter depends on `kind`.

    Nobody changes one. It is not frozen, as `Answer` is not, because making a frozen object takes
    twice as long, and one is made for every request.
    """

    kind: Kind
    request: int
    parts: tuple[Part, ...]
    incarnation: int = 0  # of the cluster, as the sender knows it
    worker: WorkerId = READER
    clock: int = 0
    n: int = 0
    table: int = 0
    wait_ns: int = 0  # how long a pull may wait for other ranks
    rate: float = 0.0
    settled: bool = False  # a tick of a takeover: the clock is known to be complete
    text: bytes = b""
    keys: Keys = field(default_factory=lambda: NO_KEYS, repr=False)
    values: tuple[Values, ...] = field(default=(), repr=False)


class PartAnswer(NamedTuple):
    """What one shard answers. `at` is where the shard stood when it answered."""

    shard: int
    status: Status
    at: Position = NOWHERE
    value: int = 0  # FENCE, TICK: the last tick; GAP: the last push held; FENCED: incarnation
    count: int = 0  # type: ignore[assignment]  # shadows tuple.count, which nobody needs
    elements: int = 0
    text: bytes = b""  # FENCE: the cursor; errors: what is wrong and what to do


@dataclass(slots=True)
class Answer:
    """Answers to parts of request `request`; `values` of all parts, in the order of `parts`.

    `placed` says that the values went straight to where the receiver wanted them.
    """

    request: int
    parts: tuple[PartAnswer, ...]
    values: tuple[Values, ...] = field(default=(), repr=False)
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of whoever dials. Both names are checked before anything else is read."""

    protocol: int
    cluster: str
    who: str  # for logs: "worker ctr/3 pid 4711 on host", "server s1", ...


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Hello`."""

    server: str
    process: int  # incarnation id of the server process
    incarnation: int  # of the cluster


@dataclass(frozen=True, slots=True)
class Refuse:
    """The connection is of no use; it is closed after this. `why` says what to do."""

    why: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Inspection: `what` is "status"."""

    request: int
    what: str


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to `Ask`, as JSON text."""

    request: int
    body: str


Message: TypeAlias = Request | Answer | Hello | Welcome | Refuse | Ask | Told
