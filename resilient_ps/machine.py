"""The contract of a machine: events in, effects out, nothing else.

    machine.handle(event, now_ns) -> list[Effect]

A machine performs no I/O, reads no clock and draws no random numbers of its own: `now_ns` is a
monotonic integer of nanoseconds, randomness is a constructor argument. A *host* performs the
effects and brings back what became of them as events: with sockets and etcd, or with a seeded
queue and virtual time.

Ordering contract. Effects of one step *start* in list order. None may rely on the *completion* of
another in the same list: what must follow a completion is emitted when the completion arrives as
an event. Messages sent to one peer over one connection arrive in the order in which they were sent,
or not at all; a broken connection is an event (`PeerLost`), and what was under way then is unknown.

Events and effects never change. Those that there is one of for every message or timer are named
tuples, which are made in half the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from resilient_ps.coordinator.kv import KvAnswered, KvCall, KvChanged, KvFailed, KvReset, KvWatch
from resilient_ps.messages import Message, Request
from resilient_ps.storage.blobs import BlobAnswered, BlobCall, BlobFailed

Peer = str
"""The other end of a connection: `server:<name>` where we dial, `client:<number>` elsewhere."""


@dataclass(frozen=True, slots=True)
class Started:
    """First event of every machine."""


class MessageArrived(NamedTuple):
    """A whole, well-formed message. Its arrays are valid as long as they are referenced."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A connection broke or could not be made. `refused`: nobody listens there any more."""

    peer: Peer
    refused: bool = False


class TimerFired(NamedTuple):
    """The timer of this name, set earlier, is due. Setting it again replaces it."""

    name: str


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The operator wants an orderly end (SIGTERM, or a preemption notice)."""


Event = (
    Started
    | MessageArrived
    | PeerLost
    | TimerFired
    | StopAsked
    | KvAnswered
    | KvFailed
    | KvChanged
    | KvReset
    | BlobAnswered
    | BlobFailed
)


class Send(NamedTuple):
    """Send a message. The host dials `server:` peers when no connection is open.

    After `until_ns` (0: never) the message is thrown away instead, and the connection with it, so
    that the peer asks again: the host compares it with its clock right before it hands the message
    over. So a primary's answers end with its lease, however long the step took that made them.
    """

    peer: Peer
    message: Message
    until_ns: int = 0


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection to this peer after what was sent before; `why` goes to the log."""

    peer: Peer
    why: str


class SetTimer(NamedTuple):
    """Fire `TimerFired(name)` at `at_ns`; replaces an earlier timer of the same name."""

    name: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Log:
    """A structured log line."""

    level: str
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exit:
    """The process is done, or cannot go on."""

    code: int
    why: str


Effect = Send | Drop | SetTimer | Log | Exit | KvCall | KvWatch | BlobCall


AnswerBytes: TypeAlias = Callable[
    [Peer, memoryview, int, int, "tuple[int, int]", int], "tuple[list[Any], int] | None"
]
"""`answer_bytes(peer, scratch, lo, hi, limits of meta and payload, now_ns)`: buffers of bytes that
answer the message in `scratch[lo:hi]`, and until when they may leave (as in `Send`). It is a step.
None: nothing has happened, and `handle` is to have the message."""


class ArrivingPush(Protocol):
    """A push that is accepted, whose values are received (`native.receive_push`): `counts` keys of
    each of the tables that are `arrays`. Until `end` the machine is not entered."""

    until_ns: int
    counts: list[int]
    arrays: list[tuple[Any, ...]]

    def end(self, lacks: Sequence[int]) -> list[Any] | None:
        """What each part lacks, or -1: it was not made. Buffers of the answer, if all were made;
        they may leave until `until_ns`. None: `handle` is to have the message when all is there."""
        ...


BeginPush: TypeAlias = Callable[[Peer, Request, int], "ArrivingPush | None"]
"""`begin_push(peer, request, now_ns)`: how many keys this push has is known; they and its values
may still be on their way. It is a step, to the end of what it gives. None: nothing has happened."""


class Machine(Protocol):
    """Anything that a host can run. It may have an `answer_bytes` and a `begin_push`, too: see
    `AnswerBytes` and `BeginPush`."""

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """One step. Never blocks, never raises for what a peer sent."""
        ...
