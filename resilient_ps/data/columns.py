"""Rows of a table with columns, as features: hashed categories, bucketised or plain numbers.

A category `v` in column `c` is the feature XXH3("c=v") with value 1: no dictionary has to be kept
or shared, and every process computes the same key. An empty cell is a category of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resilient_ps.data.lines import BadLine, Row
from resilient_ps.data.numbers import number
from resilient_ps.errors import BadInput
from resilient_ps.hashing import hash_text

Numeric = Literal["value", "bucket"]
MAX_COLUMNS = 100_000


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns are the label, numbers and categories; by name, or by number from 0.

    `numeric_as="value"`: a number is the feature XXH3("c") with that value, an empty cell is no
    feature. `"bucket"`: it is a category, one per integer up to 2 and per floor(ln(x)^2) above
    (the transform of the winners of Criteo's 2014 challenge), the same below zero. With
    `dense=True` rows are the numeric columns alone, in order, with 0 for an empty cell.
    `label=None`: there is none, and labels are NaN.
    """

    label: str | int | None
    numeric: tuple[str | int, ...] = ()
    categorical: tuple[str | int, ...] = ()
    numeric_as: Numeric = "value"
    dense: bool = False

    def __post_init__(self) -> None:
        if self.numeric_as not in ("value", "bucket"):
            raise BadInput(f"numeric_as={self.numeric_as!r}: use 'value' or 'bucket'")
        if not self.numeric and not self.categorical:
            raise BadInput("no feature columns: name some in numeric= or categorical=")
        if self.dense and (self.categorical or self.numeric_as != "value"):
            raise BadInput("dense=True takes numeric columns as values only, no categorical ones")
        used = [*self.numeric, *self.categorical, *([] if self.label is None else [self.label])]
        twice = sorted({str(c) for c in used if used.count(c) > 1})
        if twice:
            raise BadInput(f"columns used twice: {', '.join(twice)}")


_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
CRITEO = Columns("label", _INTEGERS, _CATEGORIES, numeric_as="bucket")
CRITEO_NAMES = ("label", *_INTEGERS, *_CATEGORIES)


class RowEncoder:
    """Makes rows of the cells of a table whose columns have `names`."""

    def __init__(self, columns: Columns, names: Sequence[str], where: str) -> None:
        self._width = len(names)
        self._columns = columns
        self._label = None if columns.label is None else _index_of(columns.label, names, where)
        self._numeric = [_named(c, names, where) for c in columns.numeric]
        self._categorical = [_named(c, names, where) for c in columns.categorical]
        self._value_keys = [hash_text(name.encode()) for _, name in self._numeric]

    @property
    def used(self) -> list[int]:
        """The numbers of the columns that are needed, in order."""
        label = [] if self._label is None else [self._label]
        return sorted({*label, *(i for i, _ in self._numeric), *(i for i, _ in self._categorical)})

    def encode(self, cells: Sequence[bytes]) -> Row:
        """The row of one line's cells; raises `BadLine`."""
        if len(cells) != self._width:
            raise BadLine(f"{len(cells)} fields where {self._width} are expected")
        label = math.nan if self._label is None else number("label", cells[self._label])
        if self._columns.dense:
            return label, (), [self._number(i, name, cells) or 0.0 for i, name in self._numeric]
        keys: list[int] = []
        values: list[float] = []
        if self._columns.numeric_as == "value":
            self._add_values(cells, keys, values)
        else:
            keys += [self._bucket_key(i, name, cells) for i, name in self._numeric]
        keys += [hash_text(name.encode() + b"=" + cells[i]) for i, name in self._categorical]
        values += [1.0] * (len(keys) - len(values))
        return label, keys, values

    def _number(self, index: int, name: str, cells: Sequence[bytes]) -> float | None:
        cell = cells[index].strip()
        return number(f"column {name!r}:", cell) if cell else None

    def _add_values(self, cells: Sequence[bytes], keys: list[int], values: list[float]) -> None:
        for (index, name), key in zip(self._numeric, self._value_keys, strict=True):
            value = self._number(index, name, cells)
            if value is not None:
                keys.append(key)
                values.append(value)

    def _bucket_key(self, index: int, name: str, cells: Sequence[bytes]) -> int:
        value = self._number(index, name, cells)
        bucket = "" if value is None else bucket_of(value)
        return hash_text(f"{name}={bucket}".encode())


def bucket_of(value: float) -> str:
    """The name of the logarithmic bucket of a number: '2', 'p5' (positive), 'n5' (negative)."""
    if -2 <= value <= 2:
        return str(int(value))
    return ("p" if value > 0 else "n") + str(int(math.log(abs(value)) ** 2))


def _named(column: str | int, names: Sequence[str], where: str) -> tuple[int, str]:
    index = _index_of(column, names, where)
    return index, names[index]


def _index_of(column: str | int, names: Sequence[str], where: str) -> int:
    if isinstance(column, int):
        if not 0 <= column < len(names):
            raise BadInput(f"{where}: column number {column} of {len(names)} does not exist")
        return column
    if names.count(column) != 1:
        state = "twice or more" if column in names else "not there"
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise BadInput(f"{where}: column {column!r} is {state}; the columns are {listed}")
    return names.index(column)
