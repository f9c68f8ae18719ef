"""One server whose shards are imaged into the model of a store, in virtual time."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from resilient_ps.checkpoints.imaging import Imaging
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.consistency import ASP, JobSpec
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue
from resilient_ps.coordinator.records import CheckpointRecord, ClusterConfig, IntentRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.cut import Cut
from resilient_ps.errors import ResilientPsError
from resilient_ps.ids import Epoch, Position, WorkerId
from resilient_ps.machine import Effect, Log, SetTimer
from resilient_ps.messages import Command, Entry, Kind, Status
from resilient_ps.restoring import RestoredShard
from resilient_ps.shard import Shard
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobGot,
    BlobRequest,
    GetBlob,
    PutBlob,
)
from resilient_ps.storage.manifest import Manifest, ObjectInfo, ShardIndex, TableEntry
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import CheckpointId, manifest_name
from resilient_ps.storage.reading import indexes_needed, plan_load, read_index, read_manifest
from resilient_ps.storage.requests import sha256_of
from resilient_ps.tables.optimisers import Adagrad
from resilient_ps.tables.partition import partition
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec

ME, PROCESS, JOB, RANKS = "s1", 0xABC, 1, 2
MS, SECOND = 1_000_000, 1_000_000_000
EPOCH = Epoch(1, 1)
SPARSE = SparseSpec("t/sparse", 14, optimiser=Adagrad(lr=0.1))
DENSE = DenseSpec("t/dense", (300, 1000), optimiser=Adagrad(lr=0.1))

Fault = Callable[[BlobRequest, int], ResilientPsError | int]
"""(request, its attempts before) -> an error, or how many nanoseconds it takes."""


def quick(request: BlobRequest, before: int) -> int:
    """A store without faults."""
    return MS


@dataclass
class World:
    """`step` until something; `cut` and `publish` do what coordinator and shards do."""

    shards: int = 2
    tables: tuple[TableSpec, ...] = (SPARSE, DENSE)
    settings: CheckpointSettings = field(default_factory=CheckpointSettings)
    fault: Fault = quick
    now_ns: int = 0
    incarnation: int = 1

    def __post_init__(self) -> None:
        self.store = MemoryBlobs()
        self.keys = ClusterKeys("c")
        self.view = ClusterView(self.keys)
        self.etcd: dict[bytes, bytes] = {}
        self.logs: list[Log] = []
        self.calls: list[BlobRequest] = []
        self.in_flight = self.most_in_flight = 0
        self.clock = [0] * RANKS
        self._queue: list[tuple[int, int, Any]] = []
        self._count = 0
        self._attempts: dict[str, int] = {}
        self.replicas: dict[int, Any] = {}
        for number in range(self.shards):
            self.replicas[number] = SimpleNamespace(shard=self._new_shard(number))
        self.imaging = Imaging("c", PROCESS, self.view, self.replicas, self.settings)
        self.put_record(
            self.keys.config,
            ClusterConfig("0" * 32, self.incarnation, self.shards, 1, 1, 1, 1, "test"),
        )

    def _new_shard(self, number: int) -> Shard:
        shard = Shard(number, self.shards)
        shard.server = ME
        spec = JobSpec(JOB, "train", RANKS, ASP())
        for table, each in enumerate(self.tables, 1):
            apply(shard, Command(Kind.OPEN_TABLE, table=table, text=each.to_json().encode()))
        job = WorkerId(JOB, 0, 0)
        apply(shard, Command(Kind.OPEN_JOB, job, text=spec.to_json().encode()))
        for rank in range(RANKS):
            apply(shard, Command(Kind.FENCE, WorkerId(JOB, rank, 1)))
        return shard

    # -- training

    def push(self, rank: int, keys: np.ndarray, seed: int = 0) -> None:
        """One push of rows to table 1, and a tick."""
        clock = self.clock[rank] = self.clock[rank] + 1
        worker = WorkerId(JOB, rank, 1)
        order, counts, grouped = partition(keys, self.shards)
        rows = np.random.default_rng([seed, clock, rank]).standard_normal(
            (len(keys), SPARSE.dim), np.float32
        )
        ends = np.cumsum(counts)
        for number, replica in self.replicas.items():
            shard = replica.shard
            part = slice(int(ends[number] - counts[number]), int(ends[number]))
            n = int(counts[number] > 0)
            if n:
                values = rows[order[part]].reshape(-1)
                apply(
                    shard,
                    Command(Kind.PUSH, worker, clock, 1, 0, 1, keys=grouped[part], values=values),
                )
            cursor = b"cursor %d" % clock
            apply(shard, Command(Kind.TICK, worker, clock, n, n, text=cursor))

    # -- what the coordinator does

    def put_record(self, key: bytes, record: Any) -> None:
        self.etcd[key] = record.to_bytes()
        revision = self.view.revision + 1
        items = [KeyValue(key, value, 1, revision, 1) for key, value in self.etcd.items()]
        self.view.load(items, revision)
        assert not self.view.problems
        self.perform(self.imaging.look(self.now_ns))

    def intend(
        self, number: int, clock: int, base: str = "", state: Any = "open", attempt: int = 0
    ) -> CheckpointId:
        id = CheckpointId.of(self.incarnation, number, number)
        plan = CutPlan(str(id), {"train": clock}, {"train": JOB}, base=base, attempt=attempt)
        record = IntentRecord(number, "cut", "", 0, 0, state, details=plan.details())
        self.put_record(self.keys.intent(number), record)
        return id

    def tell_cut(self, number: int, clock: int, base: str = "", *, hold: bool = False) -> None:
        cut = Cut(number, ((JOB, clock),), ME, base=base, hold=hold)
        for replica in self.replicas.values():
            apply(replica.shard, Command(Kind.CUT, n=number, text=cut.to_json().encode()))

    def cut(
        self, number: int, base: str = "", ahead: int = 0, *, hold: bool = False, attempt: int = 0
    ) -> CheckpointId:
        """A cut at the furthest clock."""
        clock = max(self.clock) + ahead
        id = self.intend(number, clock, base, attempt=attempt)
        self.tell_cut(number, clock, base, hold=hold)
        return id

    def told(self, cut: int) -> dict[str, Any]:
        told = json.loads(self.imaging.told(cut))
        assert told["cut"] == cut
        found: dict[str, Any] = told["images"]
        return found

    def states(self, cut: int) -> list[str]:
        return [each["state"] for each in self.told(cut).values()]

    def publish(self, id: CheckpointId, base: str = "") -> Manifest:
        """All images are done: the manifest, and its record."""
        told = self.told(id.number)
        assert sorted(told) == [str(shard) for shard in range(self.shards)]
        infos = tuple(
            ObjectInfo(each["index"], each["bytes"], each["sha256"]) for each in told.values()
        )
        objects: dict[str, ObjectInfo] = {}
        specs: dict[int, str] = {}
        draft = Manifest(
            id, "c", 1, "test", 1, {"train": max(self.clock)}, base,
            (), (), (), infos, (),
        )  # fmt: skip
        for info in infos:
            index = ShardIndex.from_json(self.store.peek(info.name) or b"", info.name)
            objects |= {each.name: each for each in index.objects}
            specs |= {table.number: table.spec for table in index.tables}
        manifest = replace(
            draft,
            objects=tuple(objects[name] for name in sorted(objects)),
            tables=tuple(TableEntry(f"t{n}", n, spec) for n, spec in sorted(specs.items())),
        )
        raw = manifest.to_json()
        name = manifest_name("c", id)
        self.store.apply(PutBlob(name, raw, "create"), 0)
        self.put_record(
            self.keys.checkpoint(id.number),
            CheckpointRecord(
                id.number, str(id), id.incarnation, name, len(raw), sha256_of([raw]),
                {"train": max(self.clock)}, 1, 1, 1,
            ),
        )  # fmt: skip
        self.intend(id.number, max(self.clock), base, "done")
        return manifest

    def checkpoint(self, number: int, base: str = "") -> tuple[CheckpointId, Manifest]:
        id = self.cut(number, base)
        self.run_until(lambda: set(self.states(number)) == {"done"})
        return id, self.publish(id, base)

    # -- the host

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SetTimer(_, at_ns):  # in place of the one that is set, if there is one
                    self._queue = [each for each in self._queue if each[2] is not None]
                    heapq.heapify(self._queue)
                    self._later(at_ns, None)
                case BlobCall():
                    self._call(effect)
                case Log():
                    self.logs.append(effect)
                case _:
                    raise AssertionError(effect)

    def _later(self, at_ns: int, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_ns, self._count, what))

    def _call(self, call: BlobCall) -> None:
        request = call.request
        self.calls.append(request)
        name = getattr(request, "name", "")
        before = self._attempts.get(name, 0)
        self._attempts[name] = before + 1
        verdict = self.fault(request, before)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if isinstance(verdict, int):
            self._later(self.now_ns + verdict, call)
        else:
            self._later(self.now_ns + MS, BlobFailed(call.ref, verdict))

    def step(self) -> bool:
        """The next event; False if there is none."""
        if not self._queue:
            return False
        at_ns, _, what = heapq.heappop(self._queue)
        self.now_ns = max(self.now_ns, at_ns)
        if what is None:
            self.perform(self.imaging.on_timer(self.now_ns))
            return True
        self.in_flight -= 1
        if isinstance(what, BlobCall):
            try:
                what = BlobAnswered(what.ref, self.store.apply(what.request, 0))
            except ResilientPsError as error:
                what = BlobFailed(what.ref, error)
        self.perform(self.imaging.on_blob(what, self.now_ns))
        return True

    def run_until(self, done: Callable[[], bool], steps: int = 20_000) -> None:
        for _ in range(steps):
            if done():
                return
            assert self.step(), "nothing happens any more"
        raise AssertionError(self.imaging.told(self.view.open_intents[-1].number))

    def run_for(self, duration_ns: int) -> None:
        until_ns = self.now_ns + duration_ns
        while self._queue and self._queue[0][0] <= until_ns:
            self.step()
        self.now_ns = until_ns

    @property
    def idle(self) -> bool:
        """Is nothing to be done at any time?"""
        return not self._queue

    # -- what was written

    def restored(self, id: CheckpointId, shards: int = 1) -> list[Shard]:
        """Shards that are built of a checkpoint."""
        manifest = self._get(read_manifest(manifest_name("c", id)))
        wanted = list(range(shards))
        needed = indexes_needed(manifest, shards, wanted)
        plan = plan_load([self._get(read_index(manifest, n)) for n in needed], shards, wanted)
        built = [RestoredShard(number, shards) for number in wanted]
        tables = [[t.number, t.spec, t.lr, t.writer, t.rows] for t in plan.tables]
        for each in built:
            each.take_head(tables, [])
        for fetch in plan.fetches:
            for portion in self._get(fetch.request):
                taker = built[portion.shard]
                if portion.kind == "elements":
                    taker.take_elements(portion.table, portion.at, portion.end, portion.content)
                else:
                    taker.take_rows(portion.table, portion.keys, portion.content)
        return [each.finish() for each in built]

    def indexes(self, manifest: Manifest) -> list[ShardIndex]:
        """As they stand in the store."""
        return [self._get(read_index(manifest, shard)) for shard in range(manifest.shards)]

    def uploaded_bytes(self, id: CheckpointId) -> int:
        """Of all objects that were written for this checkpoint, but the manifest."""
        own = [name for name in self.store.names() if f"/{id}/shard-" in name]
        return sum(len(self.store.peek(name) or b"") for name in own)

    def _get(self, request: GetBlob) -> Any:
        result = self.store.apply(request, 0)
        assert isinstance(result, BlobGot)
        return result.decoded

    def digests(self) -> list[dict[int, str]]:
        """Of all tables of all shards, as they are now."""
        return [digests_of(replica.shard) for replica in self.replicas.values()]


def digests_of(shard: Shard) -> dict[int, str]:
    return {number: table.digest() for number, table in shard.tables.items()}


def apply(shard: Shard, command: Command) -> None:
    answer = shard.apply(Entry(Position(EPOCH, shard.lsn + 1), command))
    assert answer.status is Status.OK, answer
