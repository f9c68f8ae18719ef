"""Columns of categories as hashed features, for tables that are in memory as a whole.

A category `v` of column `c` has the key XXH3("c=v"), as in `columns.Columns`; only the distinct
texts are hashed, not the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.asciitable import distinct
from resilient_ps.errors import BadInput
from resilient_ps.hashing import hash_text

MAX_TEXTS = 1 << 20
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Category:
    """One column: the category of row i is `texts[codes[i]]`."""

    name: str
    texts: Sequence[str]
    codes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.codes)

    def hashes(self) -> NDArray[np.uint64]:
        """The feature of each text, uint64 (texts,)."""
        return np.array([hash_text(f"{self.name}={text}") for text in self.texts], np.uint64)

    def keys(self) -> NDArray[np.uint64]:
        """The feature of each row, uint64 (rows,)."""
        return self.hashes()[self.codes]


def category_of(name: str, column: NDArray[np.bytes_]) -> Category:
    """A column of texts of at most 8 ASCII bytes."""
    if column.dtype.itemsize > _WORD_BYTES:
        raise BadInput(f"column {name!r} has texts of more than {_WORD_BYTES} bytes")
    found, codes = distinct(column)
    texts = [text.decode() for text in found.tolist()]
    return Category(name, texts, codes.astype(np.int64))


def numbered(name: str, codes: NDArray[np.int64]) -> Category:
    """A column of small whole numbers from 0 on."""
    count = int(codes.max(initial=0)) + 1
    if codes.min(initial=0) < 0 or count > MAX_TEXTS:
        raise BadInput(f"column {name!r}: numbers must be in 0 .. {MAX_TEXTS - 1}")
    return Category(name, [str(i) for i in range(count)], codes)


def bucketed(name: str, values: NDArray[np.float64], edges: Sequence[float]) -> Category:
    """Numbers by the interval between `edges` that they fall in; NaN is a category of its own."""
    texts = [*(str(i) for i in range(len(edges) + 1)), "missing"]
    codes = np.searchsorted(np.asarray(edges, np.float64), values).astype(np.int64)
    codes[np.isnan(values)] = len(edges) + 1
    return Category(name, texts, codes)


def crossed(first: Category, second: Category) -> Category:
    """The pairs of two categories."""
    if len(first.texts) * len(second.texts) > MAX_TEXTS:
        raise BadInput(f"{first.name} x {second.name} has more than {MAX_TEXTS} pairs")
    texts = [f"{a},{b}" for a in first.texts for b in second.texts]
    codes = first.codes * len(second.texts) + second.codes
    return Category(f"{first.name}*{second.name}", texts, codes)
