"""What the object store held at the moments that matter, for checkers.

When etcd first names a checkpoint, it is read whole: is everything there, and what does it hold?
When objects are deleted, or the cluster's configuration changes, it is noted what that meant then.
Nothing of this is known to the servers, nor takes time in the world.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from resilient_ps.chaos.checkers.cuts import RankStand
from resilient_ps.chaos.checkers.incarnations import Configured
from resilient_ps.chaos.checkers.published import Publication, Sweep
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Event, Read
from resilient_ps.coordinator.records import CheckpointRecord, ClusterConfig, IntentRecord
from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import BlobRequest, DeleteBlobs
from resilient_ps.storage.chunks import decode
from resilient_ps.storage.manifest import Manifest, ObjectInfo, ShardIndex
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import marker_name, markers_prefix

if TYPE_CHECKING:
    from resilient_ps.chaos.sim.process import Process
    from resilient_ps.chaos.sim.world import World


class Incomplete(Exception):
    """A checkpoint that is not all there; the text says what is missing or wrong."""


@dataclass(slots=True)
class Stored:
    """A checkpoint, as it was read. `clocks`: by job number, without jobs that were at rest.

    `rows`: by table and key, the first value of each row of whole numbers that is not 0. `stands`:
    by job, shard and rank.
    """

    id: str
    number: int
    clocks: dict[int, int]
    names: frozenset[str]  # of all its objects
    rows: dict[int, dict[int, int]] = field(default_factory=dict)
    stands: dict[int, dict[int, dict[int, RankStand]]] = field(default_factory=dict)

    def ticked(self, job: int) -> dict[int, int]:
        """The last clock of each rank of a job, as the first shard says."""
        ranks = next(iter(self.stands.get(job, {}).values()), {})
        return {rank: stand.ticked for rank, stand in ranks.items()}


def read_checkpoint(blobs: MemoryBlobs, record: CheckpointRecord) -> Stored:
    """Read all of it. Raises `Incomplete`."""
    try:
        raw = _whole(blobs, ObjectInfo(record.manifest, record.nbytes, record.sha256))
        manifest = Manifest.from_json(raw, record.manifest)
        held = {info.name: _whole(blobs, info) for info in manifest.objects}
        indexes = [
            ShardIndex.from_json(_whole(blobs, info), info.name) for info in manifest.indexes
        ]
    except BadInput as error:
        raise Incomplete(str(error)) from error
    names = {record.manifest, *held, *[info.name for info in manifest.indexes]}
    numbers = {job.name: job.number for job in manifest.jobs}
    clocks = {numbers[name]: clock for name, clock in manifest.clocks.items()}
    stored = Stored(record.id, record.number, clocks, frozenset(names))
    for index in indexes:
        _add_rows(stored, index, held)
        for job in index.jobs:
            by_shard = stored.stands.setdefault(job.number, {})
            by_shard[index.shard] = {
                rank.rank: RankStand(rank.ticked, rank.live, rank.cursor) for rank in job.ranks
            }
    return stored


def _whole(blobs: MemoryBlobs, info: ObjectInfo) -> bytes:
    data = blobs.peek(info.name)
    if data is None:
        raise Incomplete(f"{info.name} is missing")
    if len(data) != info.nbytes or hashlib.sha256(data).hexdigest() != info.sha256:
        raise Incomplete(f"{info.name} is not what was written")
    return data


def _add_rows(stored: Stored, index: ShardIndex, held: dict[str, bytes]) -> None:
    for place in sorted(index.chunks, key=lambda place: place.generation):
        info = index.objects[place.object]
        if info.name not in held:
            raise Incomplete(f"{info.name} is not named in the manifest")
        chunk = decode(held[info.name][place.offset :][: place.nbytes], info.name)
        if chunk.content.dtype != np.int64 or not chunk.keys.size:
            continue
        rows = stored.rows.setdefault(place.table, {})
        firsts = chunk.content.reshape(chunk.keys.size, -1)[:, 0]
        for key, value in zip(chunk.keys.tolist(), firsts.tolist(), strict=True):
            rows[key] = value
            if not value:
                del rows[key]


class Archive:
    """Notes what became of checkpoints in a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys = ClusterKeys(world.cluster)
        self._blobs = world.bucket.blobs
        self.published: list[Publication] = []
        self.stored: dict[str, Stored] = {}  # by id: those that could be read
        self.sweeps: list[Sweep] = []
        self.configured: list[Configured] = []
        self._named: dict[tuple[int, bytes], str] = {}  # by life of etcd and key: a record's state
        world.audit.on_event.append(self._on_event)
        world.bucket.on_asked.append(self._on_asked)

    def records(self) -> list[CheckpointRecord]:
        """The checkpoints that etcd names now, in the order of their numbers."""
        found = self._world.kv.apply(Read(self._keys.checkpoints, prefix=True), self._world.now_ns)
        return [CheckpointRecord.from_bytes(item.value, item.key) for item in found.items]

    def good(self) -> list[CheckpointRecord]:
        """Those that may be used."""
        return [record for record in self.records() if record.state == "good"]

    def problem(self, record: CheckpointRecord) -> str:
        """What is wrong with a checkpoint now; "" if it is whole."""
        try:
            read_checkpoint(self._blobs, record)
        except Incomplete as error:
            return str(error)
        return ""

    # -- what happens

    def _on_event(self, world_ns: int, event: Event) -> None:
        item = event.item
        named = (self._world.store.wiped, item.key)
        if event.kind != "put":
            self._named.pop(named, None)
        elif item.key == self._keys.config:
            self._on_config(world_ns, ClusterConfig.from_bytes(item.value, item.key))
        elif item.key.startswith(self._keys.checkpoints):
            record = CheckpointRecord.from_bytes(item.value, item.key)
            before = self._named.get(named, "")
            self._named[named] = record.state
            if record.state == "good" and before != "good":
                self._on_checkpoint(world_ns, record)

    def _on_config(self, world_ns: int, config: ClusterConfig) -> None:
        marker = marker_name(self._world.cluster, config.incarnation)
        marked = self._blobs.peek(marker) is not None
        etcd = self._world.store.wiped
        self.configured.append(Configured(world_ns, config.incarnation, etcd, marked))

    def _on_checkpoint(self, world_ns: int, record: CheckpointRecord) -> None:
        problem = ""
        try:
            self.stored[record.id] = read_checkpoint(self._blobs, record)
        except Incomplete as error:
            problem = str(error)
        excused = any(name in problem for name in self._world.bucket.damaged)
        etcd = self._world.store.wiped
        self.published.append(Publication(world_ns, record.id, problem, excused, etcd))

    def _on_asked(self, process: Process, request: BlobRequest) -> None:
        if not isinstance(request, DeleteBlobs):
            return
        needed = {name: what for what, names in self._needed() for name in names}
        for name in request.names:
            if name.startswith(markers_prefix(self._world.cluster)):
                needed[name] = "the incarnations of the cluster"
        wrong = [(name, needed[name]) for name in request.names if name in needed]
        sweep = Sweep(self._world.now_ns, process.name, len(request.names), tuple(wrong))
        self.sweeps.append(sweep)

    def _needed(self) -> Iterator[tuple[str, Iterable[str]]]:
        """By who needs them: the objects of good checkpoints, and of the bases of open cuts."""
        for record in self.good():
            if record.id in self.stored:
                yield f"checkpoint {record.id}", self.stored[record.id].names
        found = self._world.kv.apply(Read(self._keys.intents, prefix=True), self._world.now_ns)
        for item in found.items:
            intent = IntentRecord.from_bytes(item.value, item.key)
            base = intent.details.get("base", "") if intent.kind == "cut" else ""
            if intent.state == "open" and base in self.stored:
                yield f"open cut {intent.number}", self.stored[str(base)].names
