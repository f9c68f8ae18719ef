"""What readers yield: batches of rows, each with the cursor from which reading goes on after it.

A cursor is a small dictionary of strings and integers (JSON is enough to store it). It belongs to
one data set, one rank and one number of ranks; a reader refuses the cursor of another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Cursor = dict[str, int | str]

Labels = NDArray[np.float32]
Offsets = NDArray[np.int64]
Keys = NDArray[np.uint64]
Values = NDArray[np.float32]

MAX_BATCH_ROWS = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class SparseBatch:
    """`n` rows of (key, value) features; row `i` owns `row_offsets[i] : row_offsets[i + 1]`.

    `labels` is float32 (n,), NaN where the data have none; `row_offsets` int64 (n + 1,); `keys`
    uint64 (nnz,); `values` float32 (nnz,).
    """

    labels: Labels
    row_offsets: Offsets
    keys: Keys
    values: Values
    cursor: Cursor = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def row_numbers(self) -> NDArray[np.int64]:
        """The row of each of the nnz entries, int64 (nnz,)."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.row_offsets))


@dataclass(frozen=True, slots=True, eq=False)
class DenseBatch:
    """`n` rows of `d` numbers: `labels` float32 (n,), `features` float32 (n, d)."""

    labels: Labels
    features: Values
    cursor: Cursor = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


Batch = SparseBatch | DenseBatch
