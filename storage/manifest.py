"""The manifest: what a checkpoint consists of.

It is the last object that is written, and the only one that anything else points to: it names the
index of every shard, and every object that the checkpoint needs, those of earlier checkpoints among
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from resilient_ps.storage.documents import Damaged, Fields, ForeignFormat, JsonObject, parse, render
from resilient_ps.storage.names import MAX_CUT, MAX_INCARNATION, MAX_SHARD, UINT64_MAX, CheckpointId
from resilient_ps.storage.shard_index import (
    INDEX_BYTES_MAX,
    MAX_JOBS,
    MAX_OBJECTS,
    MAX_RANKS,
    MAX_SPEC_CHARS,
    MAX_TABLES,
    NUMBER_MAX,
    ChunkKind,
    ChunkPlace,
    JobState,
    ObjectInfo,
    Part,
    RankState,
    ShardIndex,
    TableState,
)

MANIFEST_FORMAT = "resilient-ps checkpoint"
MANIFEST_VERSION = 1
MANIFEST_BYTES_MAX = 64 << 20
MAX_MEMBERS = 1_024
MAX_NAMESPACES = 10_000

__all__ = [
    "INDEX_BYTES_MAX",
    "MANIFEST_BYTES_MAX",
    "ChunkKind",
    "ChunkPlace",
    "Damaged",
    "ForeignFormat",
    "JobEntry",
    "JobState",
    "Manifest",
    "NamespaceEntry",
    "ObjectInfo",
    "RankState",
    "RingEntry",
    "ShardIndex",
    "TableEntry",
    "TableState",
    "Totals",
]

IMPORTED_BY = "import by "  # what `written_by` begins with, of who makes one of files


@dataclass(frozen=True, slots=True)
class TableEntry(Part):
    """A table of the cluster; `spec` as it stands in etcd."""

    name: str
    number: int
    spec: str

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(
            name=given.text("name", least=1),
            number=given.integer("number", 1, NUMBER_MAX),
            spec=given.text("spec", least=2, most=MAX_SPEC_CHARS),
        )


@dataclass(frozen=True, slots=True)
class JobEntry(Part):
    """A job of the cluster. `data_shards`: the record of its data shards as of the cut, or None."""

    name: str
    number: int
    ranks: int
    consistency: str
    state: str
    evict_after_s: float | None = None
    data_shards: JsonObject | None = None

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(
            name=given.text("name", least=1),
            number=given.integer("number", 1, NUMBER_MAX),
            ranks=given.integer("ranks", 1, MAX_RANKS),
            consistency=given.text("consistency", least=1),
            state=given.text("state", least=1),
            evict_after_s=given.optional_number("evict_after_s"),
            data_shards=given.optional_mapping("data_shards"),
        )


@dataclass(frozen=True, slots=True)
class NamespaceEntry(Part):
    """A namespace that was registered, and its quota; None: no bound."""

    name: str
    rows_max: int | None
    bytes_max: int | None

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(
            name=given.text("name", least=1),
            rows_max=given.optional_integer("rows_max"),
            bytes_max=given.optional_integer("bytes_max"),
        )


@dataclass(frozen=True, slots=True)
class RingEntry(Part):
    """A server that was to hold shards."""

    server: str
    weight: float
    zone: str

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(given.text("server", least=1), given.number("weight"), given.text("zone"))


@dataclass(frozen=True, slots=True)
class Totals(Part):
    """Bytes: of all content, as stored, written for this checkpoint, and used again."""

    raw_bytes: int = 0
    stored_bytes: int = 0
    uploaded_bytes: int = 0
    reused_bytes: int = 0

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(
            raw_bytes=given.integer("raw_bytes"),
            stored_bytes=given.integer("stored_bytes"),
            uploaded_bytes=given.integer("uploaded_bytes"),
            reused_bytes=given.integer("reused_bytes"),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint. `indexes`: the index of each shard's image, in the order of the shards.

    `clocks`: the last clock that is in it, by the name of the job. `base`: the id of the checkpoint
    whose chunks it uses again, "" if there is none. `objects`: all that hold chunks of it, by name.
    `created_s`: seconds since 1970.
    """

    id: CheckpointId
    cluster: str
    created_s: int
    written_by: str  # server and version, for people
    replicas: int
    clocks: Mapping[str, int]
    base: str
    tables: tuple[TableEntry, ...]
    jobs: tuple[JobEntry, ...]
    ring: tuple[RingEntry, ...]
    indexes: tuple[ObjectInfo, ...]
    objects: tuple[ObjectInfo, ...]
    totals: Totals = field(default_factory=Totals)
    namespaces: tuple[NamespaceEntry, ...] = ()

    @property
    def shards(self) -> int:
        """How many shards the cluster had."""
        return len(self.indexes)

    @property
    def imported(self) -> bool:
        """Was it made of files, not of what a cluster held?"""
        return self.written_by.startswith(IMPORTED_BY)

    @property
    def nonce(self) -> str:
        """Tells an own manifest from another one of the same name."""
        return self.id.nonce

    @classmethod
    def from_json(cls, raw: bytes, name: str) -> Self:
        """Read a manifest; `name` is the object's. Raises `Damaged` and `ForeignFormat`."""
        given = parse(raw, name, MANIFEST_FORMAT, MANIFEST_VERSION, MANIFEST_BYTES_MAX)
        parts = (
            given.integer("incarnation", 1, MAX_INCARNATION),
            given.integer("number", 1, MAX_CUT),
            given.text("nonce"),
        )
        if given.text("id") != str(parts[0]) + f"-{parts[1]}-{parts[2]}":
            given.fail("its id is not made of incarnation, number and nonce")
        shards = given.integer("shards", 1, MAX_SHARD + 1)
        manifest = cls(
            id=_id_of(parts, given),
            cluster=given.text("cluster", least=1),
            created_s=given.integer("created_s"),
            written_by=given.text("written_by"),
            replicas=given.integer("replicas", 1),
            clocks=given.numbers("clocks", UINT64_MAX, count=MAX_JOBS),
            base=given.text("base"),
            tables=given.each("tables", TableEntry.read, most=MAX_TABLES),
            jobs=given.each("jobs", JobEntry.read, most=MAX_JOBS),
            ring=given.each("ring", RingEntry.read, most=MAX_MEMBERS),
            indexes=given.each("indexes", ObjectInfo.read, most=MAX_SHARD + 1),
            objects=given.each("objects", ObjectInfo.read, most=MAX_OBJECTS),
            totals=Totals.read(given.inner("totals")),
            namespaces=given.optional_each("namespaces", NamespaceEntry.read, most=MAX_NAMESPACES),
        )
        given.end()
        if manifest.shards != shards:
            given.fail(f"it has {shards} shards, but the indexes of {manifest.shards}")
        return manifest

    def to_json(self) -> bytes:
        """The bytes to store; equal manifests give equal bytes. Raises BadInput if too long."""
        document = {
            "id": str(self.id),
            "cluster": self.cluster,
            "incarnation": self.id.incarnation,
            "number": self.id.number,
            "nonce": self.id.nonce,
            "created_s": self.created_s,
            "written_by": self.written_by,
            "clocks": dict(sorted(self.clocks.items())),
            "base": self.base,
            "shards": self.shards,
            "replicas": self.replicas,
            "totals": self.totals.fields(),
            "tables": [each.fields() for each in self.tables],
            "jobs": [each.fields() for each in self.jobs],
            "ring": [each.fields() for each in self.ring],
            "indexes": [each.fields() for each in self.indexes],
            "objects": [each.fields() for each in self.objects],
        }
        if self.namespaces:  # else an earlier version can read it, too
            document["namespaces"] = [each.fields() for each in self.namespaces]
        return render(document, MANIFEST_FORMAT, MANIFEST_VERSION, MANIFEST_BYTES_MAX)


def _id_of(parts: tuple[int, int, str], given: Fields) -> CheckpointId:
    try:
        return CheckpointId.of(*parts)
    except ValueError as error:
        given.fail(str(error))
