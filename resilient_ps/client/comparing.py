"""Two checkpoints compared: which rows of which tables were added, changed or removed.

Table by table, and of the larger-numbered shards one at a time, so memory is bounded by a few of
their parts. Parts whose chunks are the same objects are not read at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.client.content import Part, StoredTable, read_part, tables_of
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.portions import keys_in_both
from resilient_ps.storage.shard_index import ShardIndex
from resilient_ps.tables.partition import partition
from resilient_ps.tables.spec import SparseSpec

_Array = NDArray[Any]
_NO_KEYS = np.zeros(0, np.uint64)


@dataclass(slots=True)
class TableChange:
    """Rows of a table (dense: along the first axis) from one checkpoint to the other.

    `state_only` of the changed ones have the same values. `specs`: both, where they differ; then
    rows are not compared. `largest`: the largest difference of a value.
    """

    table: str
    rows_before: int = 0
    rows_after: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    state_only: int = 0
    largest: float = 0.0
    specs: tuple[str, str] | None = None

    @property
    def differs(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.specs)


@dataclass(frozen=True, slots=True)
class Side:
    """A checkpoint, with the indexes of all its shards."""

    stored: StoredCheckpoints
    manifest: Manifest
    indexes: Sequence[ShardIndex]

    @classmethod
    def of(cls, stored: StoredCheckpoints, manifest: Manifest) -> Side:
        return cls(stored, manifest, stored.indexes(manifest))

    def tables(self) -> dict[str, StoredTable]:
        return {table.spec.name: table for table in tables_of(self.manifest, self.indexes)}


def compare(
    before: Side,
    after: Side,
    on_part: Callable[[int], object] = lambda parts: None,
    names: Collection[str] | None = None,
) -> Iterator[TableChange]:
    """Each table of either, or those of these `names`. `on_part` is told of parts that are done."""
    old, new = before.tables(), after.tables()
    for name in sorted({*old, *new} if names is None else names):
        change = TableChange(name)
        change.rows_before = old[name].rows if name in old else 0
        change.rows_after = new[name].rows if name in new else 0
        if name not in old:
            change.added = change.rows_after
        elif name not in new:
            change.removed = change.rows_before
        elif old[name].spec != new[name].spec:
            change.specs = (old[name].spec.describe(), new[name].spec.describe())
        else:
            _compare_table(change, before, after, old[name], new[name], on_part)
        yield change


def _compare_table(
    change: TableChange,
    before: Side,
    after: Side,
    old: StoredTable,
    new: StoredTable,
    on_part: Callable[[int], object],
) -> None:
    if len(before.indexes) != len(after.indexes):
        if isinstance(new.spec, SparseSpec):
            _compare_other_shards(change, before, after, old, new, on_part)
            return
        _count(change, _whole(before, old), _whole(after, new))
        on_part(len(after.indexes))
        return
    for mine, theirs in zip(before.indexes, after.indexes, strict=True):
        if not _same_chunks(mine, theirs, old.number, new.number):
            part = read_part(before.stored.blobs, mine, old)
            _count(change, part, read_part(after.stored.blobs, theirs, new))
        on_part(1)


def _same_chunks(one: ShardIndex, other: ShardIndex, number: int, other_number: int) -> bool:
    def of(index: ShardIndex, table: int) -> list[tuple[object, ...]]:
        return [
            (c.kind, c.at, c.end, c.generation, c.xxh128) for c in index.chunks if c.table == table
        ]

    return number == other_number and of(one, number) == of(other, other_number)


def _compare_other_shards(
    change: TableChange,
    before: Side,
    after: Side,
    old: StoredTable,
    new: StoredTable,
    on_part: Callable[[int], object],
) -> None:
    """Sparse tables: a shard's keys are a run of hashes, found in some shards of the other."""
    olds, news = len(before.indexes), len(after.indexes)
    for index in after.indexes:
        parts = []
        for other in before.indexes:
            if keys_in_both(other.shard, olds, index.shard, news):
                part = read_part(before.stored.blobs, other, old)
                parts.append(_belonging(part, index.shard, news))
        _count(change, _joined(parts), read_part(after.stored.blobs, index, new))
        on_part(1)


def _belonging(part: Part, shard: int, shards: int) -> Part:
    """The rows of a part whose keys belong to this shard, by key."""
    assert part.keys is not None
    order, counts, _ = partition(part.keys, shards)
    first = int(counts[:shard].sum())
    rows = np.sort(order[first : first + int(counts[shard])])
    return Part(
        0,
        part.keys[rows],
        part.values[rows],
        {name: array[rows] for name, array in part.state.items()},
        None if part.steps is None else part.steps[rows],
    )


def _joined(parts: Sequence[Part]) -> Part:
    """Parts of one table as one, by key."""
    keys = np.concatenate([_NO_KEYS, *[part.keys for part in parts if part.keys is not None]])
    order = np.argsort(keys)
    state = {
        name: np.concatenate([part.state[name] for part in parts])[order] for name in parts[0].state
    }
    steps = [part.steps for part in parts if part.steps is not None]
    values = np.concatenate([part.values for part in parts])[order]
    return Part(0, keys[order], values, state, np.concatenate(steps)[order] if steps else None)


def _whole(side: Side, table: StoredTable) -> Part:
    """A dense table."""
    parts = [read_part(side.stored.blobs, index, table) for index in side.indexes]
    parts = sorted((part for part in parts if len(part)), key=lambda part: part.at)
    state = {name: np.concatenate([part.state[name] for part in parts]) for name in parts[0].state}
    steps = [part.steps for part in parts if part.steps is not None]
    values = np.concatenate([part.values for part in parts])
    return Part(0, None, values, state, np.concatenate(steps) if steps else None)


def _count(change: TableChange, before: Part, after: Part) -> None:
    """Compare rows bit for bit; those of both by key, or by place where there are none."""
    mine, theirs = np.arange(len(before)), np.arange(len(after))
    if before.keys is not None and after.keys is not None:
        _, mine, theirs = np.intersect1d(
            before.keys, after.keys, assume_unique=True, return_indices=True
        )
    change.removed += len(before) - len(mine)
    change.added += len(after) - len(theirs)
    old, new = before.values[mine], after.values[theirs]
    values = _unequal(old, new)
    anything = values.copy()
    for name in after.state:
        anything |= _unequal(before.state[name][mine], after.state[name][theirs])
    if before.steps is not None and after.steps is not None:
        anything |= _unequal(before.steps[mine, None], after.steps[theirs, None])
    change.changed += int(anything.sum())
    change.state_only += int((anything & ~values).sum())
    if values.any():
        apart = np.abs(new[values].astype(np.float64) - old[values].astype(np.float64))
        change.largest = max(change.largest, float(np.nan_to_num(apart, nan=np.inf).max()))


def _unequal(one: _Array, other: _Array) -> NDArray[np.bool_]:
    """Which rows differ in any bit."""
    words = f"u{one.itemsize}"
    one, other = np.ascontiguousarray(one), np.ascontiguousarray(other)
    differ: NDArray[np.bool_] = (one.view(words) != other.view(words)).any(axis=1)
    return differ
