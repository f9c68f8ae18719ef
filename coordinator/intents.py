"""Executes the intents of a cluster: joins and leaves of ranks, in the order of their numbers.

An intent lies in etcd before any shard is told of it. The coordinator runs its script (`takeover`)
over calls to all shards, then writes what came of it. Scripts are idempotent, so a successor simply
begins the open ones again.
"""

from __future__ import annotations

from dataclasses import replace

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Calls
from resilient_ps.consistency import BSP, JobSpec, parse_consistency
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
from resilient_ps.takeover import join, leave

INTENT_REF = 23


class IntentExecution:
    """The intent under way, if any."""

    def __init__(self, view: ClusterView, mandate: Mandate) -> None:
        self._view = view
        self._mandate = mandate
        self._calls: Calls | None = None
        self._script: tuple[IntentRecord, RunningScript] | None = None

    def advance(self, now_ns: int) -> list[Effect]:
        """Begin with the first open intent, unless one is under way."""
        intents = self._view.open_intents
        if self._script is not None or self._mandate.busy(INTENT_REF) or not intents:
            return []
        routing = self._routing()
        if routing is None or any(not owner.server for owner in routing.owners):
            return []
        intent = intents[0]
        job = self._view.job(intent.job)
        if job is None:
            return self._close(intent, "aborted", {"why": f"there is no job {intent.job!r}"})
        try:
            spec = job_spec(job)
        except BadInput as error:
            return self._close(intent, "aborted", {"why": str(error)})
        return self._begin(intent, spec, routing, now_ns)

    def drop(self) -> None:
        """We are not the coordinator (any more): leave the rest to whoever is."""
        if self._script is not None:
            self._script[1].abandon()
            self._script = None

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
        # numbers go on, so that a late answer to an earlier script's call is known as such
        last_number = 0 if self._calls is None else self._calls.last_number
        self._calls = Calls(routing, self._view.keys.prefix, last_number)
        worker = WorkerId(spec.job, intent.rank, intent.incarnation)
        if intent.kind == "join":
            script = join(intent.number, worker, routing.order)
        else:
            redo = isinstance(spec.consistency, BSP)
            script = leave(intent.number, worker, routing.order, redo=redo)
        running = RunningScript(script, self._calls)
        self._script = (intent, running)
        what = {"intent": intent.number, "kind": intent.kind, "job": spec.name, "rank": intent.rank}
        return [Log("info", "intent begins", what), *running.start(now_ns)]

    def _routing(self) -> Routing | None:
        config = self._view.config
        if config is None:
            return None
        return routing_of(config, self._view.shards, self._view.servers)

    def _on_answer(self, calls: Calls, answer: Answer, now_ns: int) -> list[Effect]:
        call, effects = calls.on_answer(answer, now_ns)
        if not self._mandate.elected:
            self.drop()
        if call is None or self._script is None:
            return effects
        intent, running = self._script
        effects += running.on_done(call, now_ns)
        if not running.over:
            return effects
        self.drop()
        if running.result is not None:
            return [*effects, *self._close(intent, "done", {"ticked": running.result.ticked})]
        failure = running.failure
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
