"""The index of a sparse shard: which row a key has. See `kernels.py` for the layout of entries.

At most 60 % of the entries are used; the index doubles before it would be fuller, so that probes
stay short. Entries never refer to the same row twice, and a row never has two keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilient_ps.tables import parameters, passes
from resilient_ps.tables.memory import aligned_zeros

MIN_ENTRIES = 256
MAX_LOAD_PERCENT = 60


class Index:
    """Keys (uint64) and their row numbers (0-based)."""

    def __init__(self) -> None:
        self.entries: NDArray[np.uint64] = aligned_zeros(2 * MIN_ENTRIES, np.uint64)

    @property
    def indexable(self) -> int:
        """How many keys may be in the index before it has to double."""
        return self.entries.size // 2 * MAX_LOAD_PERCENT // 100

    @property
    def bytes_held(self) -> int:
        return int(self.entries.nbytes)

    def double(self, times: int = 1) -> None:
        """Twice as many entries, so many times over, with all keys and stamps."""
        larger = aligned_zeros(self.entries.size << times, np.uint64)
        passes.rehash(self.entries, larger, parameters.MAX_ROWS)
        self.entries = larger

    def forget_rows_from(self, row: int) -> None:
        """Drop the keys of the rows `row` and above."""
        if row == 0:
            self.entries[:] = 0
            return
        kept = aligned_zeros(self.entries.size, np.uint64)
        passes.rehash(self.entries, kept, row)
        self.entries = kept
