"""The index of a shard's image: which chunk of which table stands where in which object.

A table's content in an image is a list of chunks: `rows` (a run of rows, in the order of their
creation), `delta` (rows that were changed since an earlier checkpoint, with their keys: they take
the place of those that came before), `elements` (a run of a dense table's elements). Chunks of a
later `generation` are read after those of earlier ones.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Self, TypeAlias, cast, get_args

from resilient_ps.storage.documents import Fields, JsonObject, parse, render
from resilient_ps.storage.names import MAX_CUT, MAX_SHARD

INDEX_FORMAT = "resilient-ps shard image"
INDEX_VERSION = 1
INDEX_BYTES_MAX = 64 << 20

MAX_TABLES = 100_000
MAX_JOBS = 10_000
MAX_RANKS = 65_536
MAX_OBJECTS = 1_000_000
MAX_CHUNKS = 1_000_000
MAX_GENERATION = 1_000
MAX_SPEC_CHARS = 32 * 1024
MAX_CURSOR_CHARS = 4 << 20
NUMBER_MAX = 2**32 - 1  # of tables and jobs

ChunkKind: TypeAlias = Literal["rows", "delta", "elements"]
CHUNK_KINDS: tuple[ChunkKind, ...] = get_args(ChunkKind)


class ChunkKey(NamedTuple):
    """The place of a chunk in a shard's image."""

    table: int
    kind: ChunkKind
    at: int
    end: int


class Part:
    """A frozen dataclass that is written field by field."""

    def fields(self) -> JsonObject:
        """As JSON."""
        return {each.name: getattr(self, each.name) for each in fields(cast(Any, self))}


@dataclass(frozen=True, slots=True)
class ObjectInfo(Part):
    """An object in the store; `sha256` in hexadecimal."""

    name: str
    nbytes: int
    sha256: str

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(given.text("name", least=1), given.integer("nbytes"), given.sha256("sha256"))


@dataclass(frozen=True, slots=True)
class ChunkPlace(Part):
    """One chunk: what it is a part of, and where its bytes stand.

    `rows`: those numbered `at` to `end - 1` of the table's rows on the shard. `delta`: likewise, of
    the rows that were changed. `elements`: their places in the whole flattened array, the same
    under any number of shards. `object` counts in the index's
    list of objects. `nbytes` and `xxh128` are of the chunk as it is stored, `raw_bytes` of its
    content.
    """

    table: int
    kind: ChunkKind
    at: int
    end: int
    generation: int
    object: int
    offset: int
    nbytes: int
    raw_bytes: int
    xxh128: str

    @property
    def key(self) -> ChunkKey:
        """What it is a part of."""
        return ChunkKey(self.table, self.kind, self.at, self.end)

    @classmethod
    def read(cls, given: Fields) -> Self:
        place = cls(
            table=given.integer("table", 1, NUMBER_MAX),
            kind=cast(ChunkKind, given.choice("kind", CHUNK_KINDS)),
            at=given.integer("at"),
            end=given.integer("end", 1),
            generation=given.integer("generation", 0, MAX_GENERATION),
            object=given.integer("object", 0, MAX_OBJECTS),
            offset=given.integer("offset"),
            nbytes=given.integer("nbytes", 1),
            raw_bytes=given.integer("raw_bytes", 1),
            xxh128=given.xxh128("xxh128"),
        )
        if place.at >= place.end:
            given.fail(f"a chunk of table {place.table} goes from {place.at} to {place.end}")
        return place


@dataclass(frozen=True, slots=True)
class TableState(Part):
    """A table on a shard, apart from its content. `rows`: rows, or elements if it is dense."""

    number: int
    spec: str
    lr: float
    writer: int
    rows: int

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(
            number=given.integer("number", 1, NUMBER_MAX),
            spec=given.text("spec", least=2, most=MAX_SPEC_CHARS),
            lr=given.number("lr"),
            writer=given.integer("writer", 0, NUMBER_MAX),
            rows=given.integer("rows"),
        )


