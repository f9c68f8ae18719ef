"""What processes say to each other.

Clients and the coordinator send `Request`s; a request is one message per server with one `Part`
per shard addressed there. Servers send `Answer`s: one `PartAnswer` per part, in as many messages
as it takes (parts become ready at different times). A primary sends its backups `Append`s, and its
learners `Copy`s too; they answer with `Appended`. The rest is greeting and inspection.

Values and keys of all parts stand one behind the other in one array each: a part says how many of
them are its own. A sender may give `values` in several pieces; a receiver gets one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilient_ps.ids import NOWHERE, READER, Epoch, Position, WorkerId

Keys: TypeAlias = NDArray[np.uint64]
Values: TypeAlias = NDArray[Any]

NO_KEYS: Keys = np.empty(0, np.uint64)
NO_VALUES: Values = np.empty(0, np.float32)
COMMAND_BYTES = 300  # of the objects around a command's arrays
PROTOCOL = 3


class Kind(IntEnum):
    """What a request asks of each of its shards."""

    OPEN_TABLE = 1  # make the table known: `table`, text = its specification as JSON
    DROP_TABLE = 2
    OPEN_JOB = 3  # make the job known: worker.job, text = its specification as JSON
    CLOSE_JOB = 4
    FENCE = 5  # takeover (i): worker.incarnation takes worker.rank; answers tick and cursor
    REDO = 6  # takeover (iii), BSP and tasks: forget what the rank pushed for `clock`
    PUSH = 7
    TUNE = 8  # set the learning rate of `table` to `rate`
    PULL = 9
    TICK = 10  # the worker has ended `clock`; text = cursor
    JOIN = 11  # `n` = number of the intent
    LEAVE = 12  # `n` = number of the intent
    EPOCH = 13  # in logs only: the first entry of a new primary
    CUT = 14  # a consistent cut: `n` = number of the intent, text = `Cut` as JSON
    ABORT = 15  # the cut of intent `n` is given up, and may not begin any more
    STAND = 16  # no entry: answers a rank's last tick and its cursor, as FENCE does
    QUOTA = 17  # what a shard may use of quotas: `clock` = number of the round, text: see `quotas`
    USE = 18  # no entry: answers which quotas are nearly used up here


class Status(IntEnum):
    """What became of one part of a request."""

    OK = 0
    # not the primary of this shard (any more, or yet). value: the process that is, if known (then
    # `at.epoch` is its epoch); else read the routing again
    NOT_OWNER = 1
    FENCED = 2  # a later incarnation of the rank exists; value = it
    GAP = 3  # an earlier push is missing; value = the last one held
    BUSY = 4  # a bound of memory is reached until other ranks tick; send again later
    DEADLINE = 5  # the pull waited as long as it may; text = for whom
    UNKNOWN = 6  # no such table, job or rank here; text = what
    REFUSED = 7  # the request is wrong; text = why
    NOT_REPEATABLE = 8  # a repeated clock differs from the first time; text = how
    LEFT = 9  # the rank has left the job
    ROLLED_BACK = 10  # the cluster has another incarnation than the request; value = it
    QUOTA = 11  # a namespace may not hold more; text = which, and what to do


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
    # PULL: keys. FENCE: 1 if pushes of the rank's open clock are here, else 0
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


@dataclass(slots=True)
class Command:
    """What an entry of a shard's log says: one part of a write, or `EPOCH`.

    Fields as in `Request` and `Part`. Nobody changes one.
    """

    kind: Kind
    worker: WorkerId = READER
    clock: int = 0
    n: int = 0
    prev: int = 0
    table: int = 0
    rate: float = 0.0
    settled: bool = False
    text: bytes = b""
    keys: Keys = field(default_factory=lambda: NO_KEYS, repr=False)
    values: Values = field(default_factory=lambda: NO_VALUES, repr=False)

    @property
    def nbytes(self) -> int:
        """What it holds in memory, roughly."""
        return COMMAND_BYTES + len(self.text) + self.keys.nbytes + self.values.nbytes


class Entry(NamedTuple):
    """An entry of a shard's log. `at`: the epoch in which it was made, and its lsn."""

    at: Position
    command: Command


class AppendPart(NamedTuple):
    """One shard's part of an `Append`: entries that follow `prev` in the sender's log.

    `epoch` is the sender's as primary of the shard, `commit` the last lsn that is committed. A part
    without entries tells that, and asks whether the receiver holds `prev`. `attempt` grows
    each time that the stream to this receiver begins anew: what comes late from an earlier one is
    recognised by it.
    """

    shard: int
    epoch: Epoch
    attempt: int
    prev: Position
    commit: int
    entries: tuple[Entry, ...] = ()


@dataclass(slots=True)
class Append:
    """A primary's entries for backups and learners on one server, at most one part per shard.

    Values of all entries of one message have one dtype.
    """

    parts: tuple[AppendPart, ...]


class Held(IntEnum):
    """What a replica answers to an `AppendPart` or a `Copy`."""

    HELD = 0  # `lsn`: it holds the sender's log up to here, in this epoch
    MISSING = 1  # it does not hold `prev`; `lsn`: the sender's log may agree up to here
    EMPTY = 2  # it has no state at all, or has given up a copy: it needs a copy from the beginning
    STALE = 3  # it has seen the later epoch `epoch`: step down
    COPIED = 4  # `lsn`: the number of the last piece of the copy that it has taken in
    BUSY = 5  # ask again later: it takes another copy in, or loads its part of a checkpoint


class AppendedPart(NamedTuple):
    """One replica's answer. `epoch` is the latest that it has seen; `attempt` comes back."""

    shard: int
    epoch: Epoch
    attempt: int
    held: Held
    lsn: int


@dataclass(slots=True)
class Appended:
    """The answer to an `Append` (a part per shard) or to a `Copy` (one part)."""

    parts: tuple[AppendedPart, ...]


class Copied(IntEnum):
    """What a piece of a state copy holds."""

    HEAD = 0  # begins a copy; text: everything that is small, as JSON
    HELD_PUSH = 1  # a push that is held back: text, table, keys, values
    ROWS = 2  # of sparse table `table`: keys, and per row values and state one behind the other
    BLOCKS = 3  # of dense table `table`: text says which part; values
    END = 4  # the copy is whole


@dataclass(slots=True)
class Copy:
    """A piece of a state copy, from a primary to a learner, in the order of `number` from 0.

    It was captured when the primary had applied exactly `lsn`. The receiver applies its log up to
    there, then takes the piece in. `revision` (HEAD): of the shard's record in etcd, as the primary
    knows it: what is older says nothing of the receiver's place any more.
    """

    shard: int
    epoch: Epoch
    attempt: int
    lsn: int
    number: int
    what: Copied
    table: int = 0
    revision: int = 0
    text: bytes = b""
    keys: Keys = field(default_factory=lambda: NO_KEYS, repr=False)
    values: Values = field(default_factory=lambda: NO_VALUES, repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of whoever dials. Protocol and cluster are checked before anything else.

    A server that dials another one names itself, its process, and the lease that its leader keys
    hang on.
    """

    protocol: int
    cluster: str
    who: str  # for logs: "worker ctr/3 pid 4711 on host", "server s1", ...
    server: str = ""
    process: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Hello`."""

    server: str
    process: int  # incarnation id of the server process
    incarnation: int  # of the cluster
    lease: int = 0  # that the server's leader keys hang on


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


Message: TypeAlias = (
    Request | Answer | Append | Appended | Copy | Hello | Welcome | Refuse | Ask | Told
)
