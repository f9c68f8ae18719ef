"""What to read of a checkpoint: for shards of a cluster of any size, or to verify all of it.

Pure: it makes requests for a store, whose answers it decodes and verifies. A restore reads the
manifest (`read_manifest`), the indexes that it needs (`indexes_needed`, `read_index`), and then
what `plan_load` says, which may be done in parallel: a generation after the other, and no portion
before those of earlier generations have been taken in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from resilient_ps.storage.blobs import GetBlob
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.manifest import MANIFEST_BYTES_MAX, Manifest
from resilient_ps.storage.portions import (
    Portion,
    RangeReader,
    Takers,
    chunk_at,
    common_keys,
    elements_in_both,
    keys_in_both,
    verify,
)
from resilient_ps.storage.shard_index import (
    ChunkPlace,
    JobState,
    ObjectInfo,
    RankState,
    ShardIndex,
    TableState,
)
from resilient_ps.tables.spec import DenseSpec, TableSpec, spec_from_json

__all__ = [
    "Fetch",
    "LoadPlan",
    "Portion",
    "Verified",
    "chunk_at",
    "indexes_needed",
    "plan_load",
    "plan_verify",
    "read_index",
    "read_manifest",
    "rows_expected",
    "verify",
]

FETCH_BYTES = 16 << 20  # neighbours in an object are read together up to so much
GAP_BYTES = 64 << 10  # what is read in vain rather than by another request

_Numbered = TypeVar("_Numbered", TableState, JobState)


@dataclass(frozen=True, slots=True)
class Fetch:
    """One request of a load. The answer's `decoded` is a tuple of `Portion`s, in order."""

    generation: int
    nbytes: int  # to be transferred
    raw_bytes: int  # of the chunks in it
    held_bytes: int  # while it is decoded: what is stored as it is shares the answer's memory
    request: GetBlob = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What makes shards of a checkpoint.

    `tables` and `jobs` are as of the cut, on any shard; `rows` of a table says nothing. `fetches`
    are in order of generations.
    """

    tables: tuple[TableState, ...]
    jobs: tuple[JobState, ...]
    fetches: tuple[Fetch, ...]

    @property
    def nbytes(self) -> int:
        """Bytes to transfer."""
        return sum([fetch.nbytes for fetch in self.fetches])

    @property
    def raw_bytes(self) -> int:
        """Bytes of the chunks that are to be decoded."""
        return sum([fetch.raw_bytes for fetch in self.fetches])


# -- manifest and indexes


def read_manifest(name: str, nbytes: int = -1, sha256: str = "") -> GetBlob:
    """Read a manifest; the answer's `decoded` is the `Manifest`.

    With the size and SHA-256 that etcd has, it is verified; without (etcd was lost), its own form
    is all that there is to check.
    """
    most = MANIFEST_BYTES_MAX if nbytes < 0 else nbytes

    def read(raw: bytes) -> Manifest:
        if nbytes >= 0:
            verify(ObjectInfo(name, nbytes, sha256), raw)
        return Manifest.from_json(raw, name)

    return GetBlob(name, most=most, decode=read)


def read_index(manifest: Manifest, shard: int) -> GetBlob:
    """Read and verify the index of a shard's image; `decoded` is the `ShardIndex`."""
    info = manifest.indexes[shard]
    objects = {each.name: each for each in manifest.objects}

    def read(raw: bytes) -> ShardIndex:
        verify(info, raw)
        index = ShardIndex.from_json(raw, info.name)
        _check_index(index, info.name, shard, manifest)
        for each in index.objects:
            if objects.get(each.name) != each:
                raise Damaged(f"object {info.name}: its manifest has not the same {each.name}")
        return _as_listed(index, manifest)

    return GetBlob(info.name, most=info.nbytes, decode=read)


def _as_listed(index: ShardIndex, manifest: Manifest) -> ShardIndex:
    """Without tables that were dropped while images were made: not every shard has them whole."""
    listed = {table.number for table in manifest.tables}
    if all(table.number in listed for table in index.tables):
        return index
    return replace(
        index,
        tables=tuple(table for table in index.tables if table.number in listed),
        chunks=tuple(chunk for chunk in index.chunks if chunk.table in listed),
    )


