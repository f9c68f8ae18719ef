"""Columns of a whole CSV file at once: for known, regular files that are read as a whole.

A third of a million rows take about a second; `csv.open_csv` is the reader for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput

Text = NDArray[np.bytes_]
MISSING = b"NA"
_COMMA, _NEWLINE = ord(","), ord("\n")
_WORD_BYTES = 8


def read_columns(where: str, data: bytes, wanted: Sequence[str]) -> dict[str, Text]:
    """The columns `wanted` of comma-separated `data` with a header, as fixed-width byte strings.

    Raises `BadInput` when a column is missing, a row has another number of fields, or fields are
    quoted.
    """
    if b'"' in data:
        raise BadInput(f"{where}: quoted fields are not supported here")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    characters = np.frombuffer(data, np.uint8)
    names = data[: data.index(b"\n")].decode().split(",")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise BadInput(f"{where} has no column {missing[0]!r}, only {', '.join(names)}")
    separators = np.flatnonzero((characters == _COMMA) | (characters == _NEWLINE))
    if len(separators) % len(names):
        raise BadInput(f"{where}: not every row has {len(names)} fields")
    starts = np.concatenate(([0], separators[:-1] + 1)).reshape(-1, len(names))
    ends = separators.reshape(-1, len(names))
    if np.any(characters[ends[:, -1]] != _NEWLINE) or np.any(characters[ends[:, :-1]] != _COMMA):
        raise BadInput(f"{where}: not every row has {len(names)} fields")
    return {
        name: _column(characters, starts[1:, names.index(name)], ends[1:, names.index(name)])
        for name in wanted
    }


def _column(
    characters: NDArray[np.uint8], starts: NDArray[np.intp], ends: NDArray[np.intp]
) -> Text:
    lengths = ends - starts
    width = int(lengths.max(initial=1))
    grid = np.empty((len(starts), width), np.uint8)
    first = np.ascontiguousarray(starts)
    for place in range(width):
        # What lies behind the end of a field is taken as well, and multiplied by zero
        taken = characters.take(first + place, mode="clip")
        np.multiply(taken, lengths > place, out=grid[:, place])
    return grid.view(f"S{width}").ravel()


def distinct(column: Text) -> tuple[Text, NDArray[np.intp]]:
    """(distinct texts, the number of each row's text)."""
    if column.dtype.itemsize > _WORD_BYTES:
        return np.unique(column, return_inverse=True)
    # Comparing them as integers sorts ten times faster than comparing them as texts
    words = column.astype(f"S{_WORD_BYTES}").view(np.uint64)
    found, codes = np.unique(words, return_inverse=True)
    return found.view(f"S{_WORD_BYTES}"), codes


def integers(column: Text) -> NDArray[np.int64]:
    """A column of whole numbers without missing ones."""
    texts, codes = distinct(column)
    return texts.astype(np.int64)[codes]


def floats(column: Text) -> NDArray[np.float64]:
    """A column of numbers, NaN where `NA` stands."""
    texts, codes = distinct(column)
    there = texts != MISSING
    numbers = np.full(len(texts), np.nan)
    numbers[there] = texts[there].astype(np.float64)
    return numbers[codes]
