"""A server as one machine: membership, coordinator candidate, and the shards that it serves.

`build_node` is the only way to make one: the real host and the in-memory host use it alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from resilient_ps.coordinator import controller, membership
from resilient_ps.coordinator.controller import ClusterWishes, Controller
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvReset,
    KvWatch,
    Read,
    ReadResult,
)
from resilient_ps.coordinator.membership import Membership
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import NOWHERE, DrawBits
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
    PROTOCOL,
    Answer,
    Ask,
    Hello,
    Keys,
    Kind,
    Part,
    PartAnswer,
    Refuse,
    Request,
    Status,
    Told,
    Values,
    Welcome,
)
from resilient_ps.routing import PEER_PREFIX, Address, address_of
from resilient_ps.shard import Reply, Shard
from resilient_ps.status import holdings
from resilient_ps.waiting import Origin

READ_REF, WATCH_REF = 30, 31
PULLS_TIMER = "pulls"
READ_TIMER = "view"
RETRY_NS = 300_000_000
ANSWER_TEXT_BYTES = 100_000  # answers with more than this travel in several messages
ANSWER_VALUE_BYTES = 32 << 20
HEAVY_BYTES = 1 << 20  # requests from this size on are worked on in parallel
HEAVY_KEY_WEIGHT = 4  # a key means a row to be found and gathered
_NO_VALUES: Values = np.empty(0, np.float32)

InParallel: TypeAlias = Callable[[Sequence[Callable[[], list[Reply]]]], list[list[Reply]]]


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a server is told when it starts. `record.lease` is filled in later."""

    cluster: str
    record: ServerRecord
    lease_ttl_s: int = 5
    wishes: ClusterWishes = field(default_factory=ClusterWishes)
    guards: Guards = ALL_GUARDS


def one_by_one(tasks: Sequence[Callable[[], list[Reply]]]) -> list[list[Reply]]:
    """The plain way to run tasks."""
    return [task() for task in tasks]


def build_node(
    settings: NodeSettings, draw: DrawBits, in_parallel: InParallel = one_by_one
) -> Node:
    """The machine of one server process; `draw` gives nonces and identifiers.

    `in_parallel` runs the parts of a large request: they touch nothing in common, so whether they
    run one by one or at the same time makes no difference but in speed.
    """
    return Node(settings, draw, in_parallel)


