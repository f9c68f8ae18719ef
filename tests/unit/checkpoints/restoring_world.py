"""One server on models of etcd and of the object store, and checkpoints written by hand.

Everything is performed at once; timers fire when `wait` lets time pass. The store may be away, and
objects may be lost or changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from resilient_ps.checkpoints.bootstrap import RestoreWish
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.data_shards import DataShards
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    Delete,
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvWatch,
    LeaseRevoke,
    Put,
    Read,
    Txn,
)
from resilient_ps.coordinator.memory import Compacted, MemoryKv
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    ClusterConfig,
    IntentRecord,
    RestoreRecord,
    ServerRecord,
    counter_bytes,
)
from resilient_ps.errors import ResilientPsError
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import READER, WorkerId
from resilient_ps.machine import Event, Log, MessageArrived, Send, SetTimer, Started, TimerFired
from resilient_ps.messages import PROTOCOL, Answer, Hello, Kind, Part, PartAnswer, Request, Status
from resilient_ps.node import Node, NodeSettings, build_node
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobGot,
    BlobList,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreUnavailable,
)
from resilient_ps.storage.chunks import Chunk, ObjectBody
from resilient_ps.storage.manifest import JobEntry, Manifest, ObjectInfo, TableEntry
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import CheckpointId, chunks_name, index_name, manifest_name
from resilient_ps.storage.requests import sha256_of
from resilient_ps.storage.shard_index import (
    ChunkPlace,
    JobState,
    RankState,
    ShardIndex,
    TableState,
)
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.partition import partition
from resilient_ps.tables.spec import SparseSpec

KEYS = ClusterKeys("c")
SECOND_NS = 10**9
CLIENT = "client:1"
SETTINGS = CheckpointSettings(loss_grace_s=3.0)
TTL_S = 2
TABLE = SparseSpec("t", 1, "int64", Sum())
JOB = JobSpec(1, "j", 2, BSP())
PROCESS = 1 << 40
DATA_SHARDS = DataShards(1, "rows", 4, following=2)


def keys_of(count: int = 40) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.arange(1, count + 1, dtype=np.uint64)


class World:
    """See the module."""

    def __init__(self, *, stored: bool = True, guards: Guards = ALL_GUARDS) -> None:
        self.kv = MemoryKv()
        self.blobs = MemoryBlobs()
        self.now_ns = SECOND_NS
        self.stored = stored
        self.guards = guards
        self.store_away = False
        self.node: Node | None = None
        self.logs: list[Log] = []
        self.sent: list[Send] = []
        self._lives = 0
        self._drawn = 0
        self._timers: dict[str, int] = {}
        self._watch: int | None = None
        self._requests = 0

    # -- the server

    def start(self, restore: str = "auto", *, source: str = "", shards: int = 4) -> Node:
        """A new process of server s1."""
        self._lives += 1
        record = ServerRecord(
            "s1", self._lives, "127.0.0.1", 7000, "", "", 1.0, 0, "0.1", 1, "host"
        )
        settings = NodeSettings(
            "c",
            record,
            TTL_S,
            ClusterWishes(shards=shards),
            self.guards,
            SETTINGS if self.stored else None,
            RestoreWish(restore, source),
            SETTINGS.loss_grace_s,
        )
        self.node = build_node(settings, self._draw, wall_s=lambda: self.now_ns // SECOND_NS)
        self._timers, self._watch = {}, None
        self.handle(Started())
        self.handle(MessageArrived(CLIENT, Hello(PROTOCOL, "c", "a test")))
        return self.node

    def kill(self) -> None:
        """The process is gone, and so is its lease."""
        assert self.node is not None
        lease, self.node = self.node.membership.lease, None
        self._timers.clear()
        self.kv.apply(LeaseRevoke(lease), self.now_ns)

    def lose_etcd(self) -> None:
        """Everything in it."""
        self.kv = MemoryKv()

    def _draw(self, bits: int) -> int:
        self._drawn += 1
        return self._drawn % (1 << bits)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end_ns = self.now_ns + int(seconds * SECOND_NS)
        while self._timers:
            name, at_ns = min(self._timers.items(), key=lambda timer: (timer[1], timer[0]))
            if at_ns > end_ns:
                break
            del self._timers[name]
            self.now_ns = max(self.now_ns, at_ns)
            self.handle(TimerFired(name))
        self.now_ns = end_ns

    def handle(self, event: Event) -> None:
        """One step of the server, and what follows from it at once."""
        assert self.node is not None
        effects: list[Any] = [*self.node.handle(event, self.now_ns), *self._changes()]
        while effects:
            effect = effects.pop(0)
            match effect:
                case KvCall(ref, request):
                    effects += self.node.handle(self._ask(ref, request), self.now_ns)
                case KvWatch(_, prefix, revision):
                    self._watch = self.kv.watch(prefix, revision)
                case BlobCall():
                    effects += self.node.handle(self._do(effect), self.now_ns)
                case Send():
                    self.sent.append(effect)
                case Log():
                    self.logs.append(effect)
                case SetTimer(name, at_ns):
                    self._timers[name] = at_ns
                case _:
                    raise AssertionError(effect)
            effects += self._changes()

    def _ask(self, ref: int, request: Any) -> KvAnswered | KvFailed:
        try:
            return KvAnswered(ref, self.kv.apply(request, self.now_ns))
        except ResilientPsError as error:
            return KvFailed(ref, error, unknown=False)

    def _do(self, call: BlobCall) -> BlobAnswered | BlobFailed:
        if self.store_away:
            return BlobFailed(call.ref, StoreUnavailable("the store is away"))
        try:
            return BlobAnswered(call.ref, self.blobs.apply(call.request, self.now_ns // SECOND_NS))
        except ResilientPsError as error:
            return BlobFailed(call.ref, error)

    def _changes(self) -> list[Any]:
        if self._watch is None or self.node is None:
            return []
        batches = self.kv.poll(self._watch)
        assert not isinstance(batches, Compacted)
        return [
            effect
            for batch in batches
            for effect in self.node.handle(KvChanged(31, batch), self.now_ns)
        ]

    # -- etcd

    def put(self, key: bytes, value: bytes) -> None:
        self.kv.apply(Txn((), (Put(key, value),)), self.now_ns)
        if self.node is not None:
            self.handle(TimerFired("nothing"))

    def delete(self, key: bytes) -> None:
        self.kv.apply(Txn((), (Delete(key),)), self.now_ns)

    def get(self, key: bytes) -> bytes | None:
        items = self.kv.apply(Read(key), self.now_ns).items
        return items[0].value if items else None

    def config(self) -> ClusterConfig:
        value = self.get(KEYS.config)
        assert value is not None
        return ClusterConfig.from_bytes(value, KEYS.config)

    def restore(self) -> RestoreRecord | None:
        value = self.get(KEYS.restore)
        return None if value is None else RestoreRecord.from_bytes(value, KEYS.restore)

    def checkpoint_record(self, number: int) -> CheckpointRecord | None:
        value = self.get(KEYS.checkpoint(number))
        return None if value is None else CheckpointRecord.from_bytes(value, b"")

    def propose(self, number: int = 50, **details: Any) -> None:
        """An operator's wish to go back."""
        record = IntentRecord(number, "rollback", "", 0, 0, "open", {}, details)
        self.put(KEYS.counter("intents"), counter_bytes(number))
        self.put(KEYS.intent(number), record.to_bytes())

    def intent(self, number: int) -> IntentRecord:
        value = self.get(KEYS.intent(number))
        assert value is not None
        return IntentRecord.from_bytes(value, b"")

    # -- clients

    def ask(self, kind: Kind, *parts: Part, incarnation: int = 0, **more: Any) -> list[PartAnswer]:
        """What the shards answer."""
        self._requests += 1
        self.sent.clear()
        known = incarnation or self.config().incarnation
        request = Request(kind, self._requests, parts, known, **more)
        self.handle(MessageArrived(CLIENT, request))
        answers = [s.message for s in self.sent if isinstance(s.message, Answer)]
        self.values = [values for answer in answers for values in answer.values]
        return sorted(part for answer in answers for part in answer.parts)

    def rows(self, table: int = 1, count: int = 40) -> dict[int, int]:
        """What a reader pulls."""
        shards = self.config().shards
        _, counts, keys = partition(keys_of(count), shards)
        parts = [Part(n, count=int(size)) for n, size in enumerate(counts)]
        answers = self.ask(Kind.PULL, *parts, worker=READER, table=table, keys=keys)
        assert {answer.status for answer in answers} == {Status.OK}, answers
        return dict(zip(keys.tolist(), np.concatenate(self.values).tolist(), strict=True))

    def stand(self, rank: int, job: int = 1) -> PartAnswer:
        """Where a rank stands."""
        (answer,) = self.ask(Kind.STAND, Part(0), worker=WorkerId(job, rank, 0))
        return answer

    def serving(self) -> int:
        """How many shards the server serves."""
        assert self.node is not None
        return len(self.node.served())

    def said(self, event: str) -> list[dict[str, Any]]:
        """What was logged under this name."""
        return [dict(log.fields) for log in self.logs if log.event == event]

    # -- the store

    def do(self, request: Any) -> Any:
        return self.blobs.apply(request, self.now_ns // SECOND_NS)

    def names(self, prefix: str = "c/") -> list[str]:
        found = self.do(ListBlobs(prefix))
        assert isinstance(found, BlobList)
        return [item.name for item in found.items]

    def drop(self, name: str) -> None:
        self.do(DeleteBlobs((name,)))

    def change(self, name: str, *, cut: bool = False) -> None:
        """Another bit, or some bytes less."""
        got = self.do(GetBlob(name))
        assert isinstance(got, BlobGot)
        raw = bytearray(got.data)
        raw[-1] ^= 1
        self.do(PutBlob(name, bytes(raw[:-9] if cut else raw)))


def checkpoint(
    world: World,
    number: int,
    rows: Mapping[int, int],
    *,
    clock: int,
    shards: int = 4,
    cluster: str = "c",
    recorded: bool = True,
    data_shards: DataShards | None = None,
    incarnation: int = 1,
    written_by: str = "a test",
    has_table: bool = True,
) -> Written:
    """Write a checkpoint with these rows, and record it."""
    id = CheckpointId(incarnation, number, f"{number:08x}")
    written = Written(world, id, cluster, written_by)
    written.tables = (TableEntry("t", 1, TABLE.to_json()),) if has_table else ()
    written.write(rows, clock, shards, data_shards)
    if recorded:
        world.put(KEYS.checkpoint(number), written.record.to_bytes())
    return written


class Written:
    """A checkpoint in the store: its objects by shard."""

    def __init__(self, world: World, id: CheckpointId, cluster: str, written_by: str) -> None:
        self.world = world
        self.written_by = written_by
        self.tables: tuple[TableEntry, ...] = ()
        self.id = id
        self.cluster = cluster
        self.chunks: list[str] = []
        self.indexes: list[str] = []
        self.manifest = manifest_name(cluster, id)

    def write(
        self, rows: Mapping[int, int], clock: int, shards: int, data_shards: DataShards | None
    ) -> None:
        order, counts, keys = partition(np.array(sorted(rows), np.uint64), shards)
        values = np.array([rows[key] for key in sorted(rows)], np.int64)[order]
        ends = np.cumsum(counts)
        objects: list[ObjectInfo] = []
        indexes: list[ObjectInfo] = []
        for shard in range(shards):
            part = slice(int(ends[shard] - counts[shard]), int(ends[shard]))
            held = self._chunks(shard, keys[part], values[part])
            objects += [held[0]] if held else []
            raw = self._index(shard, shards, clock, int(counts[shard]), held).to_json()
            self.indexes.append(index_name(self.cluster, self.id, shard, PROCESS))
            indexes.append(self._put(self.indexes[-1], raw))
        manifest = Manifest(
            id=self.id,
            cluster=self.cluster,
            created_s=1_000 + self.id.number,
            written_by=self.written_by,
            replicas=1,
            clocks={"j": clock},
            base="",
            tables=self.tables,
            jobs=(
                JobEntry(
                    "j",
                    1,
                    2,
                    "bsp",
                    "running",
                    None,
                    None if data_shards is None else data_shards.to_json(),
                ),
            ),
            ring=(),
            indexes=tuple(indexes),
            objects=tuple(sorted(objects, key=lambda info: info.name)),
        )
        raw = manifest.to_json()
        info = self._put(self.manifest, raw)
        self.record = CheckpointRecord(
            self.id.number,
            str(self.id),
            self.id.incarnation,
            self.manifest,
            info.nbytes,
            info.sha256,
            {"j": clock},
            1_000 + self.id.number,
            info.nbytes,
            info.nbytes,
        )

    def _chunks(self, shard: int, keys: Any, values: Any) -> tuple[ObjectInfo, ChunkPlace] | None:
        if not len(keys):
            return None
        chunk = Chunk(1, "rows", 0, len(keys), 1, keys, values)
        body = ObjectBody((chunk,), {}).encode()
        (packed,) = body.info
        raw = b"".join(bytes(piece) for piece in body.pieces)
        name = chunks_name(self.cluster, self.id, shard, PROCESS, 1)
        self.chunks.append(name)
        place = ChunkPlace(
            table=1,
            kind="rows",
            at=0,
            end=len(keys),
            generation=0,
            object=0,
            offset=packed.offset,
            nbytes=packed.nbytes,
            raw_bytes=packed.raw_bytes,
            xxh128=packed.xxh128,
        )
        return self._put(name, raw), place

    def _index(
        self,
        shard: int,
        shards: int,
        clock: int,
        rows: int,
        held: tuple[ObjectInfo, ChunkPlace] | None,
    ) -> ShardIndex:
        ranks = tuple(
            RankState(rank, clock, True, 1, json.dumps({"row": 10 * clock + rank}).encode())
            for rank in range(2)
        )
        return ShardIndex(
            shard=shard,
            shards=shards,
            cut=self.id.number,
            tables=(TableState(1, TABLE.to_json(), 0.0, 1, rows),),
            jobs=(JobState(1, JOB.to_json(), clock, ranks),),
            objects=() if held is None else (held[0],),
            chunks=() if held is None else (held[1],),
        )

    def _put(self, name: str, raw: bytes) -> ObjectInfo:
        self.world.do(PutBlob(name, raw))
        return ObjectInfo(name, len(raw), sha256_of([raw]))
