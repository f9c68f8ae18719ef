"""Calls to shards, delivered until every shard has answered.

Theory of operation. A `Call` is one request to some shards. `Calls` sends each server one message
with the parts of its shards, and keeps the call until all shards have given a final answer.
A broken connection, a shard that is not owned where we thought, a gap or a full buffer are not
final: after a short pause, everything that is still open for the shard is sent again *in the
original order*, with the same identity; shards recognise repeats. A server may also be silent for
ever, though the connection stands: while a call waits for long, the routing is read now and then,
and what is open on shards that have another owner is sent there. Answers that a call does not wait
for (any more) are dropped, as are those that are older than what was seen of the shard.

A routing or an answer of a later incarnation of the cluster is never adopted: `rolled_back_to` says
so, and whoever made the calls decides what is to become of them.

Invariants: writes to one shard leave in the order of their calls; `seen` never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from resilient_ps.call_arrays import keys_of_pieces, values_by_shard
from resilient_ps.coordinator.kv import KvCall, Read
from resilient_ps.ids import NOWHERE, READER, Position, WorkerId
from resilient_ps.machine import Drop, Effect, Send, SetTimer
from resilient_ps.messages import NO_KEYS, Answer, Keys, Kind, Part, PartAnswer, Request, Status
from resilient_ps.messages import Values as ValueArray
from resilient_ps.routing import Routing

RESEND_FIRST_NS = 20_000_000
RESEND_MOST_NS = 1_000_000_000
SILENCE_NS = 1_000_000_000  # a call that has waited for so long looks who owns its shards
PATIENT_NS = 10_000_000_000  # one that has waited for so long waits for other ranks, most likely,
RARELY_NS = 5_000_000_000  # and looks this seldom
RESEND_TIMER = "calls/resend"
ROUTING_REF = 1

_AGAIN = frozenset({Status.NOT_OWNER, Status.GAP, Status.BUSY})


class Piece(NamedTuple):
    """What of a call is one shard's: keys, gradients, and the last push sent there before."""

    first: int = 0  # its keys are `call.keys[first : first + count]`
    count: int = 0  # type: ignore[assignment]  # shadows tuple.count, which nobody needs
    values: tuple[ValueArray, ...] = ()
    elements: int = 0  # how many values these are
    start: int = 0  # PULL: its values are to be received in `call.out[start:stop]`
    stop: int = 0
    prev: int = 0


_NOTHING = Piece()
_NOWHERE = memoryview(b"")
_new = tuple.__new__  # several times faster than a named tuple's own constructor


@dataclass(slots=True)
class Split:
    """A request to a table, split by shard: its keys, and each shard's piece, in routing order.

    Nobody changes one: see `Request`.
    """

    keys: Keys
    pieces: dict[int, Piece]
    nbytes: int
    out: memoryview = _NOWHERE  # of a pull: where its values are to be received, as bytes


@dataclass(slots=True, eq=False)
class Call:
    """A request on its way. `shards` are in routing order; `pending` have not answered yet."""

    number: int
    kind: Kind
    shards: tuple[int, ...]
    worker: WorkerId = READER
    clock: int = 0
    n: int = 0
    table: int = 0
    wait_ns: int = 0
    rate: float = 0.0
    settled: bool = False
    text: bytes = b""
    keys: Keys = field(default_factory=lambda: NO_KEYS)  # of all shards, in the order of `shards`
    pieces: Mapping[int, Piece] = field(default_factory=dict)
    out: memoryview = _NOWHERE  # PULL: where the values are to be received, as bytes
    receiving: dict[int, str] = field(default_factory=dict)  # by shard: whose answer fills `out`
    pending: set[int] = field(default_factory=set)
    answers: dict[int, PartAnswer] = field(default_factory=dict)
    reason: dict[int, str] = field(default_factory=dict)  # why a shard has not answered yet
    context: Any = None
    begun_ns: int = 0

    def __post_init__(self) -> None:
        self.pending = set(self.shards)

    @property
    def done(self) -> bool:
        """Has every shard given its final answer?"""
        return not self.pending

    def failure(self) -> PartAnswer | None:
        """The first answer, by shard, that is an error."""
        errors = [answer for answer in self.answers.values() if answer.status is not Status.OK]
        return min(errors) if errors else None


