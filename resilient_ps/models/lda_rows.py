"""Where the topics of words are kept: rows of a table of whole numbers, some for each document.

A row is `NUMBERS` int64: the first is its *stamp*, the others hold the topics of `WORDS_PER_ROW`
words, four in each, 16 bits a topic; 0 says that a word has none yet. So a row that was never
written says that its words have no topics. Tables that sum hold them all the same: what is pushed
is the difference to what the row holds, and no field ever carries over into its neighbour, since
each lies between 0 and 4,096 before and after.

Each row exists twice, as *side* 0 and 1. A row is a function of its document alone: not of how many
processes train, nor of how they share the documents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.corpus import Corpus

NUMBERS = 8
_FIELDS = 4 * NUMBERS
WORDS_PER_ROW = _FIELDS - 4
_ROW_BITS = 20  # MAX_WORDS_OF_DOCUMENT words are fewer rows

Rows = NDArray[np.int64]
Topics = NDArray[np.int32]


class TopicRows:
    """The rows of the documents `first` .. `last` - 1, and which word is where in them."""

    def __init__(self, corpus: Corpus, first: int, last: int) -> None:
        begins = corpus.offsets[first : last + 1]
        lengths = np.diff(begins)
        rows = -(-lengths // WORDS_PER_ROW)
        row_begins = np.cumsum(rows) - rows
        place = np.arange(begins[-1] - begins[0]) - np.repeat(begins[:-1] - begins[0], lengths)
        row = np.repeat(row_begins, lengths) + place // WORDS_PER_ROW
        self._fields = row * _FIELDS + 4 + place % WORDS_PER_ROW
        number = np.arange(rows.sum()) - np.repeat(row_begins, rows)
        document = np.repeat(np.arange(first, last), rows)
        self._keys = (document << (_ROW_BITS + 1) | number << 1).astype(np.uint64)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self, side: int) -> NDArray[np.uint64]:
        """The keys of all rows, uint64 (rows,)."""
        return np.asarray(self._keys | np.uint64(side))

    def write(self, topics: Topics, stamp: int) -> Rows:
        """Rows (rows, NUMBERS) that hold these topics (words,); -1: none."""
        rows = np.zeros((len(self), NUMBERS), np.int64)
        rows[:, 0] = stamp
        rows.view("<u2").reshape(-1)[self._fields] = topics + 1
        return rows

    def read(self, rows: Rows) -> Topics:
        """The topics of all words, int32 (words,), from 0; -1 where there is none."""
        fields = np.ascontiguousarray(rows).view("<u2").reshape(-1)[self._fields]
        return np.asarray(fields.astype(np.int32) - 1)

    def newest(self, first: Rows, second: Rows) -> Topics:
        """Of each row the side with the higher stamp."""
        later = second[:, 0] > first[:, 0]
        return self.read(np.where(later[:, None], second, first))
