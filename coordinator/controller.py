"""The coordinator: the one elected server that places shards and executes intents.

Theory of operation. Every server is a candidate: when the coordinator's key is absent it tries to
write it under its own lease. What the winner does is guarded, in every transaction, by that key
being unchanged, so that a deposed coordinator can change nothing. Its whole state is in etcd: it
looks at the view and does what is missing, so a successor simply goes on.

* No configuration: it is created (by any server; the first wins).
* Configuration, enough servers, no shards: the ring places them.
* Open intents (join, leave): executed in the order of their numbers, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Calls
from resilient_ps.consistency import BSP, JobSpec, parse_consistency
from resilient_ps.coordinator.kv import (
    Compare,
    KvAnswered,
    KvCall,
    KvFailed,
    Put,
    Txn,
    TxnResult,
    absent,
    unchanged,
)
from resilient_ps.coordinator.placement import place
from resilient_ps.coordinator.records import (
    ClusterConfig,
    IntentRecord,
    JobRecord,
    ShardRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.coordinator.ring import Ring, RingMember
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.ids import DrawBits, Epoch, WorkerId
from resilient_ps.machine import Effect, Event, Log, MessageArrived, PeerLost, SetTimer, TimerFired
from resilient_ps.messages import Answer, Status
from resilient_ps.routing import Routing, routing_of
from resilient_ps.scripts import RunningScript
from resilient_ps.takeover import join, leave

CONFIG_REF, CAMPAIGN_REF, PLACE_REF, INTENT_REF, REDRAW_REF = 20, 21, 22, 23, 24
REFS = frozenset({ROUTING_REF, CONFIG_REF, CAMPAIGN_REF, PLACE_REF, INTENT_REF, REDRAW_REF})
TIMER = "coordinator"
TIMERS = frozenset({TIMER, RESEND_TIMER})
RETRY_NS = 200_000_000
PUTS_PER_TXN = 100
SHARDS_PER_SERVER = 4


@dataclass(frozen=True, slots=True)
class ClusterWishes:
    """What this server would create a cluster with. `shards` 0: 4 per initial server."""

    initial_servers: int = 1
    shards: int = 0
    replicas: int = 1
    vnodes: int = 64

    def config(self, cluster_id: str, created_by: str) -> ClusterConfig:
        """The configuration to propose."""
        shards = self.shards or SHARDS_PER_SERVER * self.initial_servers
        return ClusterConfig(
            cluster_id, 1, shards, self.initial_servers, self.replicas, self.vnodes, created_by
        )


class Controller:
    """A candidate for coordinator, and the coordinator while it is elected."""

    def __init__(
        self, view: ClusterView, server: str, process: int, wishes: ClusterWishes, draw: DrawBits
    ) -> None:
        self._view = view
        self._server = server
        self._me = f'{{"process": {process}, "server": "{server}"}}'.encode()
        self._wishes = wishes
        self._draw = draw
        self._lease = 0
        self._busy: set[int] = set()  # refs of calls to etcd under way
        self._calls: Calls | None = None
        self._script: tuple[IntentRecord, RunningScript] | None = None

    # -- events

    def look(self, lease: int, now_ns: int) -> list[Effect]:
        """The view, or our lease, has changed: do what is missing. `lease` 0: we have none."""
        self._lease = lease
        if not lease or self._view.revision == 0:
            self._drop_script()
            return []
        if self._view.config is None:
            return self._create_config()
        if not self.elected:
            self._drop_script()
            return self._campaign()
        return [*self._place(), *self._next_intent(now_ns)]

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """An event that is for the coordinator's calls to shards or to etcd."""
        match event:
            case MessageArrived(_, Answer() as answer) if self._calls is not None:
                return self._on_answer(answer, now_ns)
            case PeerLost(peer) if self._calls is not None:
                return self._calls.on_peer_lost(peer, now_ns)
            case TimerFired(name) if name == RESEND_TIMER and self._calls is not None:
                return self._calls.on_timer(now_ns)
            case TimerFired(_):
                return self.look(self._lease, now_ns)
            case KvAnswered(ref) | KvFailed(ref) if ref == ROUTING_REF and self._calls is not None:
                return self._calls.on_routing(self._routing(), now_ns)
            case KvAnswered(ref, TxnResult()):
                self._busy.discard(ref)
                # what it changed arrives through the watch; what it failed to is tried again
                return [SetTimer(TIMER, now_ns + RETRY_NS)]
            case KvFailed(ref, error):
                self._busy.discard(ref)
                why = {"error": str(error)}
                return [Log("warning", "etcd call failed", why), SetTimer(TIMER, now_ns + RETRY_NS)]
            case _:
                return []

    # -- election

    @property
    def elected(self) -> bool:
        """Are we the coordinator, as far as we know? Every transaction checks it again."""
        held = self._view.items.get(self._view.keys.coordinator_leader)
        return held is not None and held.value == self._me and held.lease == self._lease

    def _campaign(self) -> list[Effect]:
        key = self._view.keys.coordinator_leader
        if key in self._view.items:
            return []
        txn = Txn((absent(key),), (Put(key, self._me, self._lease),))
        return self._txn(CAMPAIGN_REF, txn, self._me)

    def _create_config(self) -> list[Effect]:
        key = self._view.keys.config
        config = self._wishes.config(f"{self._draw(128):032x}", self._server)
        txn = Txn((absent(key),), (Put(key, config.to_bytes()),))
        return self._txn(CONFIG_REF, txn, config.cluster_id.encode())

    def _txn(self, ref: int, txn: Txn, nonce: bytes = b"") -> list[Effect]:
        if ref in self._busy:
            return []
        self._busy.add(ref)
        return [KvCall(ref, txn, nonce)]

    def _guarded(self, *puts: Put, guards: tuple[Compare, ...] = ()) -> Txn:
        """A transaction that only the present coordinator can make."""
        assert self.elected, "only the coordinator writes with the coordinator's guard"
        key = self._view.keys.coordinator_leader
        elected = unchanged(key, self._view.items[key].mod_revision)
        return Txn((elected, *guards), puts)

    # -- placement

    def _place(self) -> list[Effect]:
        """Give every shard that has no record its first owners, once enough servers are there."""
        config = self._view.config
        assert config is not None
        held = {record.shard for record in self._view.shards}
        missing = [shard for shard in range(config.shards) if shard not in held]
        servers = self._view.servers
        if not missing or len(servers) < config.initial_servers:
            return []
        processes = {server.server: server.process for server in servers}
        members = tuple(RingMember(s.server, s.weight, s.zone) for s in servers)
        placement = place(
            Ring(members, config.vnodes), config.shards, config.replicas, load_factor=1.0
        )
        batch = missing[:PUTS_PER_TXN]
        epoch = Epoch(config.incarnation, 1)
        nonce = f"{self._draw(64):016x}"
        puts, guards = [], []
        for shard in batch:
            primary = placement[shard][0]
            record = ShardRecord(
                shard, epoch, primary, processes[primary], (primary,), (), 1, nonce
            )
            key = self._view.keys.shard(shard)
            puts.append(Put(key, record.to_bytes()))
            guards.append(absent(key))
        return self._txn(PLACE_REF, self._guarded(*puts, guards=tuple(guards)), nonce.encode())

    # -- intents

    def _routing(self) -> Routing | None:
        config = self._view.config
        if config is None:
            return None
        return routing_of(config, self._view.shards, self._view.servers)

    def _next_intent(self, now_ns: int) -> list[Effect]:
        """Begin with the first open intent, unless one is under way."""
        intents = self._view.open_intents
        if self._script is not None or INTENT_REF in self._busy or not intents:
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
        # numbers go on, so that a late answer to an earlier script's call is known as such
        last_number = 0 if self._calls is None else self._calls.last_number
        self._calls = Calls(routing, self._view.keys.prefix, last_number)
        worker = WorkerId(job.job_id, intent.rank, intent.incarnation)
        if intent.kind == "join":
            script = join(intent.number, worker, routing.order)
        else:
            redo = isinstance(spec.consistency, BSP)
            script = leave(intent.number, worker, routing.order, redo=redo)
        running = RunningScript(script, self._calls)
        self._script = (intent, running)
        what = {"intent": intent.number, "kind": intent.kind, "job": job.name, "rank": intent.rank}
        return [Log("info", "intent begins", what), *running.start(now_ns)]

    def _on_answer(self, answer: Answer, now_ns: int) -> list[Effect]:
        assert self._calls is not None
        call, effects = self._calls.on_answer(answer, now_ns)
        if not self.elected:
            self._drop_script()
        if call is None or self._script is None:
            return effects
        intent, running = self._script
        effects += running.on_done(call, now_ns)
        if not running.over:
            return effects
        self._drop_script()
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
        held = self._view.items.get(key)
        if held is None:  # somebody has removed it
            return []
        record = replace(intent, state=state, result=result)  # type: ignore[arg-type]
        txn = self._guarded(
            Put(key, record.to_bytes()), guards=(unchanged(key, held.mod_revision),)
        )
        what = {"intent": intent.number, "state": state, **result}
        return [Log("info", "intent ends", what), *self._txn(INTENT_REF, txn)]

    def _redraw(self, intent: IntentRecord) -> list[Effect]:
        """A process took the rank while the intent was open: try with a newer incarnation."""
        keys = self._view.keys
        counter, key = keys.rank(intent.job, intent.rank), keys.intent(intent.number)
        drawn, held = self._view.items.get(counter), self._view.items.get(key)
        if held is None:
            return []
        try:
            last = read_counter(None if drawn is None else drawn.value, counter)
        except BadInput as error:
            return self._close(intent, "aborted", {"why": str(error)})
        record = replace(intent, incarnation=last + 1)
        guards = (
            unchanged(counter, 0 if drawn is None else drawn.mod_revision),
            unchanged(key, held.mod_revision),
        )
        txn = self._guarded(
            Put(counter, counter_bytes(last + 1)), Put(key, record.to_bytes()), guards=guards
        )
        return self._txn(INTENT_REF, txn)

    def _drop_script(self) -> None:
        if self._script is not None:
            self._script[1].abandon()
            self._script = None


def job_spec(record: JobRecord) -> JobSpec:
    """The specification in a job's record. Raises `BadInput` for an unknown mode."""
    try:
        mode = parse_consistency(record.consistency)
    except BadInput as error:
        raise BadInput(f"job {record.name!r} in etcd: {error}") from error
    return JobSpec(record.job_id, record.name, record.ranks, mode)
