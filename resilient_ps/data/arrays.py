"""Data sets in memory, dense and sparse; with a seed, each epoch has its own repeatable order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resilient_ps.data.batch import Cursor, DenseBatch, Keys, Labels, Offsets, SparseBatch, Values
from resilient_ps.data.shards import (
    RowStride,
    batch_count,
    check_batches,
    check_ranks,
    resume_point,
)
from resilient_ps.errors import BadInput

B = TypeVar("B", DenseBatch, SparseBatch)


class _Rows(Generic[B]):
    """Order, ranks, epochs and cursors over `rows` rows; a subclass picks the rows of a batch."""

    skipped = 0

    def __init__(self, kind: str, rows: int, seed: int | None) -> None:
        if rows < 1:
            raise BadInput("a data set needs at least one row")
        if seed is not None and seed < 0:
            raise BadInput(f"shuffle_seed={seed} is negative")
        self._kind = kind
        self._rows = rows
        self._seed = seed

    def __len__(self) -> int:
        return self._rows

    def shards(self, rank: int, of: int) -> RowStride:
        """Every `of`-th row, from `rank` on; with a seed, of each epoch's own order."""
        check_ranks(rank, of)
        return RowStride(rank, of, self._rows)

    def beginning(self, rank: int, of: int, epoch: int) -> Cursor:
        """The cursor of the beginning of an epoch; see `Dataset.beginning`."""
        return {**self._identity(self.shards(rank, of)), "epoch": epoch}

    def batches_per_rank(self, of: int, batch_size: int, epochs: int = 1) -> list[int]:
        """How many batches each rank will get."""
        check_batches(batch_size, epochs)
        return [batch_count(len(self.shards(r, of)), batch_size, epochs) for r in range(of)]

    def batches(
        self,
        rank: int,
        of: int,
        batch_size: int,
        epochs: int = 1,
        cursor: Cursor | None = None,
    ) -> Iterator[B]:
        """The rank's batches, or those after `cursor`; see `Dataset.batches`."""
        check_batches(batch_size, epochs)
        identity = self._identity(self.shards(rank, of))
        epoch, start = resume_point(cursor, identity, "row")
        return self._from(identity, rank, of, batch_size, epochs, epoch, max(start, 0))

    def _from(
        self,
        identity: Cursor,
        rank: int,
        of: int,
        batch_size: int,
        epochs: int,
        epoch: int,
        start: int,
    ) -> Iterator[B]:
        while epoch < epochs:
            rows = self._order(epoch)[rank::of]
            for at in range(start, len(rows), batch_size):
                chosen = rows[at : at + batch_size]
                yield self._pick(chosen, {**identity, "epoch": epoch, "row": at + len(chosen)})
            epoch, start = epoch + 1, 0

    def _identity(self, shard: RowStride) -> Cursor:
        seed = -1 if self._seed is None else self._seed
        return {
            "kind": self._kind,
            "rows": self._rows,
            "seed": seed,
            "rank": shard.rank,
            "of": shard.of,
        }

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self._seed is None:
            return np.arange(self._rows, dtype=np.int64)
        # Sorting raw generator output: unlike `permutation`, numpy guarantees that it never changes
        draws = np.random.PCG64([self._seed, epoch]).random_raw(self._rows)
        return np.argsort(draws, kind="stable")

    def _pick(self, rows: NDArray[np.int64], cursor: Cursor) -> B:
        raise NotImplementedError


class ArrayDataset(_Rows[DenseBatch]):
    """Rows of `d` numbers. `features` is converted to float32 (n, d), `labels` to float32 (n,).

    `shuffle_seed` (>= 0): every epoch visits all rows in another order that depends only on the
    seed and the epoch. Without one nothing is copied: a batch is a view of these arrays, which
    cannot be written to. Raises `BadInput` on other shapes and on numbers that are not finite.
    """

    def __init__(
        self, features: ArrayLike, labels: ArrayLike, *, shuffle_seed: int | None = None
    ) -> None:
        x = as_floats("features", features, 2)
        y = as_floats("labels", labels, 1)
        if len(x) != len(y):
            raise BadInput(f"{len(x)} rows of features but {len(y)} labels")
        super().__init__("dense-array", len(y), shuffle_seed)
        self.features: Values = x
        self.labels: Labels = y

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return int(self.features.shape[1])

    def _pick(self, rows: NDArray[np.int64], cursor: Cursor) -> DenseBatch:
        if self._seed is not None:
            return DenseBatch(self.labels[rows], self.features[rows], cursor)
        step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
        part = slice(int(rows[0]), int(rows[-1]) + 1, step)
        labels, features = self.labels[part], self.features[part]
        labels.flags.writeable = features.flags.writeable = False
        return DenseBatch(labels, features, cursor)


