"""A client's side of the protocol: what to send when, so that nothing is lost or doubled.

Theory of operation. A session without a worker reads. With one it first takes its rank over (see
`takeover`), and from then on keeps the worker's rules:

* pushes of a clock are numbered from 1, over all shards; each part names its predecessor there;
* `tick(c)` goes to no shard before every shard has acknowledged the pushes of c;
* no push of c+1 goes out before every shard has acknowledged `tick(c)`. Pulls do not wait for that.

So writes stand in a queue, in program order, and leave when the rules let them. Under BSP a tick
also waits for the answers to pulls of its clock: sent again after a broken connection, they would
find a later state. Every operation has
a number given by the caller, and ends in one `Resolved`. An operation that the caller abandons at
its deadline is forgotten if it is a pull; a push or tick stays, and is still delivered.

Invariants: at most one tick is under way; while it is, no push is; `clock` is the open clock.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, TypeAlias

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Call, Calls, Piece, Split
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KvAnswered, KvFailed, ReadResult
from resilient_ps.errors import (
    DeadlineExceeded,
    Fenced,
    FixTheCall,
    NotFound,
    NotRepeatable,
    Reopen,
    ResilientPsError,
)
from resilient_ps.ids import READER, WorkerId
from resilient_ps.machine import Drop, Effect, Event, MessageArrived, PeerLost, TimerFired
from resilient_ps.messages import Answer, Kind, PartAnswer, Refuse, Status
from resilient_ps.routing import PEER_PREFIX, Routing, refreshed
from resilient_ps.scripts import RunningScript
from resilient_ps.takeover import Settled, Step, start_worker


class Resolved(NamedTuple):
    """Operation `op` is over: with a value, or with an error."""

    op: int
    value: Any = None
    error: ResilientPsError | None = None


SessionEffect: TypeAlias = Effect | Resolved

_new = tuple.__new__  # several times faster than a named tuple's own constructor


class Session:
    """One client's (or worker's) protocol machine."""

    def __init__(self, cluster: str, routing: Routing) -> None:
        self.worker: WorkerId = READER
        self.job: JobSpec | None = None
        self.clock = 0
        self.cursor = b""
        self.broken: ResilientPsError | None = None
        self._keys = ClusterKeys(cluster)
        self.calls = Calls(routing, self._keys.prefix)
        self._n = 0
        self._last: dict[int, int] = {}  # by shard: the last push sent there in this clock
        self._queue: deque[Call] = deque()  # writes that may not leave yet
        self._pushes: set[int] = set()  # pushes under way
        self._ticking: int | None = None
        self._takeover: tuple[int, RunningScript] | None = None

    @property
    def routing(self) -> Routing:
        """Who serves what, as far as is known."""
        return self.calls.routing

    @property
    def unsettled(self) -> int:
        """Pushes and ticks that not all shards have acknowledged."""
        return len(self._queue) + len(self._pushes) + (self._ticking is not None)

    # -- operations

    def open_worker(
        self, op: int, job: JobSpec, worker: WorkerId, now_ns: int
    ) -> list[SessionEffect]:
        """Take the rank over. Resolves to `Settled`; the next clock is then open."""
        self.worker, self.job = worker, job
        script = start_worker(
            worker,
            self.routing.order,
            job.to_json().encode(),
            redo=isinstance(job.consistency, BSP),
        )
        running = RunningScript(script, self.calls)
        self._takeover = (op, running)
        return self._look_at_takeover(running.start(now_ns))

    def broadcast(self, op: int, step: Step, now_ns: int) -> list[SessionEffect]:
        """One request to many shards that is no worker's write (tables, jobs)."""
        call = self._call(op, step.kind, step.shards)
        call.worker, call.n, call.table, call.text = step.worker, step.n, step.table, step.text
        return [*self.calls.start(call, now_ns)]

    def pull(
        self, op: int, table: int, split: Split, now_ns: int, *, wait_ns: int
    ) -> list[SessionEffect]:
        """Read at the open clock; values are received in `split.out`."""
        if self.broken is not None:
            return [Resolved(op, error=self.broken)]
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

    def tune(self, op: int, table: int, rate: float, now_ns: int) -> list[SessionEffect]:
        """Change a table's learning rate on all shards: a write like a push."""
        pieces = {shard: Piece() for shard in self.routing.order}
        call = self._call(op, Kind.TUNE, tuple(pieces))
        call.table, call.rate = table, rate
        return self._write(call, pieces, now_ns)

    def tick(self, op: int, cursor: bytes, now_ns: int) -> list[SessionEffect]:
        """End the open clock. Resolves when all shards have acknowledged; the next one is open."""
        if self.broken is not None:
            return [Resolved(op, error=self.broken)]
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
        return [Resolved(op, error=error), *self._pump(now_ns)]

    def _forget(self, op: int) -> DeadlineExceeded:
        if self._takeover is not None and self._takeover[0] == op:
            running = self._takeover[1]
            text = running.waits_for()
            running.abandon()
            self._takeover = None
            return DeadlineExceeded(f"taking over rank {self.worker.rank} timed out; {text}")
        call = next((c for c in [*self.calls.open.values(), *self._queue] if c.context == op), None)
        if call is None:
            return DeadlineExceeded(f"operation {op} timed out")
        if call.kind not in _WRITES:
            self.calls.abandon(call.number)
        return DeadlineExceeded(self._why_late(call))

    def why_unsettled(self) -> DeadlineExceeded:
        """The error for who waited in vain for all writes to be acknowledged."""
        writes = [call for call in self.calls.open.values() if call.kind in _WRITES]
        return DeadlineExceeded(self._why_late([*writes, *self._queue][0]))

    # -- events

    def handle(self, event: Event, now_ns: int) -> list[SessionEffect]:
        """One step of the machine."""
        match event:
            case MessageArrived(_, Answer() as answer):
                return self._on_answer(answer, now_ns)
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
        """Leave connections to processes that are gone, as they may stand for ever."""
        before = self.calls.routing.servers
        effects = self.calls.on_routing(routing, now_ns)
        now = self.calls.routing.servers
        gone = [name for name, at in before.items() if name not in now or now[name] != at]
        drops = [Drop(PEER_PREFIX + name, "its process is gone") for name in sorted(gone)]
        return [*drops, *effects]

    def _on_answer(self, answer: Answer, now_ns: int) -> list[SessionEffect]:
        call, effects = self.calls.on_answer(answer, now_ns)
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
                return [*effects, *self._break(self._error(failure), call)]
            return [*effects, Resolved(call.context, call.clock), *self._pump(now_ns)]
        error = None if failure is None else self._error(failure)
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
                *self._break(self._error(running.failure)),
                Resolved(op, error=self.broken),
            ]
        settled = running.result
        assert isinstance(settled, Settled)
        self.clock = settled.ticked + 1
        self.cursor = settled.cursor
        return [*effects, Resolved(op, settled)]

    # -- writes

    def _call(self, op: int, kind: Kind, shards: tuple[int, ...]) -> Call:
        return Call(self.calls.next_number(), kind, shards, context=op)

    def _write(self, call: Call, pieces: dict[int, Piece], now_ns: int) -> list[SessionEffect]:
        if self.broken is not None:
            return [Resolved(call.context, error=self.broken)]
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
        """BSP: is a pull of this clock under way, which must not see what the tick lets happen?"""
        if self.job is None or not isinstance(self.job.consistency, BSP):
            return False
        return any(c.kind is Kind.PULL and c.clock <= clock for c in self.calls.open.values())

    def _break(self, error: ResilientPsError, call: Call | None = None) -> list[SessionEffect]:
        """No further operation can succeed: end all that are open."""
        self.broken = error
        ops = [] if call is None else [call.context]
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
        return [Resolved(op, error=error) for op in ops]

    # -- errors

    def _error(self, answer: PartAnswer) -> ResilientPsError:
        """A shard's refusal, as the error to raise."""
        text = answer.text.decode(errors="replace")
        where = f"shard {answer.shard}"
        me = (
            f"rank {self.worker.rank}"
            if self.job is None
            else (f"rank {self.worker.rank} of job {self.job.name!r}")
        )
        match answer.status:
            case Status.FENCED:
                return Fenced(
                    f"{me} was taken over by another process (incarnation {answer.value}, this one "
                    f"is {self.worker.incarnation}): end this process"
                )
            case Status.DEADLINE:
                return DeadlineExceeded(f"the pull waited until its deadline on {where}: {text}")
            case Status.NOT_REPEATABLE:
                return NotRepeatable(f"{where}: {text}")
            case Status.UNKNOWN:
                return NotFound(text)
            case Status.LEFT:
                return Reopen(f"{where}: {text}")
            case _:
                return FixTheCall(f"{where}: {text}")

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
