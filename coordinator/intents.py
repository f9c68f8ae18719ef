"""Executes the intents of a cluster: joins, leaves and cuts, in the order of their numbers.

An intent lies in etcd before any shard is told of it. The coordinator runs its script (`takeover`,
`cuts`) over calls to all shards, then writes what came of it. Scripts are idempotent, so that a
successor simply begins the open ones again. A cut stays open after all shards were told, for as
long as it takes; later intents need not wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Calls
from resilient_ps.consistency import BSP, JobSpec, Tasks, parse_consistency
from resilient_ps.coordinator.cuts import CutConductor, CutPlan, abort, cut, is_wish
from resilient_ps.coordinator.kv import KvAnswered, KvFailed, Put
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import IntentRecord, JobRecord, counter_bytes, read_counter
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.ids import WorkerId
from resilient_ps.machine import Effect, Event, Log, MessageArrived, PeerLost, TimerFired
from resilient_ps.messages import Answer, Status
from resilient_ps.routing import Routing, routing_of
from resilient_ps.scripts import RunningScript
from resilient_ps.takeover import Script, join, leave

INTENT_REF = 23


@dataclass(slots=True)
class _Running:
    """The script under way. `aborts`: it gives the cut of the intent up."""

    intent: IntentRecord
    script: RunningScript
    aborts: bool


class IntentExecution:
    """The intent under way, if any."""

    def __init__(self, view: ClusterView, mandate: Mandate, cuts: CutConductor) -> None:
        self._view = view
        self._mandate = mandate
        self._cuts = cuts
        self._calls: Calls | None = None
        self._running: _Running | None = None

    def advance(self, now_ns: int) -> list[Effect]:
        """Begin with the first open intent that shards are to hear of, unless one is under way."""
        self._drop_stale()
        if self._running is not None or self._mandate.busy(INTENT_REF):
            return []
        aborting = self._cuts.to_abort()
        intent = self._next(aborting)
        routing = None if intent is None else self._routing()  # it is a look at all shards
        if intent is None or routing is None or any(not owner.server for owner in routing.owners):
            return []
        if intent.kind == "cut":
            return self._begin_cut(intent, routing, now_ns, aborts=intent.number == aborting)
        job = self._view.job(intent.job)
        if job is None:
            return self._close(intent, "aborted", {"why": f"there is no job {intent.job!r}"})
        try:
            spec = job_spec(job)
        except BadInput as error:
            return self._close(intent, "aborted", {"why": str(error)})
        if isinstance(spec.consistency, Tasks):
            why = f"job {spec.name!r} is a graph of tasks: its lanes neither join nor leave"
            return self._close(intent, "aborted", {"why": why})
        return self._begin(intent, spec, routing, now_ns)

    def drop(self) -> None:
        """We are not the coordinator (any more): leave the rest to whoever is."""
        if self._running is not None:
            self._running.script.abandon()
            self._running = None

    def _drop_stale(self) -> None:
        """What is under way has been closed by somebody else, or is a cut that is to be aborted."""
        if self._running is None:
            return
        intent = self._running.intent
        held = self._view.items.get(self._view.keys.intent(intent.number))
        closed = held is None or all(intent.number != o.number for o in self._view.open_intents)
        given_up = self._cuts.to_abort() == intent.number and not self._running.aborts
        if closed or given_up:
            self.drop()

    def _next(self, aborting: int) -> IntentRecord | None:
        """In the order of numbers; but a cut that is given up comes first."""
        waiting = [intent for intent in self._view.open_intents if self._is_to_run(intent)]
        first = [intent for intent in waiting if intent.number == aborting]
        return next(iter([*first, *waiting]), None)

    def _is_to_run(self, intent: IntentRecord) -> bool:
        """Wishes are no cuts yet; a cut that was told waits for workers, not for us."""
        if intent.kind != "cut":
            return intent.kind != "rollback"
        if intent.number == self._cuts.to_abort():
            return True
        return not is_wish(intent) and self._cuts.awaits_telling(intent.number)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """An event that is for the calls to shards."""
        if self._calls is None:
            return []
        match event:
            case MessageArrived(_, Answer() as answer):
                return self._on_answer(self._calls, answer, now_ns)
            case PeerLost(peer):
                return self._calls.on_peer_lost(peer, now_ns)
            case TimerFired(name) if name == RESEND_TIMER:
                return self._calls.on_timer(now_ns)
            case KvAnswered(ref) | KvFailed(ref) if ref == ROUTING_REF:
                return self._calls.on_routing(self._routing(), now_ns)
            case _:
                return []

    def _begin(
        self, intent: IntentRecord, spec: JobSpec, routing: Routing, now_ns: int
    ) -> list[Effect]:
        worker = WorkerId(spec.job, intent.rank, intent.incarnation)
        if intent.kind == "join":
            script = join(intent.number, worker, routing.order)
        else:
            redo = isinstance(spec.consistency, BSP)
            script = leave(intent.number, worker, routing.order, redo=redo)
        what = {"intent": intent.number, "kind": intent.kind, "job": spec.name, "rank": intent.rank}
        log = Log("info", "intent begins", what)
        return [log, *self._start(intent, script, routing, now_ns, aborts=False)]

    def _begin_cut(
        self, intent: IntentRecord, routing: Routing, now_ns: int, *, aborts: bool
    ) -> list[Effect]:
        if aborts:
            script = abort(intent.number, routing.order)
            return self._start(intent, script, routing, now_ns, aborts=True)
        try:
            plan = CutPlan.of(intent)
            assert plan is not None, "a wish is not told"
            script = cut(intent.number, plan.cut(intent.number), routing.order)
        except BadInput as error:
            return self._close(intent, "aborted", {"why": str(error)})
        what = {"intent": intent.number, "kind": "cut", "clocks": plan.clocks}
        log = Log("info", "intent begins", what)
        return [log, *self._start(intent, script, routing, now_ns, aborts=False)]

    def _start(
        self, intent: IntentRecord, script: Script, routing: Routing, now_ns: int, *, aborts: bool
    ) -> list[Effect]:
        # numbers go on, so that a late answer to an earlier script's call is known as such
        last_number = 0 if self._calls is None else self._calls.last_number
        self._calls = Calls(routing, self._view.keys.prefix, last_number)
        running = RunningScript(script, self._calls)
        self._running = _Running(intent, running, aborts)
        return running.start(now_ns)

    def _routing(self) -> Routing | None:
        config = self._view.config
        if config is None:
            return None
        return routing_of(config, self._view.shards, self._view.servers)

    def _on_answer(self, calls: Calls, answer: Answer, now_ns: int) -> list[Effect]:
        call, effects = calls.on_answer(answer, now_ns)
        if not self._mandate.elected:
            self.drop()
        if call is None or self._running is None:
            return effects
        intent, script, aborts = self._running.intent, self._running.script, self._running.aborts
        effects += script.on_done(call, now_ns)
        if not script.over:
            return effects
        self.drop()
        if aborts:
            return [*effects, *self._cuts.on_cut_aborted(intent.number, now_ns)]
        if intent.kind == "cut":
            return [*effects, *self._cuts.on_cut_told(intent.number, script.answers, now_ns)]
        if script.result is not None:
            return [*effects, *self._close(intent, "done", {"ticked": script.result.ticked})]
        failure = script.failure
        assert failure is not None
        if failure.status is Status.FENCED:
            return [*effects, *self._redraw(intent)]
        why = failure.text.decode(errors="replace") or failure.status.name
        return [*effects, *self._close(intent, "aborted", {"why": why})]

    def _close(self, intent: IntentRecord, state: str, result: dict[str, object]) -> list[Effect]:
        key = self._view.keys.intent(intent.number)
        if key not in self._view.items:  # somebody has removed it
            return []
        record = replace(intent, state=state, result=result)  # type: ignore[arg-type]
        put = Put(key, record.to_bytes())
        txn = self._mandate.order(put, guards=(self._view.as_seen(key),))
        what = {"intent": intent.number, "state": state, **result}
        return [Log("info", "intent ends", what), *self._mandate.ask(INTENT_REF, txn)]

    def _redraw(self, intent: IntentRecord) -> list[Effect]:
        """A process took the rank while the intent was open: try with a newer incarnation."""
        keys = self._view.keys
        counter, key = keys.rank(intent.job, intent.rank), keys.intent(intent.number)
        drawn = self._view.items.get(counter)
        if key not in self._view.items:
            return []
        try:
            last = read_counter(None if drawn is None else drawn.value, counter)
        except BadInput as error:
            return self._close(intent, "aborted", {"why": str(error)})
        record = replace(intent, incarnation=last + 1)
        guards = (self._view.as_seen(counter), self._view.as_seen(key))
        puts = (Put(counter, counter_bytes(last + 1)), Put(key, record.to_bytes()))
        return self._mandate.ask(INTENT_REF, self._mandate.order(*puts, guards=guards))


def job_spec(record: JobRecord) -> JobSpec:
    """The specification in a job's record. Raises `BadInput` for an unknown mode."""
    try:
        mode = parse_consistency(record.consistency)
    except BadInput as error:
        raise BadInput(f"job {record.name!r} in etcd: {error}") from error
    return JobSpec(record.job_id, record.name, record.ranks, mode)