class Folded(Protocol):
    """A call of which there are only the bytes yet: see `quick_calls`."""

    number: int
    op: int
    over: bool
    begun_ns: int
    hoped: tuple[Any, ...]

    def request(self) -> Request:
        """What is asked for."""

    def take(
        self, scratch: memoryview, lo: int, hi: int, meta_limit: int, payload_limit: int
    ) -> bool:
        """Take in the answer, if this is all of it and says that all is well."""

    def unfold(self) -> Call:
        """The call as it would have been."""


class Calls:
    """The open calls of one client, and how they reach their shards."""

    def __init__(
        self,
        routing: Routing,
        prefix: bytes,
        last_number: int = 0,
        *,
        timer: str = RESEND_TIMER,
        routing_ref: int = ROUTING_REF,
    ) -> None:
        self.routing = routing
        self._timer = timer
        self._routing_ref = routing_ref
        self.seen: list[Position] = [NOWHERE] * routing.shards
        self.folded: Folded | None = None
        self._open: dict[int, Call] = {}
        self._prefix = prefix
        self.last_number = last_number
        self.rolled_back_to = 0  # a later incarnation of the cluster that was heard of
        self._again: set[int] = set()  # shards for which everything is to be sent again
        self._pause_ns = RESEND_FIRST_NS
        self._timer_set = False  # to send again
        self._watching = False  # the timer is set, if only to look after calls that wait for long
        self._reading_routing = False
        self._strays: set[str] = set()  # peers whose answers would still be received into `out`

    @property
    def open(self) -> dict[int, Call]:
        """Calls that not all shards have answered, in their order. What is folded is unfolded."""
        if self.folded is not None:
            folded, self.folded = self.folded, None
            self._open[folded.number] = folded.unfold()
        return self._open

    @property
    def may_fold(self) -> bool:
        """Would a call be the only one, and leave at once as it is?"""
        idle = self.folded is None and not self._open and not self._again
        return idle and self._watching and self.routing.only_peer is not None

    def settle(self, folded: Folded) -> None:
        """All shards have answered the folded call, and nothing but that all is well."""
        assert folded is self.folded, "nobody has looked at what is open meanwhile"
        self.folded = None
        self._pause_ns = RESEND_FIRST_NS

    def next_number(self) -> int:
        """A request number that no open call has."""
        self.last_number += 1
        return self.last_number

    def start(self, call: Call, now_ns: int) -> list[Effect]:
        """Send a call for the first time."""
        self.open[call.number] = call
        call.begun_ns = now_ns
        only = self.routing.only_peer
        if only is not None and not self._again:
            send = Send(only, self._request(call, call.shards))
            return [send] if self._watching else [send, *self._watch(now_ns)]
        effects: list[Effect] = []
        by_peer: dict[str, list[int]] = {}
        for shard in call.shards:
            peer = self.routing.peer(shard)
            if peer is None or shard in self._again:
                call.reason[shard] = self.routing.describe(shard)
                effects += self._later(shard, now_ns)
            else:
                by_peer.setdefault(peer, []).append(shard)
        for peer, shards in by_peer.items():
            effects.append(Send(peer, self._request(call, shards)))
        return effects if self._watching else [*effects, *self._watch(now_ns)]

    def begin_again(self, routing: Routing) -> None:
        """In another incarnation of the cluster. No call is under way; numbers go on.

        What timers and reads of before come to may have been told to others: they do not count.
        """
        assert not self.open, "what is under way belongs to the incarnation before"
        self.routing = routing
        self.seen = [NOWHERE] * routing.shards
        self.rolled_back_to = 0
        self._timer_set = self._watching = self._reading_routing = False
        self._again.clear()
        self._pause_ns = RESEND_FIRST_NS

    def abandon(self, number: int) -> None:
        """Wait for this call no more; what it did remains unknown. `strays` follow."""
        call = self.open.pop(number, None)
        if call is not None:
            self._strays.update(call.receiving.values())

    def strays(self) -> list[Drop]:
        """Connections to end: what they bring has been overtaken, and would be received into
        arrays that belong to the caller again."""
        if not self._strays:
            return []
        peers, self._strays = sorted(self._strays), set()
        return [Drop(peer, "its answer has been overtaken") for peer in peers]

    def on_answer(
        self, answer: Answer, now_ns: int, peer: str = ""
    ) -> tuple[Call | None, list[Effect]]:
        """Take an answer of `peer` in: the call if this completed it, and what is to be done."""
        call = self.open.get(answer.request)
        if call is None:
            return None, []
        effects: list[Effect] = []
        moved: list[int] = []
        values = {} if answer.placed or not call.out.nbytes else values_by_shard(call, answer)
        if values is None:
            return None, [Drop(peer, "an answer does not fit what was asked for")]
        for part in answer.parts:
            shard = part.shard
            if call.receiving.get(shard) == peer:
                del call.receiving[shard]
            if shard not in call.pending:
                continue
            if part.status in _AGAIN:
                call.reason[shard] = part.text.decode(errors="replace") or part.status.name
                redirected = self.routing.redirected(part)
                if redirected is not None:
                    self.routing = redirected
                    moved.append(shard)
                else:
                    effects += self._later(shard, now_ns)
                continue
            if part.status is Status.ROLLED_BACK and self._hear_of(part.value):
                call.answers[shard] = part
                call.pending.discard(shard)
                continue
            away = part.status is Status.ROLLED_BACK  # by one that is behind us
            if away or part.at < self.seen[shard]:  # from a replica that has fallen behind
                effects += self._later(shard, now_ns)
                continue
            if shard in values:
                piece = call.pieces[shard]
                call.out[piece.start : piece.stop] = values[shard]
            if shard in call.receiving:
                self._strays.add(call.receiving.pop(shard))
            self.seen[shard] = part.at
            call.answers[shard] = part
            call.pending.discard(shard)
            self._pause_ns = RESEND_FIRST_NS
        effects += self.strays()
        for shard in moved:
            if shard not in self._again:
                effects += self._send_again({shard}, now_ns)
        if not call.pending:
            del self.open[call.number]
            return call, effects
        return None, effects

    def on_peer_lost(self, peer: str, now_ns: int) -> list[Effect]:
        """Everything that is open on this server's shards is to be sent again."""
        waiting = {shard for call in self.open.values() for shard in call.pending}
        for call in self.open.values():
            call.receiving = {s: source for s, source in call.receiving.items() if source != peer}
        effects: list[Effect] = []
        for shard in sorted(waiting):
            if self.routing.peer(shard) == peer:
                effects += self._later(shard, now_ns)
        return effects

    def on_timer(self, now_ns: int) -> list[Effect]:
        """The pause is over: read the routing; sending again follows when it has been read."""
        self._timer_set = self._watching = False
        if self._reading_routing:
            return []
        if not self._again and self._waited_ns(now_ns) < SILENCE_NS:
            return self._watch(now_ns)
        self._reading_routing = True
        return [KvCall(self._routing_ref, Read(self._prefix, prefix=True))]

    def on_routing(self, routing: Routing | None, now_ns: int) -> list[Effect]:
        """New routing (None: it could not be read): send again what is open, in order."""
        self._reading_routing = False
        shards, self._again = self._again, set()
        if routing is not None:
            self._hear_of(routing.incarnation)
        if routing is not None and routing.same_cluster(self.routing):
            pairs = zip(self.routing.owners, routing.owners, strict=True)
            shards |= {shard for shard, (old, new) in enumerate(pairs) if old != new}
            self.routing = routing
        effects = self._send_again(shards, now_ns)
        return effects if self._watching else [*effects, *self._watch(now_ns)]

    def _hear_of(self, incarnation: int) -> bool:
        """Is this a later incarnation of the cluster than ours?"""
        if incarnation <= self.routing.incarnation:
            return False
        self.rolled_back_to = max(self.rolled_back_to, incarnation)
        return True

    def _waited_ns(self, now_ns: int) -> int:
        """How long the oldest open call has waited."""
        oldest = next(iter(self.open.values()), None)
        return 0 if oldest is None else now_ns - oldest.begun_ns

    def _watch(self, now_ns: int) -> list[Effect]:
        """Wake up when the oldest call has waited for long, or has done so for long again."""
        if not self.open or self._reading_routing:
            return []
        self._watching = True
        waited_ns = self._waited_ns(now_ns)
        if waited_ns < SILENCE_NS:
            return [SetTimer(self._timer, now_ns + SILENCE_NS - waited_ns)]
        pause_ns = SILENCE_NS if waited_ns < PATIENT_NS else RARELY_NS
        return [SetTimer(self._timer, now_ns + pause_ns)]

    def _send_again(self, shards: set[int], now_ns: int) -> list[Effect]:
        """Everything that is open on these shards, in the original order."""
        effects: list[Effect] = []
        for call in list(self.open.values()):
            for shard in call.shards:
                if shard not in shards or shard not in call.pending:
                    continue
                peer = self.routing.peer(shard)
                if peer is None:
                    call.reason[shard] = self.routing.describe(shard)
                    effects += self._later(shard, now_ns)
                else:
                    effects.append(Send(peer, self._request(call, [shard])))
        return effects

    def places(
        self, number: int, parts: Sequence[PartAnswer], peer: str = ""
    ) -> list[memoryview] | None:
        """Where the values of an answer of `peer` are to be received.

        None: in an array of their own. `on_answer` takes from there what is waited for.
        """
        call = self.open.get(number)
        if call is None:
            return None
        views: list[memoryview] = []
        start = stop = 0
        for part in parts:
            shard = part.shard
            if part.status is not Status.OK:
                continue
            if shard not in call.pending or part.at < self.seen[shard]:
                return None
            if call.receiving.get(shard, peer) != peer:
                return None
            piece = call.pieces.get(shard, _NOTHING)
            if piece.start != stop:  # else it continues where the last one ends
                views.append(call.out[start:stop])
                start = piece.start
            stop = piece.stop
        views.append(call.out[start:stop])
        if peer:  # else the values come with the answer, all at once
            call.receiving.update((p.shard, peer) for p in parts if p.status is Status.OK)
        return views

    def waits_for(self, call: Call) -> str:
        """For error texts: which shards have not answered, and why."""
        shards = sorted(call.pending)[:4]
        more = f" and {len(call.pending) - 4} more shards" if len(call.pending) > 4 else ""
        told = [(self.routing.describe(shard), call.reason.get(shard)) for shard in shards]
        texts = [f"{where}: {why}" if why and why != where else where for where, why in told]
        return "; ".join(texts) + more

    def _later(self, shard: int, now_ns: int) -> list[Effect]:
        self._again.add(shard)
        if self._timer_set or self._reading_routing:
            return []
        self._timer_set = self._watching = True
        at_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, RESEND_MOST_NS)
        return [SetTimer(self._timer, at_ns)]

    def _request(self, call: Call, shards: Sequence[int]) -> Request:
        parts: list[Part] = []
        values: list[ValueArray] = []
        seen, pieces = self.seen, call.pieces
        begin = end = -1
        in_one_piece = True
        for shard in shards:
            first, count, arrays, elements, _, _, prev = pieces.get(shard, _NOTHING)
            parts.append(_new(Part, (shard, seen[shard], prev, count, elements)))
            values += arrays
            if first != end:
                in_one_piece, begin, end = end < 0, first, first
            end += count
        if in_one_piece:
            keys = call.keys[begin:end]
        else:
            keys = keys_of_pieces(call, [pieces.get(shard, _NOTHING) for shard in shards])
        return Request(
            call.kind,
            call.number,
            tuple(parts),
            self.routing.incarnation,
            call.worker,
            call.clock,
            call.n,
            call.table,
            call.wait_ns,
            call.rate,
            call.settled,
            call.text,
            keys,
            tuple(values),
        )
