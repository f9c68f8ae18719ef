"""A server as one machine: membership, coordinator candidate, and its replicas of shards.

`build_node` is the only way to make one: the real host and the simulator use it alike. Its parts:
`Peers` (connections), `Replicas` (replication), `Requests` (clients), `Membership` (our lease) and
`Controller` (what we do when we are elected).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from resilient_ps import digests, replicas, requests, unsafe
from resilient_ps.checkpoints import clocks, farewell, imaging, loading
from resilient_ps.checkpoints.conductor import Conductor
from resilient_ps.checkpoints.farewell import Farewell
from resilient_ps.checkpoints.imaging import Imaging
from resilient_ps.checkpoints.loading import Loading
from resilient_ps.checkpoints.progress import asked_cut
from resilient_ps.checkpoints.recovery import Recovery
from resilient_ps.checkpoints.refs import (
    CONDUCTOR_BLOBS,
    CONDUCTOR_REFS,
    FAREWELL_REF,
    IMAGING_BLOBS,
    JOBS_REF,
    LOADING_BLOBS,
    ROLLBACK_REFS,
)
from resilient_ps.coordinator import controller, membership
from resilient_ps.coordinator.controller import Controller
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    KeyValue,
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvReset,
    KvWatch,
    Read,
    ReadResult,
)
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.membership import Membership
from resilient_ps.coordinator.records import Member
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import Reopen
from resilient_ps.figures import Figure
from resilient_ps.ids import DrawBits
from resilient_ps.machine import (
    Drop,
    Effect,
    Event,
    Exit,
    Log,
    MessageArrived,
    PeerLost,
    Send,
    SetTimer,
    Started,
    StopAsked,
    TimerFired,
)
from resilient_ps.messages import (
    Answer,
    Append,
    Appended,
    Ask,
    Copy,
    Hello,
    Refuse,
    Request,
    Told,
    Welcome,
)
from resilient_ps.namespace_figures import namespace_figures
from resilient_ps.node_settings import NodeSettings
from resilient_ps.peers import Peers
from resilient_ps.quick_requests import EarlyPush
from resilient_ps.replicas import Replicas
from resilient_ps.replication.applying import InParallel, one_by_one
from resilient_ps.replication.home import REPLICA_REF, Home
from resilient_ps.replication.replica import Replica
from resilient_ps.requests import Requests
from resilient_ps.routing import PEER_PREFIX, Address, address_of
from resilient_ps.shard import Shard
from resilient_ps.status import holdings
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed

READ_REF, WATCH_REF = 30, 31
READ_TIMER = "view"
RETRY_NS = 300_000_000
STOP_WITHIN_NS = 12_000_000_000
EXIT_SUPERSEDED = 4


def build_node(
    settings: NodeSettings,
    draw: DrawBits,
    in_parallel: InParallel = one_by_one,
    wall_s: Callable[[], int] = lambda: 0,
) -> Node:
    """The machine of one server process; `draw` gives nonces and identifiers.

    `in_parallel` runs the parts of a large message: they touch nothing in common, so whether they
    run one by one or at the same time makes no difference but in speed. `wall_s` gives the time of
    day, in seconds since 1970: it is written down for people, and nothing depends on it.
    """
    return Node(settings, draw, in_parallel, wall_s)


class Node:
    """See the module. Events go to the part whose references, timers or peers they carry."""

    def __init__(
        self,
        settings: NodeSettings,
        draw: DrawBits,
        in_parallel: InParallel,
        wall_s: Callable[[], int],
    ) -> None:
        self.settings = settings
        me, keys = settings.record, ClusterKeys(settings.cluster)
        self.view = ClusterView(keys)
        self.membership = Membership(keys, me, settings.lease_ttl_s)
        mandate = Mandate(self.view, me.server, me.process)
        self.conductor: Conductor | None = None
        if settings.checkpoints is not None:
            self.conductor = Conductor(
                self.view,
                mandate,
                settings.checkpoints,
                draw,
                wall_s,
                version=me.version,
                guards=settings.guards,
            )
        self.recovery = Recovery(
            self.view,
            mandate,
            draw,
            wall_s,
            partial(settings.wishes.new_config, draw, me.server),
            stored=settings.checkpoints is not None,
            loss_ns=settings.loss_ns,
            wish=settings.restore,
            shards_asked_for=settings.wishes.shards,
        )
        self.controller = Controller(
            self.view,
            me.server,
            me.process,
            settings.wishes,
            draw,
            mandate,
            self.conductor,
            self.recovery,
        )
        stored = settings.checkpoints
        self.home = Home(
            Member(me.server, me.process),
            keys,
            0,
            draw,
            settings.guards,
            member_timeout_ns=settings.lease_ttl_s * 10**9,
            incarnation=0,  # not known yet
            overlay_bytes_max=0 if stored is None else stored.overlay_bytes_max,
        )
        self._peers = Peers(settings.cluster, self.membership, self.home)
        self._replicas = Replicas(self.home, self.view, self.membership, self._peers, in_parallel)
        self._requests = Requests(self.home, self.membership, self._replicas)
        self.imaging: Imaging | None = None
        self.farewell: Farewell | None = None
        if stored is not None:
            held = self._replicas.by_number
            self.imaging = Imaging(settings.cluster, me.process, self.view, held, stored)
            self.farewell = Farewell(self.view, self.home.me, stored)
        self.loading = Loading(self.home, self.view, self._replicas.loaded, in_parallel)
        self._compared = False
        self._stop_by_ns: int | None = None

    @property
    def replicas(self) -> dict[int, Replica]:
        """Its replicas, by the number of the shard."""
        return self._replicas.by_number

    def served(self) -> list[Shard]:
        """The shards that it is primary of, by number."""
        return [leading.shard for leading in self._replicas.primaries()]

    def namespace_figures(self) -> list[Figure]:
        """For a metrics system. May be called from another thread."""
        told = self.view.namespaces if self.controller.elected else {}
        return namespace_figures(self.served(), told)

    def hello(self) -> Hello:
        """What the host says first to a server that it dials for us."""
        return self._peers.hello()

    def address_of(self, peer: str) -> Address | None:
        """Where a `server:` peer listens, for the host to dial."""
        name = peer.removeprefix(PEER_PREFIX)
        for server in self.view.servers:
            if server.server == name:
                return address_of(server)
        return None

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """One step of the machine."""
        if isinstance(event, MessageArrived):
            peer, message = event
            if isinstance(message, Request) and peer in self._peers.greeted:
                return self._requests.on_request(peer, message, now_ns)
            self._requests.quick_pulls.forget()
            return self._on_other(event, now_ns)
        self._requests.quick_pulls.forget()
        match event:
            case PeerLost():
                effects = self._replicas.on_lost(event, now_ns)
                return [*effects, *self.controller.handle(event, now_ns)]
            case TimerFired(name):
                return self._on_timer(event, name, now_ns)
            case KvFailed(_, Reopen() as error):
                return [_other_etcd(error)]
            case KvAnswered(ref) | KvFailed(ref):
                return self._on_kv(event, ref, now_ns)
            case KvChanged(_, batch):
                self.view.apply(batch)
                return self._look({changed.item.key for changed in batch.events}, now_ns)
            case KvReset(_, items, revision):
                return self._load(items, revision, now_ns)
            case BlobAnswered(ref) | BlobFailed(ref) if ref in IMAGING_BLOBS:
                return [] if self.imaging is None else self.imaging.on_blob(event, now_ns)
            case BlobAnswered(ref) | BlobFailed(ref) if ref in CONDUCTOR_BLOBS:
                return [] if self.conductor is None else self.conductor.on_blob(event, now_ns)
            case BlobAnswered(ref) | BlobFailed(ref) if ref in LOADING_BLOBS:
                return self.loading.on_blob(event, now_ns)
            case BlobAnswered() | BlobFailed():
                return self.recovery.on_blob(event, now_ns)
            case Started():
                warned = unsafe.warnings(self.settings.unsafe, now_ns)
                return [*warned, *self.membership.start(now_ns), self._read_all()]
            case StopAsked():
                return self._on_stop(now_ns)

    def answer_bytes(
        self, peer: str, scratch: memoryview, lo: int, hi: int, limits: tuple[int, int], now_ns: int
    ) -> tuple[list[Any], int] | None:
        """A step for a message's bytes, if they are a plain pull: see `machine.AnswerBytes`."""
        if peer not in self._peers.greeted:
            return None
        return self._requests.answer_bytes(scratch, lo, hi, limits, now_ns)

    def begin_push(self, peer: str, request: Request, now_ns: int) -> EarlyPush | None:
        """A step for a push whose values are still to come: see `machine.BeginPush`."""
        return self._requests.begin_push(request, now_ns) if peer in self._peers.greeted else None

    # -- etcd and timers

    def _read_all(self) -> KvCall:
        return KvCall(READ_REF, Read(self.view.keys.prefix, prefix=True))

    def _load(self, items: Iterable[KeyValue], revision: int, now_ns: int) -> list[Effect]:
        known_before = set(self.view.items)
        self.view.load(items, revision)
        return self._look(known_before | set(self.view.items), now_ns)

    def _on_kv(self, event: KvAnswered | KvFailed, ref: int, now_ns: int) -> list[Effect]:
        if ref >= REPLICA_REF:
            return self._replicas.on_kv(event, now_ns)
        if ref == loading.REPORT_REF:
            return self.loading.on_kv(event, now_ns)
        if ref == JOBS_REF:
            return [] if self.conductor is None else self.conductor.on_read(event, now_ns)
        if ref == FAREWELL_REF:
            return [] if self.farewell is None else self.farewell.on_kv(event)
        if ref == membership.STOPPING_REF:  # whether it was written or not: it was worth a try
            return [] if self._stop_by_ns is None else self._hand_over(now_ns)
        if ref in membership.REFS:
            lease = self._lease
            effects = self.membership.on_answer(event, now_ns)
            return effects if self._lease == lease else [*effects, *self._look((), now_ns)]
        if ref in controller.REFS or ref in CONDUCTOR_REFS or ref in ROLLBACK_REFS:
            return self.controller.handle(event, now_ns)
        if isinstance(event, KvAnswered) and isinstance(event.result, ReadResult):
            watch = KvWatch(WATCH_REF, self.view.keys.prefix, event.result.revision + 1)
            return [watch, *self._load(event.result.items, event.result.revision, now_ns)]
        return [SetTimer(READ_TIMER, now_ns + RETRY_NS)]

    def _on_timer(self, event: TimerFired, name: str, now_ns: int) -> list[Effect]:
        if name == replicas.TIMER:
            return [*self._replicas.on_timer(now_ns), *self._leave_if_done(now_ns)]
        if name == requests.PULLS_TIMER:
            return self._requests.on_timer(now_ns)
        if name == membership.TIMER:
            return self.membership.on_timer(now_ns)
        if name == imaging.TIMER and self.imaging is not None:
            return self.imaging.on_timer(now_ns)
        if name == loading.TIMER:
            return self.loading.on_timer(now_ns)
        if name == farewell.TIMER:
            return self._on_farewell(now_ns)
        if name == READ_TIMER:
            return [self._read_all()]
        if name == unsafe.TIMER:
            return unsafe.warnings(self.settings.unsafe, now_ns)
        return self.controller.handle(event, now_ns)

    def _look(self, changed: Collection[bytes], now_ns: int) -> list[Effect]:
        """The view or the membership has changed: tell the replicas, coordinate if elected."""
        effects: list[Effect] = [
            Log("error", "bad record in etcd", {"error": text}) for text in self.view.problems
        ]
        self.view.problems.clear()
        effects += self._compare_wishes()
        effects += self._replicas.look(changed, self._lease, now_ns)
        effects += self.loading.look(now_ns)
        if self.imaging is not None:
            effects += self.imaging.look(now_ns)
        return [*effects, *self.controller.look(self._lease, now_ns)]

    @property
    def _lease(self) -> int:
        """The lease that we are registered under; 0: we are not."""
        return self.membership.lease if self.membership.state == "member" else 0

    def _compare_wishes(self) -> list[Log]:
        """Tell once what was asked for in vain, because the cluster exists in another shape."""
        config, wishes = self.view.config, self.settings.wishes
        if config is None or self._compared:
            return []
        self._compared = True
        if wishes.shards in (0, config.shards):
            return []
        fields = {
            "shards": config.shards,
            "asked_for": wishes.shards,
            "remedy": "the number of shards is fixed when a cluster is created: leave --shards "
            "away, or create another cluster with another --cluster",
        }
        return [Log("warning", "cluster exists with another number of shards", fields)]

    # -- the orderly end

    def _on_stop(self, now_ns: int) -> list[Effect]:
        """Hand over what we are primary of; leave when that is done, or time is over."""
        if self._stop_by_ns is not None:
            return []
        if self.farewell is None:
            return self._stop(now_ns)
        asking = self.farewell.begin(self.served(), now_ns)
        if not self.farewell.waits(self.served(), now_ns):
            return [*asking, *self._stop(now_ns)]
        return [*self.membership.announce_end(), *asking]  # and stop when it waits no longer

    def _stop(self, now_ns: int) -> list[Effect]:
        self._stop_by_ns = now_ns + STOP_WITHIN_NS
        announcing = self.membership.announce_end()
        effects: list[Effect] = [Log("info", "stopping", {}), *announcing]
        return effects if announcing else [*effects, *self._hand_over(now_ns)]

    def _on_farewell(self, now_ns: int) -> list[Effect]:
        if self.farewell is None or self._stop_by_ns is not None:
            return []
        if self.farewell.waits(self.served(), now_ns):
            return self.farewell.on_timer(self.served(), now_ns)
        return self._stop(now_ns)

    def _hand_over(self, now_ns: int) -> list[Effect]:
        return [*self._replicas.hand_over(now_ns), *self._leave_if_done(now_ns)]

    def _leave_if_done(self, now_ns: int) -> list[Effect]:
        if self._stop_by_ns is None or not self.home.stopping:
            return []
        in_time = now_ns < self._stop_by_ns and self.membership.may_answer(now_ns)
        if in_time and self._replicas.handing_over:
            return self._replicas.tick(now_ns, soon=True)
        last_words = self._replicas.last_words()
        return [*last_words, *self.membership.leave(), Exit(0, "stopped on request")]

    # -- messages

    def _on_other(self, event: MessageArrived, now_ns: int) -> list[Effect]:
        peer, greeted = event.peer, event.peer in self._peers.greeted
        match event.message:
            case Append() as append if greeted:
                return self._replicas.on_append(peer, append, now_ns)
            case Copy() as piece if greeted:
                return self._replicas.on_copy(peer, piece, now_ns)
            case Ask() as ask if greeted:
                return self._on_ask(peer, ask, now_ns)
            case Appended() as appended:
                return self._replicas.on_appended(peer, appended, now_ns)
            case Hello() as hello:
                config = self.view.config
                return self._peers.greet(peer, hello, 0 if config is None else config.incarnation)
            case Welcome() as welcome if peer.startswith(PEER_PREFIX):
                self._peers.on_welcome(peer, welcome)
                return self._replicas.drop_strangers()
            case Answer() | Refuse() | Told():
                return [] if greeted else self.controller.handle(event, now_ns)
            case _:
                return [Send(peer, Refuse("say Hello first")), Drop(peer, "no greeting")]

    def _on_ask(self, peer: str, ask: Ask, now_ns: int) -> list[Effect]:
        cut = asked_cut(ask.what)
        if cut is not None:
            told = "{}" if self.imaging is None else self.imaging.told(cut)
            return [Send(peer, Told(ask.request, told))]
        if ask.what.startswith(clocks.QUESTION):
            return [Send(peer, Told(ask.request, json.dumps(clocks.clocks_told(self.served()))))]
        if ask.what == digests.QUESTION:
            return [Send(peer, Told(ask.request, json.dumps(digests.digests_told(self.replicas))))]
        if ask.what.startswith("{") and not self.membership.may_answer(now_ns):
            # who hears nothing of etcd may have been deposed: whoever asks is to look again
            told = json.dumps({"error": "this server has no valid lease", "elected": False})
            return [Send(peer, Told(ask.request, told))]
        if ask.what.startswith("{"):
            return self.controller.on_ask(peer, ask, now_ns)
        return [Send(peer, Told(ask.request, json.dumps(self.status(now_ns))))]

    def status(self, now_ns: int) -> dict[str, Any]:
        """What this server is doing, for `resilient-ps status`."""
        me = self.settings.record
        return {
            "server": me.server,
            "process": me.process,
            "pid": me.pid,
            "coordinator": self.controller.elected,
            "lease_s": round(max(0, self.membership.deadline_ns - now_ns) / 1e9, 3),
            "connections": len(self._peers.greeted),
            "stopping": self.home.stopping,
            "loading": self.loading.status(),
            "copied_bytes": self.home.copied_bytes,
            **holdings(self.served()),
            "shards": [self.replicas[number].status() for number in sorted(self.replicas)],
        }


def _other_etcd(error: Reopen) -> Exit:
    """What we know is of an etcd that is no more: going on with it would bring back the dead."""
    remedy = "started anew, this server takes part in what is there; a new cluster begins with "
    return Exit(EXIT_SUPERSEDED, f"{error}. {remedy}the newest checkpoint of its store")


__all__ = ["Node", "NodeSettings", "build_node", "one_by_one"]
