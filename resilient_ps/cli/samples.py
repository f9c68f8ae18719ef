"""The rows of the demo: the flights of New York, or a file, as sparse rows in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data import Batch, Dataset, DenseBatch, SparseArrayDataset, open_dataset
from resilient_ps.data.flights import flights, validation_flights
from resilient_ps.errors import BadInput

HELD_OUT = 0.2
MAX_ENTRIES = 1 << 28  # (key, value) pairs held in memory: 12 bytes each, and copies of them
_READ_ROWS = 8192


@dataclass(frozen=True)
class Samples:
    """Rows to train on, and rows held out; `what` they are, for people."""

    what: str
    train: SparseArrayDataset
    test: SparseArrayDataset


def flight_samples(limit: int | None, *, validation: bool = False) -> Samples:
    """The year's first 80 % of days to train on, the rest held out.

    `validation`: of these training days, the first 80 % and the rest, for choosing settings.
    """
    train, test = validation_flights(HELD_OUT) if validation else flights(HELD_OUT)
    what = "flights of New York 2013, more than 15 minutes late?"
    return Samples(what, _last(train, limit), test)


def file_samples(path: str, format: str, test_path: str | None, limit: int | None) -> Samples:
    """A file's rows; its last 20 % are held out, unless there is a file of such."""
    rows = _load(path, format)
    if test_path is not None:
        return Samples(path, _last(rows, limit), _load(test_path, format))
    cut = round(len(rows) * (1 - HELD_OUT))
    if not 0 < cut < len(rows):
        raise BadInput(f"{path} has {len(rows)} rows: too few to hold some out; give --test-file")
    return Samples(path, _last(_slice(rows, 0, cut), limit), _slice(rows, cut, len(rows)))


def _load(path: str, format: str) -> SparseArrayDataset:
    return in_memory(open_dataset(path, format), path)


def in_memory(rows: Dataset, path: str) -> SparseArrayDataset:
    """All rows of a data set at once, as sparse ones. Raises `BadInput` where they are too many."""
    batches = rows.batches(0, 1, _READ_ROWS)
    parts = list(_within_limit(path, map(_as_sparse, batches)))
    if not parts:
        raise BadInput(f"{path} has no rows")
    labels, lengths, keys, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return SparseArrayDataset(labels, offsets, keys, values)


_Part = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.uint64], NDArray[np.float32]]


def _as_sparse(batch: Batch) -> _Part:
    """Labels, lengths of rows, keys, values; a number in a column is the feature of its number."""
    if not isinstance(batch, DenseBatch):
        return batch.labels, np.diff(batch.row_offsets), batch.keys, batch.values
    rows, columns = np.nonzero(batch.features)
    lengths = np.bincount(rows, minlength=len(batch)).astype(np.int64)
    return batch.labels, lengths, columns.astype(np.uint64), batch.features[rows, columns]


def _within_limit(path: str, parts: Iterable[_Part]) -> Iterable[_Part]:
    entries = 0
    for part in parts:
        entries += len(part[2])
        if entries > MAX_ENTRIES:
            raise BadInput(
                f"{path} has more than {MAX_ENTRIES} features: too many to hold in memory beside "
                "a comparison; `resilient-ps train logistic` streams"
            )
        yield part


def _last(rows: SparseArrayDataset, limit: int | None) -> SparseArrayDataset:
    return rows if limit is None else _slice(rows, max(0, len(rows) - limit), len(rows))


def _slice(rows: SparseArrayDataset, start: int, stop: int) -> SparseArrayDataset:
    offsets = rows.row_offsets[start : stop + 1]
    part = slice(int(offsets[0]), int(offsets[-1]))
    return SparseArrayDataset(
        rows.labels[start:stop], offsets - offsets[0], rows.keys[part], rows.values[part]
    )
