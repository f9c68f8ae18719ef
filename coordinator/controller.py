"""The coordinator: the one elected server that places shards, executes intents, watches workers.

Theory of operation. Every server is a candidate: when the coordinator's key is absent it tries to
write it under its own lease. What the winner does is guarded, in every transaction, by that key
being unchanged, so that a deposed coordinator can change nothing (`mandate`). Its whole state is in
etcd, but for timers and what workers said last: it looks at the view and does what is missing, so a
successor simply goes on.

* No configuration: it is created (by any server; the first wins).
* A lost shard, and what a restore leaves to be done: `recovery`, before anything else.
* The ring, first records, and where shards are to be: `reconciliation`.
* Quotas of namespaces: `quotas`.
* Open intents (join, leave, cut): `intents`, in the order of their numbers, one at a time.
* Checkpoints: whoever is given as `cuts`; without an object store nobody is (`no_store`).
* Graphs of tasks: `granting`.
* Workers that were not heard of: `registry` and `eviction`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF
from resilient_ps.coordinator import granting, reconciliation
from resilient_ps.coordinator.cuts import TIMERS_PREFIX, CutConductor
from resilient_ps.coordinator.eviction import EVICT_REF, Eviction
from resilient_ps.coordinator.granting import TASKS_REF, Granting
from resilient_ps.coordinator.intents import INTENT_REF, IntentExecution
from resilient_ps.coordinator.kv import KvAnswered, KvFailed, Put, Txn, absent
from resilient_ps.coordinator.mandate import CAMPAIGN_REF, Mandate
from resilient_ps.coordinator.no_store import NO_STORE_REF, NoStore
from resilient_ps.coordinator.quotas import QUOTA_REF, QUOTA_ROUTING_REF, QuotaRounds
from resilient_ps.coordinator.quotas import RESEND_TIMER as QUOTA_TIMER
from resilient_ps.coordinator.reconciliation import DESIRED_REF, PLACE_REF, RING_REF, Reconciliation
from resilient_ps.coordinator.records import ClusterConfig
from resilient_ps.coordinator.recovery import Recovery
from resilient_ps.coordinator.registry import SECOND_NS, Heartbeat, WorkerRegistry
from resilient_ps.coordinator.task_asks import SUBJECT
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.ids import DrawBits
from resilient_ps.machine import (
    Effect,
    Event,
    Log,
    MessageArrived,
    Peer,
    PeerLost,
    Send,
    SetTimer,
    TimerFired,
)
from resilient_ps.messages import Ask, Told

CONFIG_REF = 20
REFS = frozenset(
    {ROUTING_REF, CONFIG_REF, CAMPAIGN_REF, PLACE_REF, INTENT_REF, RING_REF, DESIRED_REF, EVICT_REF}
    | {NO_STORE_REF, QUOTA_REF, QUOTA_ROUTING_REF, TASKS_REF}
)
TIMER = "coordinator"
WATCH_TIMER = "coordinator/watch"
TIMERS = frozenset(
    {TIMER, WATCH_TIMER, RESEND_TIMER, reconciliation.TIMER, QUOTA_TIMER, granting.TIMER}
)
RETRY_NS = 200_000_000
WATCH_NS = 500_000_000  # how often an elected coordinator looks, when nothing happens
ASKED_CHARS_MAX = 24 * 1024  # the names of 64 namespaces, and why a task failed
SHARDS_PER_SERVER = 4


@dataclass(frozen=True, slots=True)
class ClusterWishes:
    """What this server would create a cluster with, and `grace_s`, which it uses as coordinator.

    `shards` 0: 4 per initial server. `grace_s`: how long a server may be gone before its shards are
    copied elsewhere.
    """

    initial_servers: int = 1
    shards: int = 0
    replicas: int = 1
    min_in_sync: int = 1
    vnodes: int = 64
    grace_s: float = 60.0

    def new_config(self, draw: DrawBits, created_by: str) -> ClusterConfig:
        """The configuration to propose for a new cluster, with an id of its own."""
        return self.config(f"{draw(128):032x}", created_by)

    def config(self, cluster_id: str, created_by: str) -> ClusterConfig:
        """The configuration to propose."""
        shards = self.shards or SHARDS_PER_SERVER * self.initial_servers
        return ClusterConfig(
            cluster_id=cluster_id,
            incarnation=1,
            shards=shards,
            initial_servers=self.initial_servers,
            replicas=self.replicas,
            min_in_sync=self.min_in_sync,
            vnodes=self.vnodes,
            created_by=created_by,
        )


class Controller:
    """A candidate for coordinator, and the coordinator while it is elected."""

    def __init__(
        self,
        view: ClusterView,
        server: str,
        process: int,
        wishes: ClusterWishes,
        draw: DrawBits,
        mandate: Mandate | None = None,
        cuts: CutConductor | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self._view = view
        self._wishes = wishes
        self._draw = draw
        self._watch_at_ns: int | None = None
        self._mandate = mandate or Mandate(view, server, process)
        self._cuts = cuts or NoStore(view, self._mandate)
        self._recovery = recovery
        self._intents = IntentExecution(view, self._mandate, self._cuts)
        self._quotas = QuotaRounds(view, self._mandate)
        self._granting = Granting(view, self._mandate)
        grace_ns = int(wishes.grace_s * SECOND_NS)
        self._reconciliation = Reconciliation(view, self._mandate, draw, grace_ns)
        self._registry = WorkerRegistry()
        self._eviction = Eviction(view, self._mandate, self._registry)

    @property
    def elected(self) -> bool:
        """Are we the coordinator, as far as we know? Every transaction checks it again."""
        return self._mandate.elected

    @property
    def _is_at_work(self) -> bool:
        """Are we the coordinator of a cluster that exists, and is not being rolled back?"""
        back = self._recovery is not None and self._recovery.busy
        return self.elected and self._view.config is not None and not back

    # -- events

    def look(self, lease: int, now_ns: int) -> list[Effect]:
        """The view, or our lease, has changed: do what is missing. `lease` 0: we have none."""
        self._mandate.lease = lease
        if not lease or self._view.revision == 0:
            return self._drop()
        if self._view.config is None:
            recovery = self._recovery
            stored = recovery is not None and recovery.stored
            return recovery.create(now_ns) if stored and recovery else self._create_config()
        if not self.elected:
            return [*self._drop(), *self._mandate.campaign()]
        effects = self._reconciliation.advance(now_ns)
        if self._recovery is not None:
            effects += self._recovery.advance(now_ns)
            if self._recovery.busy:  # nothing else is begun before that is over
                self._intents.drop()
                self._quotas.drop()
                return [*effects, *self._granting.expire(now_ns), *self._watch(now_ns)]
        return [
            *effects,
            *self._cuts.advance(now_ns),
            *self._intents.advance(now_ns),
            *self._quotas.advance(now_ns),
            *self._granting.advance(now_ns),
            *self._eviction.advance(now_ns),
            *self._watch(now_ns),
        ]

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """An event that is for the coordinator's calls to shards or to etcd."""
        match event:
            case MessageArrived(_, Told() as told):
                return self._cuts.hear(told, now_ns) if self.elected else []
            case MessageArrived() | PeerLost():
                if isinstance(event, PeerLost):
                    self._granting.on_lost(event.peer)
                effects = self._quotas.handle(event, now_ns)
                return [*effects, *self._intents.handle(event, now_ns)]
            case TimerFired(name) if name == QUOTA_TIMER:
                return self._quotas.handle(event, now_ns)
            case KvAnswered(ref) | KvFailed(ref) if ref == QUOTA_ROUTING_REF:
                return self._quotas.handle(event, now_ns)
            case TimerFired(name) if name == RESEND_TIMER:
                return self._intents.handle(event, now_ns)
            case KvAnswered(ref) | KvFailed(ref) if ref == TASKS_REF:
                return self._granting.answered(event, now_ns)
            case KvAnswered(ref) | KvFailed(ref) if ref == ROUTING_REF:
                return self._intents.handle(event, now_ns)
            case TimerFired(name) if name.startswith(TIMERS_PREFIX) and self._is_at_work:
                return [*self._cuts.advance(now_ns), *self._intents.advance(now_ns)]
            case TimerFired(name):
                if name == WATCH_TIMER:
                    self._watch_at_ns = None
                return self.look(self._mandate.lease, now_ns)
            case KvAnswered(ref):
                self._mandate.answered(ref)
                # what it changed arrives through the watch; what it failed to is tried again
                return [SetTimer(TIMER, now_ns + RETRY_NS)]
            case KvFailed(ref, error):
                self._mandate.answered(ref)
                why = {"error": str(error)}
                return [Log("warning", "etcd call failed", why), SetTimer(TIMER, now_ns + RETRY_NS)]
            case _:
                return []

    def on_ask(self, peer: Peer, ask: Ask, now_ns: int) -> list[Effect]:
        """A question that is for the coordinator: JSON text, an object with one field.

        {"heartbeat": {...}}: a worker lives. {"goodbye": {...}}: it has ended. {"workers": {}}:
        which ones live? {"checkpoints": {}}, {"tasks": {}}: how do they stand? {"task": {...}}: a
        holder asks for a task; it is answered when there is one.
        """
        try:
            subject, fields = _parsed(ask.what)
            if subject == SUBJECT and self.elected:
                return self._granting.ask(peer, ask.request, fields, now_ns)
            told = self._answer(subject, fields, now_ns)
        except BadInput as error:
            told = {"error": str(error)}
        return [Send(peer, Told(ask.request, json.dumps(told)))]

    # --

    def _answer(self, subject: str, fields: Any, now_ns: int) -> dict[str, Any]:
        if not self.elected:
            return {"error": f"{self._mandate.server} is not the coordinator", "elected": False}
        match subject:
            case "heartbeat":
                self._registry.hear(Heartbeat.from_json(fields), now_ns)
                return {"elected": True}
            case "goodbye":
                self._registry.part(Heartbeat.from_json(fields), now_ns)
                return {"elected": True}
            case "workers":
                return {"elected": True, **self._registry.status(now_ns)}
            case "checkpoints":
                recovery = {} if self._recovery is None else self._recovery.status()
                return {"elected": True, **self._cuts.status(now_ns), "recovery": recovery}
            case "tasks":
                return {"elected": True, "graphs": self._granting.status()}
            case _:
                raise BadInput(f"a coordinator knows nothing of {subject[:40]!r}")

    def _create_config(self) -> list[Effect]:
        key = self._view.keys.config
        config = self._wishes.new_config(self._draw, self._mandate.server)
        txn = Txn((absent(key),), (Put(key, config.to_bytes()),))
        return self._mandate.ask(CONFIG_REF, txn, config.cluster_id.encode())

    def _watch(self, now_ns: int) -> list[Effect]:
        """Look again after a while: grace times and silent workers make no events."""
        if self._watch_at_ns is not None:
            return []
        self._watch_at_ns = now_ns + WATCH_NS
        return [SetTimer(WATCH_TIMER, self._watch_at_ns)]

    def _drop(self) -> list[Effect]:
        if self._recovery is not None:
            self._recovery.drop()
        self._cuts.drop()
        self._intents.drop()
        self._quotas.drop()
        self._reconciliation.drop()
        self._registry.drop()
        return self._granting.drop()


def _parsed(what: str) -> tuple[str, Any]:
    if len(what) > ASKED_CHARS_MAX:
        raise BadInput(f"a question of {len(what)} characters; at most {ASKED_CHARS_MAX}")
    try:
        asked = json.loads(what)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the question is no JSON: {error}") from error
    if not isinstance(asked, dict) or len(asked) != 1:
        raise BadInput("a question is a JSON object with one field")
    return next(iter(asked.items()))
