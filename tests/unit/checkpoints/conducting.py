"""A small world for the conductor: models of etcd and of the store, and shards that obey cuts.

Everything happens at a virtual time, one thing after the other, each a millisecond after what asked
for it. A coordinator may be killed before or after any of its effects; answers may get lost. After
every step `Audit` looks whether all checkpoints that etcd names can be restored.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from resilient_ps.checkpoints.conductor import Conductor
from resilient_ps.checkpoints.refs import JOBS_REF
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.controller import ClusterWishes, Controller
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    Delete,
    KvAnswered,
    KvCall,
    KvFailed,
    LeaseRevoke,
    Put,
    Read,
    ReadResult,
    Txn,
)
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    ClusterConfig,
    IntentRecord,
    JobRecord,
    Member,
    ServerRecord,
    ShardRecord,
    TableRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.cut import Cut
from resilient_ps.errors import BadInput, ResilientPsError, Unavailable
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import Epoch, Position
from resilient_ps.machine import Event, Log, MessageArrived, Send, SetTimer, TimerFired
from resilient_ps.messages import Answer, Ask, Kind, Part, PartAnswer, Request, Status, Told
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    PutBlob,
    StoreUnavailable,
)
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import CheckpointId, checkpoint_prefix, chunks_name, index_name
from resilient_ps.storage.reading import read_index, read_manifest
from resilient_ps.storage.shard_index import (
    ChunkPlace,
    JobState,
    ObjectInfo,
    RankState,
    ShardIndex,
    TableState,
)
from resilient_ps.tables.spec import SparseSpec

KEYS = ClusterKeys("c")
MS = 1_000_000
SECOND_NS = 10**9
BEGIN_S = 1_800_000_000
SPEC = SparseSpec("weights", 2).to_json()
JOB = JobRecord(1, "train", "ssp:3", 2, "running")
JOB_SPEC = '{"consistency": "ssp:3", "job": 1, "name": "train", "ranks": 2}'


@dataclass
class Shards:
    """Shards that obey cuts: they know how far the ranks are, and write images into the store."""

    world: World
    count: int
    clocks: dict[int, list[int]] = field(default_factory=lambda: {1: [0, 0]})  # job -> ranks
    clocks_per_s: float = 0.0
    accepted: dict[tuple[int, int], Cut] = field(default_factory=dict)  # (cut, shard)
    aborted: set[tuple[int, int]] = field(default_factory=set)
    joined: list[int] = field(default_factory=list)  # intents
    ranks: int = 2  # that images tell of
    broken: str = ""  # why images fail
    reuse: bool = False  # images name the objects of their base
    written: dict[tuple[int, int], ObjectInfo] = field(default_factory=dict)
    by: dict[int, str] = field(default_factory=dict)  # who makes images, instead of primaries
    silent: set[str] = field(default_factory=set)

    def server(self, shard: int) -> str:
        return f"s{1 + shard % 3}"

    def held(self, job: int) -> int:
        moved = int(self.world.now_ns / SECOND_NS * self.clocks_per_s)
        return max(self.clocks[job]) + moved

    def slowest(self, job: int) -> int:
        return min(self.clocks[job]) + int(self.world.now_ns / SECOND_NS * self.clocks_per_s)

    def request(self, request: Request) -> Answer:
        return Answer(request.request, tuple(self._part(request, part) for part in request.parts))

    def _part(self, request: Request, part: Part) -> PartAnswer:
        shard = part.shard
        at = Position(Epoch(1, 1), self.world.tick())
        if request.kind is Kind.JOIN:
            self.joined.append(request.n)
            return PartAnswer(shard, Status.OK, at, self.held(1) + 1)
        number = request.n
        if request.kind is Kind.ABORT:
            self.aborted.add((number, shard))
            self.accepted.pop((number, shard), None)
            return PartAnswer(shard, Status.OK, at)
        assert request.kind is Kind.CUT
        if (number, shard) in self.aborted:
            return PartAnswer(shard, Status.REFUSED, at, text=b"it was given up")
        cut = Cut.from_json(request.text)
        if (number, shard) not in self.accepted:
            for job, clock in cut.clocks:
                if self.held(job) > clock:
                    return PartAnswer(shard, Status.REFUSED, at, self.held(job), text=b"too late")
            self.accepted[number, shard] = cut
        by = self.by.get(shard, self.server(shard))
        return PartAnswer(shard, Status.OK, at, text=by.encode())

    def ask(self, server: str, ask: Ask) -> str:
        asked = json.loads(ask.what)
        if "clocks" in asked:
            spans = {str(job): [self.slowest(job), self.held(job)] for job in self.clocks}
            return json.dumps({"clocks": spans})
        number, id = asked["image"]["cut"], asked["image"]["id"]
        images = {
            str(shard): self._image(CheckpointId.parse(id), cut, shard)
            for (n, shard), cut in sorted(self.accepted.items())
            if n == number and self.by.get(shard, self.server(shard)) == server
        }
        return json.dumps({"cut": number, "images": images})

    def _image(self, id: CheckpointId, cut: Cut, shard: int) -> dict[str, Any]:
        behind = [job for job, clock in cut.clocks if self.slowest(job) < clock]
        if behind:
            return {"state": "waiting", "waits_for": "job 'train' waits for clock 9 of rank 1"}
        if self.broken:
            return {"state": "failed", "why": self.broken, "store": "store" in self.broken}
        if (cut.number, shard) not in self.written and not self._write(id, cut, shard):
            return {"state": "failed", "why": "the store is away", "store": True}
        info = self.written[cut.number, shard]
        return {"state": "done", "index": info.name, "bytes": info.nbytes, "sha256": info.sha256}

    def _write(self, id: CheckpointId, cut: Cut, shard: int) -> bool:
        """The objects of one image, as a server writes them."""
        if self.world.outage:
            return False
        process = 100 + shard
        content = f"cut {cut.number} shard {shard}".encode()
        base = self._of_base(cut, shard)
        if base is None:
            own = self.world.object(chunks_name("c", id, shard, process, 1), content)
        else:
            own = base
        place = ChunkPlace(1, "rows", 0, 1, 0, 0, 0, 4, 4, "0" * 32)
        ticked = max(self.slowest(1), 0)
        ranks = tuple(RankState(r, ticked, True, 1, b"") for r in range(self.ranks))
        index = ShardIndex(
            shard,
            self.count,
            cut.number,
            (TableState(1, SPEC, 0.1, 1, 1),),
            (JobState(1, JOB_SPEC, 0, ranks),),
            (own,),
            (place,),
        )
        name = index_name("c", id, shard, process)
        self.written[cut.number, shard] = self.world.object(name, index.to_json())
        return True

    def _of_base(self, cut: Cut, shard: int) -> ObjectInfo | None:
        if not (self.reuse and cut.base):
            return None
        base = CheckpointId.parse(cut.base)
        info = self.written[base.number, shard]
        raw = self.world.blobs.peek(info.name)
        assert raw is not None, "the base of an open cut was swept"
        return ShardIndex.from_json(raw, info.name).objects[0]


class Coordinator:
    """A candidate, with a conductor. It may be killed, or stop for a while."""

    def __init__(self, world: World, name: str, settings: CheckpointSettings) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused = False
        self.view = ClusterView(KEYS)
        self.lease = world.kv.grant(10**6, 0).lease
        mandate = Mandate(self.view, name, world.tick())
        self.conductor = Conductor(
            self.view, mandate, settings, world.draw, world.wall_s, guards=world.guards
        )
        wishes = ClusterWishes(grace_s=10**6)
        self.controller = Controller(
            self.view, name, world.tick(), wishes, world.draw, mandate, self.conductor
        )
        self.logs: list[Log] = []
        self._timers: dict[str, int] = {}
        self._held: list[Callable[[], None]] = []

    def see(self) -> None:
        """The watch: everything as it is now."""
        if not self.alive or self.paused:
            return
        result = self.world.kv.apply(Read(KEYS.prefix, prefix=True), self.world.now_ns)
        assert isinstance(result, ReadResult)
        if result.revision != self.view.revision:
            self.view.load(result.items, result.revision)
            self.perform(self.controller.look(self.lease, self.world.now_ns))

    def handle(self, event: Event) -> None:
        if not self.alive:
            return
        if self.paused:
            self._held.append(lambda: self.handle(event))
            return
        if isinstance(event, BlobAnswered | BlobFailed):
            effects = self.conductor.on_blob(event, self.world.now_ns)
        elif isinstance(event, KvAnswered | KvFailed) and event.ref == JOBS_REF:
            effects = self.conductor.on_read(event, self.world.now_ns)
        else:
            effects = self.controller.handle(event, self.world.now_ns)
        self.perform(effects)

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Log():
                    self.logs.append(effect)
                case SetTimer(name, at_ns):
                    self._timers[name] = at_ns
                    self.world.at(at_ns, lambda name=name, at=at_ns: self._fire(name, at))
                case _:
                    self.world.step(self, effect)

    def _fire(self, name: str, at_ns: int) -> None:
        if self._timers.get(name) == at_ns:
            del self._timers[name]
            self.handle(TimerFired(name))

    def kill(self) -> None:
        """It is gone, and its lease with it."""
        if self.alive:
            self.alive = False
            self.world.kv.apply(LeaseRevoke(self.lease), self.world.now_ns)
            self.world.changed()

    def pause(self) -> None:
        """It does nothing, and loses its lease; nobody has told it."""
        self.paused = True
        self.world.kv.apply(LeaseRevoke(self.lease), self.world.now_ns)
        self.world.changed()

    def go_on(self) -> None:
        """It goes on where it was, and hears of everything that happened only afterwards."""
        self.paused = False
        held, self._held = self._held, []
        for each in held:
            each()

    def events(self) -> list[str]:
        return [log.event for log in self.logs]

    def log(self, event: str) -> Log:
        return next(log for log in reversed(self.logs) if log.event == event)


class World:
    """See the module."""

    def __init__(
        self,
        *,
        shards: int = 3,
        settings: CheckpointSettings | None = None,
        guards: Guards = ALL_GUARDS,
    ) -> None:
        self.now_ns = 0
        self.kv = MemoryKv()
        self.blobs = MemoryBlobs()
        self.guards = guards
        self.settings = settings or CheckpointSettings()
        self.shards = Shards(self, shards)
        self.coordinators: list[Coordinator] = []
        self.outage = False
        self.steps = 0  # effects of coordinators that were performed
        self.crash_at: tuple[int, str] | None = None  # effect, "before" or "after"
        self.lose_answer_of = 0  # effect
        self.blob_calls = 0
        self.writes = 0  # of objects, by servers
        self._audited = (0, 0, 0)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._ticks = 0
        self._drawn = 0
        for name in ("s1", "s2", "s3"):
            self.start_server(name)
        config = ClusterConfig("0123456789abcdef", 1, shards, 3, 1, 1, 64, "s1")
        self.put(KEYS.config, config.to_bytes())
        for number in range(shards):
            leader = Member(self.shards.server(number), 10)
            record = ShardRecord(number, Epoch(1, 1), *leader, (leader,), (leader.server,), 1, "n")
            self.put(KEYS.shard(number), record.to_bytes())
        self.put(KEYS.job("train"), JOB.to_bytes())
        self.put(KEYS.table("weights"), TableRecord(1, SPEC).to_bytes())

    # -- time

    def tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def draw(self, bits: int) -> int:
        self._drawn += 1
        digest = hashlib.sha256(str(self._drawn).encode()).digest()
        return int.from_bytes(digest, "big") >> (256 - bits)

    def wall_s(self) -> int:
        return BEGIN_S + self.now_ns // SECOND_NS

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(at_ns, self.now_ns), self.tick(), action))

    def soon(self, action: Callable[[], None]) -> None:
        self.at(self.now_ns + MS, action)

    def run_until(self, condition: Callable[[], bool], limit_s: float = 300.0) -> bool:
        end_ns = self.now_ns + int(limit_s * SECOND_NS)
        while not condition():
            if not self._queue or self._queue[0][0] > end_ns:
                self.now_ns = max(self.now_ns, end_ns)
                return False
            self.now_ns, _, action = heapq.heappop(self._queue)
            action()
            if self._audited != (seen := (self.kv.revision, self.blob_calls, self.writes)):
                self._audited = seen
                audit(self)
        return True

    def run(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    # -- coordinators and their effects

    def start(self, name: str | None = None) -> Coordinator:
        """Another candidate."""
        name = name or f"c{1 + len(self.coordinators)}"
        coordinator = Coordinator(self, name, self.settings)
        self.coordinators.append(coordinator)
        self.soon(coordinator.see)
        return coordinator

    @property
    def leader(self) -> Coordinator:
        return next(c for c in self.coordinators if c.alive and c.controller.elected)

    def step(self, coordinator: Coordinator, effect: Any) -> None:
        """Perform one effect that others can see; the place for crashes."""
        if not coordinator.alive:
            return None
        self.steps += 1
        crash = self.crash_at if self.crash_at and self.crash_at[0] == self.steps else None
        if crash and crash[1] == "before":
            return self._crash(coordinator)
        answer = self._perform(coordinator, effect, lost=self.steps == self.lose_answer_of)
        if crash:
            return self._crash(coordinator)
        if answer is not None:
            event = answer
            self.soon(lambda: coordinator.handle(event))
        return None

    def _crash(self, coordinator: Coordinator) -> None:
        coordinator.kill()
        self.start()

    def _perform(self, coordinator: Coordinator, effect: Any, *, lost: bool) -> Event | None:
        match effect:
            case KvCall(ref, request):
                try:
                    result = self.kv.apply(request, self.now_ns)
                except ResilientPsError as error:
                    return KvFailed(ref, error, unknown=False)
                self.changed()
                gone = KvFailed(ref, Unavailable("the answer was lost"), unknown=True)
                return gone if lost else KvAnswered(ref, result)
            case BlobCall():
                return self._blob(effect, lost=lost)
            case Send(peer, Request() as request):
                answer = self.shards.request(request)
                return None if lost else MessageArrived(peer, answer)
            case Send(peer, Ask() as ask):
                server = peer.removeprefix("server:")
                if lost or server in self.shards.silent or server not in self._servers():
                    return None
                return MessageArrived(peer, Told(ask.request, self.shards.ask(server, ask)))
        raise AssertionError(f"an effect of no known kind: {effect}")

    def _blob(self, call: BlobCall, *, lost: bool) -> Event:
        self.blob_calls += 1
        if self.outage:
            return BlobFailed(call.ref, StoreUnavailable("the store is away"))
        try:
            result = self.blobs.apply(call.request, self.wall_s())
        except ResilientPsError as error:
            return BlobFailed(call.ref, error)
        if lost:
            return BlobFailed(call.ref, StoreUnavailable("the answer was lost"), unknown=True)
        return BlobAnswered(call.ref, result)

    def changed(self) -> None:
        """etcd has changed: whoever watches sees it soon."""
        for coordinator in self.coordinators:
            self.soon(coordinator.see)

    # -- etcd, and the store

    def put(self, key: bytes, value: bytes) -> None:
        self.kv.apply(Txn((), (Put(key, value),)), self.now_ns)
        self.changed()

    def delete(self, key: bytes) -> None:
        self.kv.apply(Txn((), (Delete(key),)), self.now_ns)
        self.changed()

    def get(self, key: bytes) -> bytes | None:
        items = self.kv.apply(Read(key), self.now_ns).items
        return items[0].value if items else None

    def start_server(self, name: str, process: int = 10) -> None:
        record = ServerRecord(name, process, "127.0.0.1", 7000, "", "", 1.0, 5, "1", 1, "host")
        self.put(KEYS.server(name), record.to_bytes())

    def _servers(self) -> set[str]:
        items = self.kv.apply(Read(KEYS.servers, prefix=True), self.now_ns).items
        return {item.key.removeprefix(KEYS.servers).decode() for item in items}

    def object(self, name: str, content: bytes) -> ObjectInfo:
        self.blobs.apply(PutBlob(name, content), self.wall_s())
        self.writes += 1
        return ObjectInfo(name, len(content), hashlib.sha256(content).hexdigest())

    def wish(self, why: str = "a test") -> int:
        """Ask for a checkpoint, as clients do."""
        return self.propose(IntentRecord(1, "cut", "", 0, 0, "open", details={"why": why}))

    def propose(self, intent: IntentRecord) -> int:
        counter = KEYS.counter("intents")
        number = read_counter(self.get(counter), counter) + 1
        self.put(counter, counter_bytes(number))
        self.put(KEYS.intent(number), replace(intent, number=number).to_bytes())
        return number

    def intents(self) -> list[IntentRecord]:
        items = self.kv.apply(Read(KEYS.intents, prefix=True), self.now_ns).items
        return [IntentRecord.from_bytes(item.value, item.key) for item in items]

    def intent(self, number: int) -> IntentRecord:
        return next(intent for intent in self.intents() if intent.number == number)

    def checkpoints(self) -> list[CheckpointRecord]:
        items = self.kv.apply(Read(KEYS.checkpoints, prefix=True), self.now_ns).items
        return [CheckpointRecord.from_bytes(item.value, item.key) for item in items]

    def good(self) -> list[CheckpointRecord]:
        return [record for record in self.checkpoints() if record.state == "good"]

    def attempts(self) -> list[IntentRecord]:
        return [i for i in self.intents() if i.kind == "cut" and "clocks" in i.details]

    def make(self, limit_s: float = 300.0) -> CheckpointRecord:
        """A checkpoint, on demand."""
        before = max([record.number for record in self.good()], default=0)
        self.wish()
        done = lambda: any(record.number > before for record in self.good())  # noqa: E731
        assert self.run_until(done, limit_s), self.story()
        return self.good()[-1]

    def objects_of(self, record: CheckpointRecord | CutPlan) -> list[str]:
        prefix = checkpoint_prefix("c", CheckpointId.parse(record.id))
        return [name for name in self.blobs.names() if name.startswith(prefix)]

    def story(self) -> str:
        lines = [f"{log.event} {dict(log.fields)}" for c in self.coordinators for log in c.logs]
        return "\n".join(lines)


class Unusable(AssertionError):
    """A checkpoint that etcd calls good cannot be restored."""


def audit(world: World) -> None:
    """Every good checkpoint's manifest and indexes verify, and all its objects are there."""
    for record in world.good():
        try:
            manifest = world.blobs.apply(
                read_manifest(record.manifest, record.nbytes, record.sha256), 0
            ).decoded  # type: ignore[union-attr]
            for shard in range(manifest.shards):
                world.blobs.apply(read_index(manifest, shard), 0)
        except (BadInput, ResilientPsError) as error:
            raise Unusable(f"checkpoint {record.id}: {error}") from error
        for each in manifest.objects:
            raw = world.blobs.peek(each.name)
            if raw is None or hashlib.sha256(raw).hexdigest() != each.sha256:
                raise Unusable(f"checkpoint {record.id}: object {each.name} is lost or changed")
    for intent in world.attempts():
        cut = [record for record in world.checkpoints() if record.number == intent.number]
        if cut and intent.state != "done":
            raise Unusable(f"checkpoint {cut[0].id} is of an attempt that is {intent.state}")