@dataclass(frozen=True, slots=True)
class RankState(Part):
    """A rank as of the cut. `started`: the first clock that it takes part in."""

    rank: int
    ticked: int
    live: bool
    started: int
    cursor: bytes

    @classmethod
    def read(cls, given: Fields) -> Self:
        rank = given.integer("rank", 0, MAX_RANKS - 1)
        ticked, live = given.integer("ticked"), given.flag("live")
        started, text = given.integer("started"), given.text("cursor", most=MAX_CURSOR_CHARS)
        try:
            return cls(rank, ticked, live, started, base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            given.fail(f"the cursor of rank {rank} is not in base64 ({error})")

    def fields(self) -> JsonObject:
        return {**Part.fields(self), "cursor": base64.b64encode(self.cursor).decode()}


@dataclass(frozen=True, slots=True)
class JobState(Part):
    """A job on a shard. `clock`: the last one that BSP has applied (0 under SSP and ASP)."""

    number: int
    spec: str
    clock: int
    ranks: tuple[RankState, ...]

    @classmethod
    def read(cls, given: Fields) -> Self:
        return cls(
            number=given.integer("number", 1, NUMBER_MAX),
            spec=given.text("spec", least=2, most=MAX_SPEC_CHARS),
            clock=given.integer("clock"),
            ranks=given.each("ranks", RankState.read, most=MAX_RANKS),
        )

    def fields(self) -> JsonObject:
        return {**Part.fields(self), "ranks": [rank.fields() for rank in self.ranks]}


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The image of shard `shard` of `shards` at cut `cut`."""

    shard: int
    shards: int
    cut: int
    tables: tuple[TableState, ...]
    jobs: tuple[JobState, ...]
    objects: tuple[ObjectInfo, ...]
    chunks: tuple[ChunkPlace, ...]

    @classmethod
    def from_json(cls, raw: bytes, name: str) -> Self:
        """Read an index; `name` is the object's. Raises `Damaged` and `ForeignFormat`."""
        given = parse(raw, name, INDEX_FORMAT, INDEX_VERSION, INDEX_BYTES_MAX)
        index = cls(
            shard=given.integer("shard", 0, MAX_SHARD),
            shards=given.integer("shards", 1, MAX_SHARD + 1),
            cut=given.integer("cut", 1, MAX_CUT),
            tables=given.each("tables", TableState.read, most=MAX_TABLES),
            jobs=given.each("jobs", JobState.read, most=MAX_JOBS),
            objects=given.each("objects", ObjectInfo.read, most=MAX_OBJECTS),
            chunks=given.each("chunks", ChunkPlace.read, most=MAX_CHUNKS),
        )
        given.end()
        index._check(given)
        return index

    @classmethod
    def of_head(
        cls,
        place: tuple[int, int, int],
        head: tuple[list[Any], list[Any]],
        objects: tuple[ObjectInfo, ...],
        chunks: tuple[ChunkPlace, ...],
    ) -> Self:
        """An index of shard, shards and cut; `head` is what `ShardImage.head` gives."""
        tables, jobs = head
        return cls(
            *place,
            tuple([TableState(*table) for table in tables]),
            tuple([_job_of(*job) for job in jobs]),
            objects,
            chunks,
        )

    def to_json(self) -> bytes:
        """The bytes to store; equal indexes give equal bytes. Raises BadInput if too long."""
        document = {
            "shard": self.shard,
            "shards": self.shards,
            "cut": self.cut,
            "tables": [each.fields() for each in self.tables],
            "jobs": [each.fields() for each in self.jobs],
            "objects": [each.fields() for each in self.objects],
            "chunks": [each.fields() for each in self.chunks],
        }
        return render(document, INDEX_FORMAT, INDEX_VERSION, INDEX_BYTES_MAX)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks as they are stored."""
        return sum([chunk.nbytes for chunk in self.chunks])

    @property
    def raw_bytes(self) -> int:
        """Bytes of the content of all chunks."""
        return sum([chunk.raw_bytes for chunk in self.chunks])

    def _check(self, given: Fields) -> None:
        """Chunks belong to tables, and lie within objects."""
        if self.shard >= self.shards:
            given.fail(f"it is of shard {self.shard} of {self.shards}")
        tables = {table.number: table for table in self.tables}
        for chunk in self.chunks:
            table = tables.get(chunk.table)
            if table is None:
                given.fail(f"a chunk belongs to table {chunk.table}, which it does not have")
            if chunk.kind == "rows" and chunk.end > table.rows:
                given.fail(
                    f"table {chunk.table} has {table.rows} rows, a chunk ends at {chunk.end}"
                )
            if chunk.object >= len(self.objects):
                given.fail(f"a chunk stands in object {chunk.object} of {len(self.objects)}")
            holder = self.objects[chunk.object]
            if chunk.offset + chunk.nbytes > holder.nbytes:
                given.fail(f"a chunk ends behind {holder.name}, which has {holder.nbytes} bytes")


def _job_of(number: int, spec: str, clock: int, ranks: list[Any]) -> JobState:
    states = [
        RankState(rank, ticked, live, started, base64.b64decode(cursor))
        for rank, ticked, live, started, cursor in ranks
    ]
    return JobState(number, spec, clock, tuple(states))
