"""Which rows of a sparse shard were touched since a moment, found out in small steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilient_ps.tables.sparse import Mark, SparseShard

STEP_ENTRIES = 1 << 18  # about a millisecond
SAMPLE_ROWS = 1000  # entries stand in the order of hashes: the first ones are a fair sample
MOST = 0.75


class Survey:
    """Looks at the first `rows` rows. `touched` is a flag per row, once `done`.

    None: it is not known, or a sample says that most of them were, and nobody need know which.
    Rows that are touched while it goes on may or may not be found. When the index grows meanwhile,
    it begins again: that happens less and less often.
    """

    def __init__(self, shard: SparseShard, mark: Mark, rows: int) -> None:
        self._shard = shard
        self._mark = mark
        self._entries: object = None
        self._at = 0
        self._sampled = False
        self.touched: NDArray[np.bool_] | None = np.zeros(rows, np.bool_)
        self.done = False

    def step(self, entries: int = STEP_ENTRIES) -> bool:
        """Look at some more entries; true when that was the last time."""
        if self.done:
            return True
        if self.touched is None or not self._shard.still_known(self._mark):
            self.touched, self.done = None, True
            return True
        if self._entries is not self._shard.entries:
            self._entries, self._at = self._shard.entries, 0
        if self._shard.survey(self._mark, self._at, self._at + entries, self.touched):
            self._at += entries
            if self._most_are():
                self.touched, self.done = None, True
            return self.done
        self._entries, self.done = None, True
        return True

    def _most_are(self) -> bool:
        """Looked at once, when enough was seen for a sample."""
        assert self.touched is not None
        seen = self.touched.size * self._at / self._shard.entries_count
        if self._sampled or not SAMPLE_ROWS <= seen < self.touched.size:
            return False
        self._sampled = True
        return bool(np.count_nonzero(self.touched) > MOST * seen)

    def finish(self) -> NDArray[np.bool_] | None:
        """All steps that are left."""
        while not self.step():
            pass
        return self.touched
