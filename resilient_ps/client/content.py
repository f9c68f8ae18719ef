"""What a checkpoint holds, table by table and shard by shard, as arrays.

A shard's part of a table is read as a whole, so memory is bounded by the largest part, whatever the
size of the checkpoint. Every chunk is verified before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.client.stored import READERS, ask
from resilient_ps.storage.blobs import Blobs
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.reading import Fetch, Portion, plan_load
from resilient_ps.storage.shard_index import ShardIndex
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.optimisers import Optimiser
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec, spec_from_json

_Array = NDArray[Any]

STATE_NAMES: dict[str, tuple[str, ...]] = {
    "momentum": ("momentum",),
    "adagrad": ("accumulator",),
    "adam": ("m", "v"),
    "ftrl": ("z", "n"),
}
STEPS = "steps"


def state_names(optimiser: Optimiser) -> tuple[str, ...]:
    """What the slots of an optimiser's state are called, as in its formula."""
    names = STATE_NAMES.get(optimiser.name, ())
    return names + tuple(f"state{slot}" for slot in range(len(names), optimiser.slots))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A run of rows of a table: `values` (n, width), `state` by slot (n, width), `steps` (n,).

    Sparse: `keys` (uint64, n), ascending; `at` is 0. Dense: no keys, and the
    rows are those from `at` on along the first axis; `steps` are those of a row's block.
    """

    at: int
    keys: NDArray[np.uint64] | None
    values: _Array
    state: dict[str, _Array]
    steps: _Array | None

    def __len__(self) -> int:
        return len(self.values)

    def cut(self, first: int, last: int) -> Part:
        """The rows `first` to `last - 1` of it."""
        return Part(
            self.at + first,
            None if self.keys is None else self.keys[first:last],
            self.values[first:last],
            {name: array[first:last] for name, array in self.state.items()},
            None if self.steps is None else self.steps[first:last],
        )


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of a checkpoint. `rows`: of all shards (dense: along the first axis)."""

    number: int
    spec: TableSpec
    rows: int
    lr: float

    @property
    def width(self) -> int:
        """Values of a row."""
        if isinstance(self.spec, SparseSpec):
            return self.spec.dim
        return DenseLayout(self.spec, 1).row_width


def tables_of(manifest: Manifest, indexes: Sequence[ShardIndex]) -> list[StoredTable]:
    """All tables, by name."""
    found = []
    for entry in sorted(manifest.tables, key=lambda each: each.name):
        spec = spec_from_json(entry.spec)
        states = [t for index in indexes for t in index.tables if t.number == entry.number]
        rows = sum(state.rows for state in states)
        if isinstance(spec, DenseSpec):
            rows = spec.shape[0] if spec.shape else 1
        found.append(StoredTable(entry.number, spec, rows, states[0].lr if states else 0.0))
    return found


def read_part(blobs: Blobs, index: ShardIndex, table: StoredTable) -> Part:
    """What a shard holds of a table. Raises `Damaged` naming the object."""
    only = replace(index, chunks=tuple([c for c in index.chunks if c.table == table.number]))
    plan = plan_load((only,), index.shards, (index.shard,))
    shard: SparseShard | DenseShard
    if isinstance(table.spec, SparseSpec):
        shard = SparseShard(table.spec)
    else:
        shard = DenseShard(table.spec, DenseLayout(table.spec, index.shards), index.shard)
    with ThreadPoolExecutor(READERS) as readers:
        for some in _batches(plan.fetches):
            for portions in readers.map(lambda fetch: ask(blobs, fetch.request), some):
                for portion in portions:
                    _take(shard, portion)
    return _of_sparse(shard) if isinstance(shard, SparseShard) else _of_dense(shard)


def _batches(fetches: Sequence[Fetch]) -> Iterator[Sequence[Fetch]]:
    """So many at a time: what is read ahead is bounded."""
    for at in range(0, len(fetches), READERS):
        yield fetches[at : at + READERS]


def _take(shard: SparseShard | DenseShard, portion: Portion) -> None:
    if isinstance(shard, SparseShard):
        shard.load(portion.keys, portion.content.reshape(-1, portion.columns))
    else:
        shard.load(portion.at, portion.end, portion.content)


def _of_sparse(shard: SparseShard) -> Part:
    keys, values, rest = shard.export()
    dim, optimiser = shard.spec.dim, shard.spec.optimiser
    state = {
        name: rest[:, dim * slot : dim * (slot + 1)]
        for slot, name in enumerate(state_names(optimiser))
    }
    return Part(0, keys, values, state, rest[:, -1] if optimiser.counts_steps else None)


def _of_dense(shard: DenseShard) -> Part:
    layout, optimiser = shard.layout, shard.spec.optimiser
    where, width = layout.shard_slice(shard.shard), layout.row_width
    content, size = shard.capture(0, len(shard)), len(shard)
    planes = content[: size * (1 + optimiser.slots)].reshape(1 + optimiser.slots, -1, width)
    counts = content[planes.size :]
    steps = np.repeat(counts, layout.elements_per_block // width)[: size // width]
    return Part(
        where.start // width,
        None,
        planes[0],
        dict(zip(state_names(optimiser), planes[1:], strict=True)),
        steps if optimiser.counts_steps else None,
    )