def indexes_needed(manifest: Manifest, shards: int, wanted: Collection[int]) -> tuple[int, ...]:
    """Of which of the manifest's shards these shards (of a cluster of `shards`) need the index."""
    specs = [spec_from_json(table.spec) for table in manifest.tables]
    olds = manifest.shards
    return tuple(
        [
            old
            for old in range(olds)
            if any(_may_overlap(specs, old, olds, new, shards) for new in wanted)
        ]
    )


def _may_overlap(specs: Iterable[TableSpec], old: int, olds: int, new: int, news: int) -> bool:
    if olds == news:
        return old == new
    if keys_in_both(old, olds, new, news):
        return True
    return any(
        elements_in_both(spec, old, olds, new, news)
        for spec in specs
        if isinstance(spec, DenseSpec)
    )


def _check_index(index: ShardIndex, name: str, shard: int, manifest: Manifest) -> None:
    expected = (shard, manifest.shards, manifest.id.number)
    if (index.shard, index.shards, index.cut) != expected:
        raise Damaged(
            f"object {name} is of shard {index.shard} of {index.shards} at cut {index.cut}, not "
            "what its manifest says"
        )
    chunks: dict[int, list[ChunkPlace]] = {}
    for chunk in index.chunks:
        chunks.setdefault(chunk.table, []).append(chunk)
    for table in index.tables:
        if not _is_whole(chunks.get(table.number, []), table.rows):
            raise Damaged(f"object {name}: chunks of table {table.number} do not make all of it")


def _is_whole(chunks: list[ChunkPlace], rows: int) -> bool:
    """Runs one after the other, up to the last row, or to where deltas add to them."""
    runs = sorted([(chunk.at, chunk.end) for chunk in chunks if chunk.kind != "delta"])
    is_dense = any(chunk.kind == "elements" for chunk in chunks)
    first = runs[0][0] if is_dense else 0
    ends = [first, *[end for _, end in runs]]
    has_deltas = len(runs) < len(chunks)
    return [at for at, _ in runs] == ends[:-1] and (ends[-1] - first == rows or has_deltas)


# -- loading


def plan_load(indexes: Sequence[ShardIndex], shards: int, wanted: Collection[int]) -> LoadPlan:
    """How to make the shards `wanted` of a cluster of `shards` from these indexes.

    With `shards` 1 and `wanted` (0,) this is everything, as for an export.
    """
    ordered = sorted(indexes, key=lambda index: index.shard)
    tables = _merged([index.tables for index in ordered], _merge_tables)
    specs = {table.number: spec_from_json(table.spec) for table in tables}
    fetches: list[tuple[int, int, Fetch]] = []
    for index in ordered:
        takers = Takers(specs, index.shard, index.shards, shards, tuple(sorted(wanted)))
        chunks = [chunk for chunk in index.chunks if takers.of(chunk)]
        chunks.sort(key=lambda chunk: (chunk.generation, chunk.object, chunk.offset))
        for turn, run in enumerate(_runs(chunks)):
            fetch = _fetch(index.objects[run[0].object], run, takers)
            fetches.append((fetch.generation, turn, fetch))
    fetches.sort(key=lambda each: each[:2])  # of all shards in turn: they can be made in parallel
    jobs = _merged([index.jobs for index in ordered], _merge_jobs)
    return LoadPlan(tables, jobs, tuple([fetch for _, _, fetch in fetches]))


def plan_head(
    manifest: Manifest, indexes: Iterable[ShardIndex], shards: int, shard: int
) -> tuple[tuple[TableState, ...], tuple[JobState, ...]]:
    """Tables and jobs of one of these shards: of the indexes that it needs, and of no others.

    So all servers that make the shard make the same one, whatever else they read indexes for.
    """
    needed = indexes_needed(manifest, shards, (shard,))
    ordered = sorted([i for i in indexes if i.shard in needed], key=lambda index: index.shard)
    tables = _merged([index.tables for index in ordered], _merge_tables)
    return tables, _merged([index.jobs for index in ordered], _merge_jobs)


