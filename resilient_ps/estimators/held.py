"""What a fit has learnt, as tables that lie in this process: models predict with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class HeldDense:
    """A dense table."""

    values: Array

    def pull(self) -> Array:
        """The whole array."""
        return self.values


@dataclass(frozen=True, slots=True, eq=False)
class HeldSparse:
    """A sparse table: `keys` (n,) in ascending order, `rows` (n, dim)."""

    keys: NDArray[np.uint64]
    rows: Array

    def pull(self, keys: NDArray[np.uint64]) -> Array:
        """The rows of these keys; zeros for keys that the training has not seen."""
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        rows = self.rows[at]
        rows[self.keys[at] != keys] = 0
        return rows
