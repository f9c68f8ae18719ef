"""What a shard takes of a checkpoint's chunks: verified, decoded, and with what is its own.

Sparse rows: `shard_of` is monotonic in the mixed key, so that shard j of N holds the part from j/N
to (j+1)/N of all hashes: a shard of another number takes from those that overlap with it, and only
the keys that are its own. Dense elements: by their place in the whole array.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilient_ps.storage.chunks import Chunk, decode, xxh128_of
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.requests import sha256_of
from resilient_ps.storage.shard_index import ChunkKind, ChunkPlace, ObjectInfo
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.partition import partition
from resilient_ps.tables.spec import DenseSpec, TableSpec

LAYOUTS_MAX = 1_024


class Portion(NamedTuple):
    """What shard `shard` takes of one chunk.

    `rows` and `delta`: `keys` and `content` (flat, `columns` values of each row), all of them the
    shard's own; at and end say nothing. `elements`: those at `at` to `end - 1` of the whole
    flattened array, with some among them that are not the shard's own.
    """

    shard: int
    table: int
    kind: ChunkKind
    at: int
    end: int
    columns: int
    keys: NDArray[np.uint64]
    content: NDArray[Any]


@functools.lru_cache(LAYOUTS_MAX)
def layout_of(spec: DenseSpec, shards: int) -> DenseLayout:
    """Where a table's elements are."""
    return DenseLayout(spec, shards)


def elements_in_both(spec: DenseSpec, old: int, olds: int, new: int, news: int) -> range:
    """The elements, in the whole array, that an old shard has and a new one is to have."""
    had = layout_of(spec, olds).shard_slice(old)
    wanted = layout_of(spec, news).shard_slice(new)
    return range(max(had.start, wanted.start), min(had.stop, wanted.stop))


def keys_in_both(old: int, olds: int, new: int, news: int) -> bool:
    """Are there keys on shard `old` of `olds` that belong on shard `new` of `news`?"""
    return old * news < (new + 1) * olds and new * olds < (old + 1) * news


def common_keys(old: int, olds: int, new: int, news: int) -> float:
    """The part of shard `old`'s keys, from 0 to 1, that belongs on shard `new`."""
    common = min((old + 1) * news, (new + 1) * olds) - max(old * news, new * olds)
    return max(0, common) / news


def verify(info: ObjectInfo, raw: bytes) -> None:
    """Raises `Damaged` if these bytes are not the whole object."""
    if len(raw) != info.nbytes:
        raise Damaged(
            f"object {info.name} has {len(raw)} bytes instead of {info.nbytes}: it was cut off, or "
            "replaced: use another checkpoint"
        )
    if sha256_of([raw]) != info.sha256:
        raise Damaged(
            f"object {info.name} has been changed since it was written (SHA-256 differs): use "
            "another checkpoint"
        )


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Verifies the chunks in a range of an object, decodes them, and cuts them into portions."""

    name: str
    first: int
    places: tuple[ChunkPlace, ...]
    takers: Takers

    def __call__(self, raw: bytes) -> tuple[Portion, ...]:
        portions: list[Portion] = []
        for place in self.places:
            chunk = chunk_at(self.name, place, memoryview(raw)[place.offset - self.first :])
            portions += self.takers.portions(chunk, self.name)
        return tuple(portions)


def chunk_at(name: str, place: ChunkPlace, raw: memoryview) -> Chunk:
    """The chunk that stands at the beginning of `raw`. Raises `Damaged` if it does not."""
    stored = raw[: place.nbytes]
    if len(stored) != place.nbytes or xxh128_of([stored]) != place.xxh128:
        raise Damaged(
            f"object {name}: bytes {place.offset} to {place.offset + place.nbytes} (table "
            f"{place.table}) are not what was written: use another checkpoint"
        )
    chunk = decode(stored, f"object {name} at {place.offset}")
    if (chunk.table, chunk.kind, chunk.at, chunk.end) != place.key:
        raise Damaged(f"object {name} at {place.offset}: another chunk than its index says")
    return chunk


@dataclass(frozen=True, slots=True)
class Takers:
    """Which of the shards `wanted` (of `shards`) take what of an old shard's chunks."""

    specs: Mapping[int, TableSpec]
    old: int
    olds: int
    shards: int
    wanted: tuple[int, ...]

    def of(self, place: ChunkPlace) -> list[int]:
        """The shards that take something of this chunk."""
        if self.olds == self.shards:
            return [new for new in self.wanted if new == self.old]
        spec = self.specs[place.table]
        if isinstance(spec, DenseSpec):
            return [new for new in self.wanted if self._has(spec, place.at, place.end, new)]
        return [new for new in self.wanted if keys_in_both(self.old, self.olds, new, self.shards)]

    def portions(self, chunk: Chunk, name: str) -> Iterator[Portion]:
        """What each of them takes."""
        spec = self.specs[chunk.table]
        if isinstance(spec, DenseSpec) != (chunk.kind == "elements"):
            raise Damaged(f"object {name}: {chunk.kind} of the {spec.describe()}")
        if isinstance(spec, DenseSpec):
            yield from self._of_elements(chunk, spec)
        elif self.olds == self.shards:
            for new in self.wanted:
                if new == self.old:
                    yield Portion(new, *chunk.parts())
        else:
            yield from self._of_rows(chunk)

    def _of_rows(self, chunk: Chunk) -> Iterator[Portion]:
        order, counts, keys = partition(chunk.keys, self.shards)
        rows = chunk.content.reshape(-1, chunk.columns)
        ends = np.cumsum(counts)
        for new in self.wanted:
            part = slice(int(ends[new] - counts[new]), int(ends[new]))
            if counts[new]:
                content = rows[order[part]].reshape(-1)
                yield Portion(
                    new, chunk.table, chunk.kind, 0, 0, chunk.columns, keys[part], content
                )

    def _of_elements(self, chunk: Chunk, spec: DenseSpec) -> Iterator[Portion]:
        for new in self.wanted:
            if self._has(spec, chunk.at, chunk.end, new):
                yield Portion(new, *chunk.parts())

    def _has(self, spec: DenseSpec, at: int, end: int, new: int) -> bool:
        """Does the new shard hold some of these elements?"""
        wanted = layout_of(spec, self.shards).shard_slice(new)
        return bool(max(wanted.start, at) < min(wanted.stop, end))