def rows_expected(indexes: Iterable[ShardIndex], shards: int, shard: int) -> dict[int, int]:
    """About how many rows each sparse table will have on one of these shards."""
    found: dict[int, int] = {}
    for index in indexes:
        share = common_keys(index.shard, index.shards, shard, shards)
        for table in index.tables:
            if share and not isinstance(spec_from_json(table.spec), DenseSpec):
                found[table.number] = found.get(table.number, 0) + int(table.rows * share)
    return found


def _runs(chunks: Iterable[ChunkPlace]) -> Iterator[list[ChunkPlace]]:
    """Neighbours in an object, of one generation."""
    run: list[ChunkPlace] = []
    for chunk in chunks:
        if run:
            last, end = run[-1], run[-1].offset + run[-1].nbytes
            is_near = (chunk.generation, chunk.object) == (last.generation, last.object)
            is_near = is_near and 0 <= chunk.offset - end <= GAP_BYTES
            if not is_near or chunk.offset + chunk.nbytes - run[0].offset > FETCH_BYTES:
                yield run
                run = []
        run.append(chunk)
    if run:
        yield run


def _fetch(info: ObjectInfo, run: list[ChunkPlace], takers: Takers) -> Fetch:
    first, last = run[0], run[-1]
    nbytes = last.offset + last.nbytes - first.offset
    reader = RangeReader(info.name, first.offset, tuple(run), takers)
    request = GetBlob(info.name, first.offset, nbytes, nbytes, reader)
    raw_bytes = sum([c.raw_bytes for c in run])
    packed_bytes = sum([c.raw_bytes for c in run if c.nbytes < c.raw_bytes])
    return Fetch(first.generation, nbytes, raw_bytes, nbytes + packed_bytes, request)


def _merged(parts: Iterable[Sequence[_Numbered]], merge: Any) -> tuple[_Numbered, ...]:
    """By number, what several shards have of the same things."""
    found: dict[int, _Numbered] = {}
    for part in parts:
        for each in part:
            earlier = found.get(each.number)
            found[each.number] = each if earlier is None else merge(earlier, each)
    return tuple([found[number] for number in sorted(found)])


def _merge_tables(one: TableState, other: TableState) -> TableState:
    """A table has a writer on the shards that were pushed to."""
    if one.spec != other.spec:
        raise Damaged(f"shards have different specifications of table {one.number}")
    return one if one.writer else other


def _merge_jobs(one: JobState, other: JobState) -> JobState:
    if one.spec != other.spec:
        raise Damaged(f"shards have different specifications of job {one.number}")
    ranks: dict[int, RankState] = {rank.rank: rank for rank in one.ranks}
    for rank in other.ranks:
        if rank.rank not in ranks or rank.ticked > ranks[rank.rank].ticked:
            ranks[rank.rank] = rank
    clock = max(one.clock, other.clock)
    return JobState(one.number, one.spec, clock, tuple([ranks[rank] for rank in sorted(ranks)]))


# -- verifying


class Verified(NamedTuple):
    """An object that is as it was written."""

    name: str
    nbytes: int
    chunks: int


def plan_verify(manifest: Manifest, indexes: Iterable[ShardIndex]) -> tuple[GetBlob, ...]:
    """Read every object of a checkpoint, and every chunk in it; `decoded` is `Verified`."""
    places: dict[str, list[ChunkPlace]] = {}
    for index in indexes:
        for chunk in index.chunks:
            places.setdefault(index.objects[chunk.object].name, []).append(chunk)
    return tuple([_verify_request(each, places.get(each.name, [])) for each in manifest.objects])


def _verify_request(info: ObjectInfo, places: list[ChunkPlace]) -> GetBlob:
    def check(raw: bytes) -> Verified:
        verify(info, raw)
        for place in places:
            chunk_at(info.name, place, memoryview(raw)[place.offset :])
        return Verified(info.name, info.nbytes, len(places))

    return GetBlob(info.name, most=info.nbytes, decode=check)