class SparseArrayDataset(_Rows[SparseBatch]):
    """Rows of (key, value) features in memory, laid out as in `SparseBatch`.

    `values=None` means that all are 1 and takes no memory. Raises `BadInput` when lengths or
    offsets do not fit together.
    """

    def __init__(
        self,
        labels: ArrayLike,
        row_offsets: ArrayLike,
        keys: ArrayLike,
        values: ArrayLike | None = None,
        *,
        shuffle_seed: int | None = None,
    ) -> None:
        self.labels: Labels = as_floats("labels", labels, 1, missing_allowed=True)
        self.row_offsets: Offsets = _as_integers("row_offsets", row_offsets, np.dtype(np.int64))
        self.keys: Keys = _as_integers("keys", keys, np.dtype(np.uint64))
        self.values: Values = (
            np.broadcast_to(np.float32(1), self.keys.shape)
            if values is None
            else as_floats("values", values, 1)
        )
        super().__init__("sparse-array", len(self.labels), shuffle_seed)
        self._check()

    def _check(self) -> None:
        offsets = self.row_offsets
        if len(offsets) != len(self.labels) + 1:
            raise BadInput(f"row_offsets has {len(offsets)} entries for {len(self.labels)} rows")
        if offsets[0] != 0 or offsets[-1] != len(self.keys) or np.any(np.diff(offsets) < 0):
            raise BadInput("row_offsets must grow from 0 to the number of keys")
        if len(self.values) != len(self.keys):
            raise BadInput(f"{len(self.values)} values for {len(self.keys)} keys")

    def shuffled(self, seed: int) -> SparseArrayDataset:
        """The same rows (shared, not copied) in an order drawn from `seed` for each epoch."""
        return SparseArrayDataset(
            self.labels, self.row_offsets, self.keys, self.values, shuffle_seed=seed
        )

    def save(self, path: str | Path) -> None:
        """Write an uncompressed `.npz` that `open_dataset(path)` reads back."""
        parts: dict[str, Any] = {
            "labels": self.labels,
            "row_offsets": self.row_offsets,
            "keys": self.keys,
        }
        if self.values.strides != (0,):
            parts["values"] = self.values
        np.savez(path, **parts)

    def _pick(self, rows: NDArray[np.int64], cursor: Cursor) -> SparseBatch:
        starts = self.row_offsets[rows]
        lengths = self.row_offsets[rows + 1] - starts
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        where = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1], dtype=np.int64)
        return SparseBatch(self.labels[rows], offsets, self.keys[where], self.values[where], cursor)


def as_floats(
    name: str, given: ArrayLike, dimensions: int, *, missing_allowed: bool = False
) -> NDArray[np.float32]:
    """`given` as a float32 array with so many dimensions; NaN only where labels may be missing."""
    array = np.asarray(given)
    if array.ndim != dimensions or array.dtype.kind not in "biuf":
        raise BadInput(
            f"{name}: {dimensions} dimension(s) of numbers are needed, not "
            f"{array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, np.float32)
    wrong = np.isinf(floats) if missing_allowed else ~np.isfinite(floats)
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise BadInput(f"{name}{list(first)} is not a finite float32 number")
    return floats


def _as_integers(name: str, given: ArrayLike, dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadInput(
            f"{name}: one dimension of integers is needed, not {array.dtype} of {array.shape}"
        )
    if dtype.kind == "u" and array.dtype.kind == "i" and len(array) and array.min() < 0:
        raise BadInput(f"{name} has a negative number")
    return np.ascontiguousarray(array, dtype)