class Node:
    """See the module. Events go to the part whose references, timers or peers they carry."""

    def __init__(self, settings: NodeSettings, draw: DrawBits, in_parallel: InParallel) -> None:
        self.settings = settings
        self._in_parallel = in_parallel
        keys = ClusterKeys(settings.cluster)
        self.view = ClusterView(keys)
        self.membership = Membership(keys, settings.record, settings.lease_ttl_s)
        self.controller = Controller(
            self.view, settings.record.server, settings.record.process, settings.wishes, draw
        )
        self.shards: dict[int, Shard] = {}
        self._greeted: set[str] = set()
        self._pulls_at_ns: int | None = None
        self._compared = False

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """One step of the machine."""
        match event:
            case MessageArrived(peer, message):
                if isinstance(message, Request) and peer in self._greeted:
                    return self._on_request(peer, message, now_ns)
                return self._on_other(event, now_ns)
            case PeerLost(peer):
                self._greeted.discard(peer)
                for shard in self.shards.values():
                    shard.waiting.forget_peer(peer)
                return self.controller.handle(event, now_ns)
            case TimerFired(name):
                return self._on_timer(event, name, now_ns)
            case KvAnswered(ref) | KvFailed(ref):
                return self._on_kv(event, ref, now_ns)
            case KvChanged(_, batch):
                self.view.apply(batch)
                return self._look(now_ns)
            case KvReset(_, items, revision):
                self.view.load(items, revision)
                return self._look(now_ns)
            case Started():
                return [*self.membership.start(now_ns), self._read_all()]
            case StopAsked():
                return [*self.membership.leave(), Exit(0, "stopped on request")]

    def address_of(self, peer: str) -> Address | None:
        """Where a `server:` peer listens, for the host to dial."""
        name = peer.removeprefix(PEER_PREFIX)
        for server in self.view.servers:
            if server.server == name:
                return address_of(server)
        return None

    # -- etcd and timers

    def _read_all(self) -> KvCall:
        return KvCall(READ_REF, Read(self.view.keys.prefix, prefix=True))

    def _on_kv(self, event: KvAnswered | KvFailed, ref: int, now_ns: int) -> list[Effect]:
        if ref in membership.REFS:
            effects = self.membership.on_answer(event, now_ns)
            return [*effects, *self._look(now_ns)]
        if ref in controller.REFS:
            return self.controller.handle(event, now_ns)
        if isinstance(event, KvAnswered) and isinstance(event.result, ReadResult):
            self.view.load(event.result.items, event.result.revision)
            watch = KvWatch(WATCH_REF, self.view.keys.prefix, self.view.revision + 1)
            return [watch, *self._look(now_ns)]
        return [SetTimer(READ_TIMER, now_ns + RETRY_NS)]

    def _on_timer(self, event: TimerFired, name: str, now_ns: int) -> list[Effect]:
        if name == PULLS_TIMER:
            self._pulls_at_ns = None
            if self.membership.may_answer(now_ns):
                replies = [r for shard in self.shards.values() for r in shard.release(now_ns)]
            else:
                replies = [r for number in self.shards for r in self._turn_away(number)]
            return [*self._answers(replies, now_ns), *self._set_pulls_timer()]
        if name == membership.TIMER:
            return self.membership.on_timer(now_ns)
        if name == READ_TIMER:
            return [self._read_all()]
        return self.controller.handle(event, now_ns)

    def _look(self, now_ns: int) -> list[Effect]:
        """The view or the membership has changed: serve what is ours, coordinate if elected."""
        problems = [
            Log("error", "bad record in etcd", {"error": text}) for text in self.view.problems
        ]
        self.view.problems.clear()
        problems += self._compare_wishes()
        lease = self.membership.lease if self.membership.state == "member" else 0
        return [*problems, *self._assign(now_ns), *self.controller.look(lease, now_ns)]

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

    def _assign(self, now_ns: int) -> list[Effect]:
        """Begin to serve the shards whose primary is this process; drop the others."""
        config, me = self.view.config, self.settings.record
        if config is None:
            return []
        effects: list[Effect] = []
        mine = {}
        for record in self.view.shards:
            if record.primary == me.server and record.primary_process == me.process:
                mine[record.shard] = record.epoch
        for number in sorted(set(self.shards) - set(mine)):
            effects += self._answers(self._turn_away(number), now_ns)
            del self.shards[number]
            effects.append(Log("warning", "shard dropped", {"shard": number}))
        for number in sorted(set(mine) - set(self.shards)):
            self.shards[number] = Shard(number, config.shards, mine[number], self.settings.guards)
        return effects

    # -- messages

    def _on_other(self, event: MessageArrived, now_ns: int) -> list[Effect]:
        peer = event.peer
        match event.message:
            case Hello(protocol, cluster, _):
                return self._greet(peer, protocol, cluster)
            case Answer() | Welcome() | Refuse():
                return self.controller.handle(event, now_ns) if peer not in self._greeted else []
            case Ask(request, _) if peer in self._greeted:
                return [Send(peer, Told(request, json.dumps(self.status(now_ns))))]
            case _:
                return [Send(peer, Refuse("say Hello first")), Drop(peer, "no greeting")]

    def _greet(self, peer: str, protocol: int, cluster: str) -> list[Effect]:
        me, config = self.settings, self.view.config
        if protocol != PROTOCOL:
            why = f"this server speaks protocol {PROTOCOL}, not {protocol}: upgrade one of them"
        elif cluster != me.cluster:
            why = f"this server belongs to cluster {me.cluster!r}, not {cluster!r}"
        else:
            self._greeted.add(peer)
            incarnation = 0 if config is None else config.incarnation
            return [Send(peer, Welcome(me.record.server, me.record.process, incarnation))]
        return [Send(peer, Refuse(why)), Drop(peer, why)]

    def _on_request(self, peer: str, request: Request, now_ns: int) -> list[Effect]:
        origin = Origin(peer, request.request)
        if self._is_heavy(request):
            tasks = [
                partial(self._on_part, request, part, keys, values, origin, now_ns)
                for part, keys, values in _pieces(request)
            ]
            replies = [reply for answered in self._in_parallel(tasks) for reply in answered]
        else:
            replies = []
            for part, keys, values in _pieces(request):
                replies += self._on_part(request, part, keys, values, origin, now_ns)
        effects = self._answers(replies, now_ns)
        if request.kind is Kind.PULL and len(replies) < len(request.parts):
            effects += self._set_pulls_timer()
        return effects

    def _on_part(
        self, request: Request, part: Part, keys: Keys, values: Values, origin: Origin, now_ns: int
    ) -> list[Reply]:
        shard = self.shards.get(part.shard)
        allowed = self.membership.may_answer(now_ns)
        if shard is None or not allowed or part.seen > shard.position:
            return [Reply(origin, self._not_owner(part.shard, allowed=allowed))]
        return shard.handle(request, part, keys, values, origin, now_ns)

    def _is_heavy(self, request: Request) -> bool:
        """Does it pay to work on its shards at the same time?"""
        if len(request.parts) == 1:
            return False
        if request.kind is Kind.TICK:
            job = request.worker.job
            jobs = [shard.jobs[job] for shard in self.shards.values() if job in shard.jobs]
            nbytes = sum([held.barrier.held_bytes for held in jobs])
        else:
            nbytes = request.keys.nbytes * HEAVY_KEY_WEIGHT
            nbytes += sum([piece.nbytes for piece in request.values])
        if nbytes < HEAVY_BYTES:
            return False
        numbers = [part.shard for part in request.parts]
        return len(set(numbers)) == len(numbers)  # a shard is for one thread at a time

    def _not_owner(self, shard: int, *, allowed: bool) -> PartAnswer:
        me = self.settings.record.server
        text = f"{me} does not serve it" if allowed else f"{me} has no valid lease at the moment"
        return PartAnswer(shard, Status.NOT_OWNER, NOWHERE, text=text.encode())

    def _turn_away(self, number: int) -> list[Reply]:
        """Answers to the waiting pulls of a shard that we may not answer for any more."""
        pulls = self.shards[number].waiting.take_all()
        return [Reply(pull.origin, self._not_owner(number, allowed=False)) for pull in pulls]

    def _set_pulls_timer(self) -> list[Effect]:
        """Wake up when the first waiting pull gives up."""
        deadlines = [shard.waiting.next_deadline_ns() for shard in self.shards.values()]
        first = min((at for at in deadlines if at is not None), default=None)
        if first is None or (self._pulls_at_ns is not None and self._pulls_at_ns <= first):
            return []
        self._pulls_at_ns = first
        return [SetTimer(PULLS_TIMER, first)]

    def _answers(self, replies: Iterable[Reply], now_ns: int) -> list[Effect]:
        """One message per request where possible, split where texts are long."""
        grouped: dict[Origin, list[Reply]] = {}
        for reply in replies:
            grouped.setdefault(reply.origin, []).append(reply)
        return [
            Send(origin.peer, _answer(origin.request, batch))
            for origin, group in grouped.items()
            for batch in _batches(group)
        ]

    # -- inspection

    def status(self, now_ns: int) -> dict[str, Any]:
        """What this server is doing, for `resilient-ps status`."""
        me = self.settings.record
        return {
            "server": me.server,
            "process": me.process,
            "pid": me.pid,
            "coordinator": self.controller.elected,
            "lease_s": round(max(0, self.membership.deadline_ns - now_ns) / 1e9, 3),
            "connections": len(self._greeted),
            **holdings([shard for _, shard in sorted(self.shards.items())]),
        }


def _pieces(request: Request) -> Iterator[tuple[Part, Keys, Values]]:
    """The request's parts, each with its own keys and flat values."""
    keys = request.keys
    values = request.values[0] if request.values else _NO_VALUES
    first = start = 0
    for part in request.parts:
        end, stop = first + part.count, start + part.elements
        yield part, keys[first:end], values[start:stop]
        first, start = end, stop


def _batches(group: list[Reply]) -> Iterable[list[Reply]]:
    """Answers to one request, in messages that keep within the limits of a frame."""
    texts = sum([len(reply.answer.text) for reply in group])
    values = sum([reply.values.nbytes for reply in group if reply.values is not None])
    if texts <= ANSWER_TEXT_BYTES and values <= ANSWER_VALUE_BYTES:
        return [group]
    return [[reply] for reply in group]


def _answer(request: int, batch: list[Reply]) -> Answer:
    parts = tuple([reply.answer for reply in batch])
    values = tuple([reply.values for reply in batch if reply.values is not None])
    return Answer(request, parts, values)
