"""A client's side of the protocol: what to send when, so that nothing is lost or doubled.

Theory of operation. A session without a worker reads. With one it first takes its rank over (see
`takeover`), and from then on keeps the worker's rules:

* pushes of a clock are numbered from 1, over all shards; each part names its predecessor there;
* `tick(c)` goes to no shard before every shard has acknowledged the pushes of c;
* no push of c+1 goes out before every shard has acknowledged `tick(c)`. Pulls do not wait for that.

So writes stand in a queue, in program order, and leave when the rules let them. Under BSP, and in
tasks, a tick also waits for the answers to pulls of its clock: sent again after a broken
connection, they would find a later state. Every operation has a number given by the caller, and
ends in one `Resolved`. An operation that the caller abandons at its deadline is forgotten if it is
a pull; a push or tick stays, and is still delivered. Who does tasks goes on from one to the next
with `take`.

When the cluster was rolled back, nothing is delivered any more, and every operation ends with
`RolledBack` (see `rolled_back`), until `resume` takes the rank over under the new incarnation.

Invariants: at most one tick is under way; while it is, no push is; `clock` is the open clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Call, Calls, Folded, Piece, Split
from resilient_ps.consistency import JobSpec
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KvAnswered, KvFailed, ReadResult
from resilient_ps.errors import DeadlineExceeded, Fenced, FixTheCall, ResilientPsError, RolledBack
from resilient_ps.ids import READER, WorkerId
from resilient_ps.machine import Effect, Event, MessageArrived, PeerLost, TimerFired
from resilient_ps.messages import Answer, Kind, Refuse
from resilient_ps.quick_calls import Asked, PlainTable, QuickCall, fold
from resilient_ps.refusals import refusal
from resilient_ps.rolled_back import Aftermath, drops
from resilient_ps.routing import Address, Routing, refreshed
from resilient_ps.scripts import RunningScript
from resilient_ps.takeover import Settled, Step, start_worker, take_over


class Resolved(NamedTuple):
    """Operation `op` is over: with a value, or with an error."""

    op: int
    value: Any = None
    error: ResilientPsError | None = None


SessionEffect: TypeAlias = Effect | Resolved

_new = tuple.__new__  # several times faster than a named tuple's own constructor


class Session:
    """One client's (or worker's) protocol machine."""

    def __init__(
        self, cluster: str, routing: Routing, new_calls: Callable[[Routing, bytes], Calls] = Calls
    ) -> None:
        self.worker: WorkerId = READER
        self.job: JobSpec | None = None
        self.clock = 0
        self.cursor = b""
        self.broken: ResilientPsError | None = None
        self._keys = ClusterKeys(cluster)
        self.calls = new_calls(routing, self._keys.prefix)
        self._n = 0
        self._last: dict[int, int] = {}  # by shard: the last push sent there in this clock
        self._queue: deque[Call] = deque()  # writes that may not leave yet
        self._pushes: set[int] = set()  # pushes under way
        self._ticking: int | None = None
        self._takeover: tuple[int, RunningScript] | None = None
        self._known: JobSpec | None = None  # the job that all shards have been told of
        self._aftermath: Aftermath | None = None

    @property
    def routing(self) -> Routing:
        """Who serves what, as far as is known."""
        return self.calls.routing

    @property
    def servers(self) -> dict[str, Address]:
        """Where servers listen, as far as is known."""
        after = None if self._aftermath is None else self._aftermath.routing
        return self.calls.routing.servers if after is None else after.servers

    @property
    def unsettled(self) -> int:
        """Pushes and ticks that not all shards have acknowledged."""
        waiting = (self._ticking is not None) + (self._aftermath is not None)
        return len(self._queue) + len(self._pushes) + waiting

    # -- operations

    def open_worker(
        self, op: int, job: JobSpec, worker: WorkerId, now_ns: int
    ) -> list[SessionEffect]:
        """Take the rank over. Resolves to `Settled`; the next clock is then open."""
        order, redo = self.routing.order, job.holds_pushes
        if self._known == job:
            script = take_over(worker, order, redo=redo)
        else:
            script = start_worker(worker, order, job.to_json().encode(), redo=redo)
        self.worker, self.job = worker, job
        running = RunningScript(script, self.calls)
        self._takeover = (op, running)
        return self._look_at_takeover(running.start(now_ns))

    def take(self, op: int, job: JobSpec, worker: WorkerId, now_ns: int) -> list[SessionEffect]:
        """Leave the present rank as it is, whatever broke this session, and take this one over.

        After a rollback only `resume` goes on. To be done for every task, also where the lane
        stays the same: the answers say how far the shards are, so that no pull is answered by a
        primary that is behind.
        """
        if self._is_over:
            return self._refused(op)
        told = self._break(Fenced(f"rank {self.worker.rank} was given up for rank {worker.rank}"))
        self.broken, self._n, self._last = None, 0, {}
        return [*told, *self.open_worker(op, job, worker, now_ns)]

    def resume(
        self, op: int, routing: Routing, worker: WorkerId, now_ns: int, job: JobSpec | None = None
    ) -> list[SessionEffect]:
        """Begin anew in the incarnation of this routing, a worker by taking its rank over.

        `job`: as it is registered now; None: as it was. Resolves to `Settled`, or to None for who
        only reads (`READER`), or has no task in hand.
        """
        told = self._break(self.broken or RolledBack("this session begins anew"))
        told += drops(self.calls.routing, routing)
        self.calls.begin_again(routing)
        self.broken, self._n, self._last, self._known = None, 0, {}, None
        self.worker, job = worker, job or self.job
        if worker == READER or job is None:
            return [*told, Resolved(op)]
        return [*told, *self.open_worker(op, job, worker, now_ns)]

    def broadcast(self, op: int, step: Step, now_ns: int) -> list[SessionEffect]:
        """One request to many shards that is no worker's write (tables, jobs)."""
        if self._is_over:
            return self._refused(op)
        call = self._call(op, step.kind, step.shards)
        call.worker, call.n, call.table, call.text = step.worker, step.n, step.table, step.text
        return [*self.calls.start(call, now_ns)]

    def pull(
        self, op: int, table: int, split: Split, now_ns: int, *, wait_ns: int
    ) -> list[SessionEffect]:
        """Read at the open clock; values are received in `split.out`."""
        if self._aftermath is not None or self.broken is not None:
            return self._refused(op)
        if not split.pieces:
            return [Resolved(op, {})]
        call = self._call(op, Kind.PULL, tuple(split.pieces))
        call.table, call.keys, call.pieces, call.out = table, split.keys, split.pieces, split.out
        call.worker, call.clock, call.wait_ns = self.worker, self.clock, wait_ns
        return [*self.calls.start(call, now_ns)]

    def push(self, op: int, table: int, split: Split, now_ns: int) -> list[SessionEffect]:
        """Write in the open clock. Resolves when all shards have acknowledged."""
        call = self._call(op, Kind.PUSH, tuple(split.pieces))
        call.table, call.keys = table, split.keys
        return self._write(call, split.pieces, now_ns)

    # -- operations, the quick way: see `quick_calls`

    def pull_quickly(
        self, table: PlainTable, keys: Any, out: NDArray[Any], now_ns: int, *, wait_ns: int
    ) -> QuickCall | None:
        """As `pull`, of which the message is to be sent; None if it is not as plain as that."""
        if not self._is_idle:
            return None
        asked = Asked(Kind.PULL, self.worker, self.clock, 0, wait_ns)
        return fold(self.calls, asked, table, keys, out, now_ns)

    def push_quickly(
        self, table: PlainTable, keys: Any, grads: NDArray[Any], now_ns: int
    ) -> QuickCall | None:
        """As `push`, of which the message is to be sent; None if it is not as plain as that."""
        if not self._is_idle or self._queue:
            return None
        asked = Asked(Kind.PUSH, self.worker, self.clock, self._n + 1, 0, self._last)
        call = fold(self.calls, asked, table, keys, grads, now_ns)
        if call is not None:
            self._n += 1
            self._pushes.add(call.number)
        return call

    def settle(self, call: Folded, now_ns: int) -> list[SessionEffect]:
        """The call has been answered, and is over."""
        self.calls.settle(call)
        self._pushes.discard(call.number)
        return self._pump(now_ns) if self._queue else []

    @property
    def _is_idle(self) -> bool:
        """Is nothing under way, and nothing wrong?"""
        ended = self.broken is not None or self._aftermath is not None
        return self.calls.may_fold and not ended and self._takeover is None

    def tune(self, op: int, table: int, rate: float, now_ns: int) -> list[SessionEffect]:
        """Change a table's learning rate on all shards: a write like a push."""
        pieces = {shard: Piece() for shard in self.routing.order}
        call = self._call(op, Kind.TUNE, tuple(pieces))
        call.table, call.rate = table, rate
        return self._write(call, pieces, now_ns)

    def tick(self, op: int, cursor: bytes, now_ns: int) -> list[SessionEffect]:
        """End the open clock. Resolves when all shards have acknowledged; the next one is open."""
        if self._aftermath is not None or self.broken is not None:
            return self._refused(op)
        call = self._call(op, Kind.TICK, self.routing.order)
        call.worker, call.clock, call.text = self.worker, self.clock, cursor
        call.pieces = {shard: Piece(prev=self._last.get(shard, 0)) for shard in call.shards}
        self.clock += 1
        self.cursor = cursor
        self._n = 0
        self._last = {}
        self._queue.append(call)
        return self._pump(now_ns)

    def abandon(self, op: int, now_ns: int) -> list[SessionEffect]:
        """The caller waits for this operation no longer. Resolves to `DeadlineExceeded`."""
        error = self._forget(op)
        return [*self.calls.strays(), Resolved(op, error=error), *self._pump(now_ns)]

    def _forget(self, op: int) -> ResilientPsError:
        if self._aftermath is not None:
            self._aftermath.ops = [each for each in self._aftermath.ops if each != op]
            return self._aftermath.so_far()
        if self._takeover is not None and self._takeover[0] == op:
            running = self._takeover[1]
            text = running.waits_for()
            running.abandon()
            self._takeover = None
            late = DeadlineExceeded(f"taking over rank {self.worker.rank} timed out; {text}")
            self.broken = late  # nothing may be written without it
            return late
        call = next((c for c in [*self.calls.open.values(), *self._queue] if c.context == op), None)
        if call is None:
            return DeadlineExceeded(f"operation {op} timed out")
        if call.kind not in _WRITES:
            self.calls.abandon(call.number)
        return DeadlineExceeded(self._why_late(call))

    def why_unsettled(self) -> ResilientPsError:
        """The error for who waited in vain for all writes to be acknowledged."""
        if self._aftermath is not None:
            return self._aftermath.so_far()
        writes = [call for call in self.calls.open.values() if call.kind in _WRITES]
        return DeadlineExceeded(self._why_late([*writes, *self._queue][0]))

    # -- events

    def handle(self, event: Event, now_ns: int) -> list[SessionEffect]:
        """One step of the machine."""
        if self._aftermath is not None:
            return self._look_at_aftermath(self._aftermath, event, now_ns)
        match event:
            case MessageArrived(peer, Answer() as answer):
                return self._on_answer(answer, now_ns, peer)
            case MessageArrived(_, Refuse(why)):
                return self._break(FixTheCall(f"a server refuses this client: {why}"))
            case PeerLost(peer):
                return [*self.calls.on_peer_lost(peer, now_ns)]
            case TimerFired(name) if name == RESEND_TIMER:
                return [*self.calls.on_timer(now_ns)]
            case KvAnswered(ref, ReadResult() as result) if ref == ROUTING_REF:
                return self._on_routing(refreshed(result.items, self._keys), now_ns)
            case KvFailed(ref) if ref == ROUTING_REF:
                return [*self.calls.on_routing(None, now_ns)]
            case _:
                return []

    def _on_routing(self, routing: Routing | None, now_ns: int) -> list[SessionEffect]:
        """Owners and addresses may have changed, or even the incarnation of the cluster."""
        before = self.calls.routing
        effects = self.calls.on_routing(routing, now_ns)
        if self.calls.rolled_back_to:
            return self._stop()
        return [*drops(before, self.calls.routing), *effects]

    def _on_answer(self, answer: Answer, now_ns: int, peer: str) -> list[SessionEffect]:
        call, effects = self.calls.on_answer(answer, now_ns, peer)
        if self.calls.rolled_back_to:
            return self._stop(call)
        if call is None:
            return [*effects]
        if self._takeover is not None and self._takeover[1].owns(call):
            effects += self._takeover[1].on_done(call, now_ns)
            return self._look_at_takeover(effects)
        failure = call.failure()
        if call.kind in _WRITES:
            self._pushes.discard(call.number)
            if call.number == self._ticking:
                self._ticking = None
            if failure is not None:
                return [*effects, *self._break(refusal(failure, self.worker, self.job), call)]
            return [*effects, Resolved(call.context, call.clock), *self._pump(now_ns)]
        error = None if failure is None else refusal(failure, self.worker, self.job)
        return [*effects, Resolved(call.context, call.answers, error), *self._pump(now_ns)]

    def _look_at_takeover(self, effects: list[Effect]) -> list[SessionEffect]:
        assert self._takeover is not None
        op, running = self._takeover
        if not running.over:
            return [*effects]
        self._takeover = None
        if running.failure is not None:
            return [
                *effects,
                *self._break(refusal(running.failure, self.worker, self.job)),
                Resolved(op, error=self.broken),
            ]
        settled = running.result
        assert isinstance(settled, Settled)
        self._known = self.job
        self.clock = settled.ticked + 1
        self.cursor = settled.cursor
        return [*effects, Resolved(op, settled)]

    # -- rollback

    @property
    def _is_over(self) -> bool:
        """Was the cluster rolled back, so that nothing is sent before `resume`?"""
        return self._aftermath is not None or isinstance(self.broken, RolledBack)

    def _refused(self, op: int) -> list[SessionEffect]:
        if self._aftermath is None:
            return [Resolved(op, error=self.broken)]
        self._aftermath.ops.append(op)  # it is told with the others
        return []

    def _stop(self, call: Call | None = None) -> list[SessionEffect]:
        """The cluster was rolled back: nothing more is delivered; see what it is now."""
        ops = self._end_all(call)
        self._aftermath = Aftermath(
            self.worker,
            self._keys,
            self.calls.routing,
            self.calls.rolled_back_to,
            self.calls.last_number,
        )
        self._aftermath.ops = ops
        return [*self.calls.strays(), *self._aftermath.start()]

    def _look_at_aftermath(
        self, aftermath: Aftermath, event: Event, now_ns: int
    ) -> list[SessionEffect]:
        effects = aftermath.handle(event, now_ns)
        if aftermath.error is None:
            return [*effects]
        self._aftermath, self.broken = None, aftermath.error
        self.calls.last_number = aftermath.last_number
        return [*effects, *[Resolved(op, error=self.broken) for op in aftermath.ops]]

    # -- writes

    def _call(self, op: int, kind: Kind, shards: tuple[int, ...]) -> Call:
        return Call(self.calls.next_number(), kind, shards, context=op)

    def _write(self, call: Call, pieces: dict[int, Piece], now_ns: int) -> list[SessionEffect]:
        if self._aftermath is not None or self.broken is not None:
            return self._refused(call.context)
        if not pieces:
            return [Resolved(call.context, self.clock)]
        self._n += 1
        last = self._last
        call.pieces = {
            shard: _new(Piece, (*piece[:-1], last.get(shard, 0))) for shard, piece in pieces.items()
        }
        for shard in pieces:
            last[shard] = self._n
        call.worker, call.clock, call.n = self.worker, self.clock, self._n
        self._queue.append(call)
        return self._pump(now_ns)

    def _pump(self, now_ns: int) -> list[SessionEffect]:
        """Let leave what the worker's rules let leave."""
        effects: list[SessionEffect] = []
        while self._queue and self._ticking is None:
            call = self._queue[0]
            if call.kind is Kind.TICK and (self._pushes or self._reads(call.clock)):
                break
            self._queue.popleft()
            if call.kind is Kind.TICK:
                self._ticking = call.number
            else:
                self._pushes.add(call.number)
            effects += self.calls.start(call, now_ns)
        return effects

    def _reads(self, clock: int) -> bool:
        """Is a pull of this clock under way, which must not see what the tick lets happen?"""
        if self.job is None or not self.job.holds_pushes:
            return False
        return any(c.kind is Kind.PULL and c.clock <= clock for c in self.calls.open.values())

    def _break(self, error: ResilientPsError, call: Call | None = None) -> list[SessionEffect]:
        """No further operation can succeed: end all that are open."""
        self.broken = error
        ops = self._end_all(call)
        return [*self.calls.strays(), *[Resolved(op, error=error) for op in ops]]

    def _end_all(self, call: Call | None) -> list[int]:
        """Deliver nothing any more: the operations that wait, with that of this `call`."""
        ops = [] if call is None or call.context is None else [call.context]
        if self._aftermath is not None:
            ops += self._aftermath.ops
            self.calls.last_number = self._aftermath.last_number
            self._aftermath = None
        if self._takeover is not None:
            ops.append(self._takeover[0])
            self._takeover = None
        ops += [
            c.context for c in [*self.calls.open.values(), *self._queue] if c.context is not None
        ]
        for number in list(self.calls.open):
            self.calls.abandon(number)
        self._queue.clear()
        self._pushes.clear()
        self._ticking = None
        return ops

    # -- errors

    def _why_late(self, call: Call) -> str:
        if call not in self._queue:
            return f"the {_name(call)} timed out; {self.calls.waits_for(call)}"
        text = f"the {_name(call)} waits for {self.unsettled - 1} earlier pushes and ticks"
        first = next(iter(self.calls.open.values()), None)
        if first is not None:
            text += f"; first the {_name(first)}: {self.calls.waits_for(first)}"
        return text


def _name(call: Call) -> str:
    kind = call.kind.name.lower()
    return f"{kind} of clock {call.clock}" if call.clock else kind


_WRITES = frozenset({Kind.PUSH, Kind.TUNE, Kind.TICK})
