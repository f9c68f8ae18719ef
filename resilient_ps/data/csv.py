"""Reader of CSV and TSV files, with a preset for the layout of Criteo's click logs.

Fields may be quoted with `"`, but not contain line breaks: files are split by bytes among ranks,
and a line break inside quotes cannot be told from the end of a row there.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from resilient_ps.data.columns import (
    CRITEO,
    CRITEO_NAMES,
    MAX_COLUMNS,
    Columns,
    Numeric,
    RowEncoder,
)
from resilient_ps.data.lines import BadLine, LineDataset, OnBad, Row, dense_batch, sparse_batch
from resilient_ps.data.numbers import number
from resilient_ps.data.textfile import Line, open_text
from resilient_ps.errors import BadInput

Header = Literal["auto", "yes", "no"]


def open_csv(
    path: str | Path,
    *,
    delimiter: str = ",",
    header: Header = "auto",
    label: str | int | None = 0,
    numeric: Sequence[str | int] | None = None,
    categorical: Sequence[str | int] | None = None,
    numeric_as: Numeric = "value",
    dense: bool = False,
    on_bad: OnBad = "error",
) -> LineDataset:
    """Stream a CSV file (TSV with `delimiter="\\t"`), plain, gzip or zip.

    Without a header, columns are named "0", "1", ...; `header="auto"` finds one where the
    label of the first line is not a number. `label`, `numeric`, `categorical`, `numeric_as`,
    `dense`: see `Columns`. When neither `numeric` nor `categorical` is given, all columns but the
    label are used: as numbers those that hold a number in the first row of data, as categories
    the others.
    """
    source = open_text(path)
    split = _Splitter(delimiter)
    first = list(islice(source.walk(), 2))
    names, data_start = _names(str(path), first, split, header, label)
    if numeric is None and categorical is None:
        row = first[1] if data_start and len(first) > 1 else first[0]
        numeric, categorical = _guess(_cells(str(path), row, split), names, label, str(path))
    columns = Columns(label, tuple(numeric or ()), tuple(categorical or ()), numeric_as, dense)
    return LineDataset(
        source,
        _CsvRows(split, RowEncoder(columns, names, str(path))),
        data_start=data_start,
        on_bad=on_bad,
        assemble=dense_batch if dense else sparse_batch,
    )


def open_criteo(
    path: str | Path, *, delimiter: str = "auto", on_bad: OnBad = "error"
) -> LineDataset:
    """Stream click logs in Criteo's layout: label, 13 integers, 26 categories, cells may be empty.

    With or without a header line; `delimiter="auto"` takes tabs where the first line has some,
    else commas. The integers become categories by their logarithm, as `Columns` describes.
    """
    source = open_text(path)
    first = list(islice(source.walk(), 1))
    if delimiter == "auto":
        delimiter = "\t" if b"\t" in (first[0].text or b"") else ","
    split = _Splitter(delimiter)
    # Files in the wild name the columns in many ways; only their order is the layout
    _, data_start = _names(str(path), first, split, "auto", 0)
    encoder = RowEncoder(CRITEO, CRITEO_NAMES, str(path))
    return LineDataset(source, _CsvRows(split, encoder), data_start=data_start, on_bad=on_bad)


class _Splitter:
    """The cells of one line."""

    def __init__(self, delimiter: str) -> None:
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise BadInput(f"delimiter={delimiter!r}: one ASCII character is needed")
        self._text = delimiter
        self._bytes = delimiter.encode()

    def split(self, text: bytes) -> Sequence[bytes]:
        """Raises `BadLine` on wrong quotes and on too many fields."""
        if b'"' not in text:
            cells: Sequence[bytes] = text.split(self._bytes, MAX_COLUMNS)
        else:
            cells = self._split_quoted(text)
        if len(cells) > MAX_COLUMNS:
            raise BadLine(f"more than {MAX_COLUMNS} fields")
        return cells

    def _split_quoted(self, text: bytes) -> Sequence[bytes]:
        # Latin-1 maps each byte to one character and back: cells stay the bytes they were
        reader = csv.reader([text.decode("latin-1")], delimiter=self._text, strict=True)
        try:
            return [cell.encode("latin-1") for cell in next(reader)]
        except csv.Error as error:
            raise BadLine(
                f"wrong quotes ({error}); a field with a line break in it is not supported"
            ) from None


class _CsvRows:
    def __init__(self, splitter: _Splitter, encoder: RowEncoder) -> None:
        self._splitter = splitter
        self._encoder = encoder

    def parse(self, text: bytes) -> Row | None:
        if not text:
            return None
        return self._encoder.encode(self._splitter.split(text))


def _names(
    where: str, first: Sequence[Line], splitter: _Splitter, header: Header, label: str | int | None
) -> tuple[list[str], int]:
    """The columns' names, and the position at which the data begin."""
    if header not in ("auto", "yes", "no"):
        raise BadInput(f"header={header!r}: use 'auto', 'yes' or 'no'")
    cells = _cells(where, first[0], splitter)
    if header == "no" or (header == "auto" and not _is_header(cells, label)):
        return [str(i) for i in range(len(cells))], 0
    try:
        return [cell.decode("utf-8").strip() for cell in cells], first[0].next_position
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}, line 1: the names of the columns are not UTF-8") from error


def _cells(where: str, line: Line, splitter: _Splitter) -> Sequence[bytes]:
    try:
        if line.text is None:
            raise BadLine("too long")
        return splitter.split(line.text)
    except BadLine as error:
        raise BadInput(f"{where}, near its beginning: {error}") from error


def _is_header(cells: Sequence[bytes], label: str | int | None) -> bool:
    # A label given by name needs names to be found in; without a label all cells are looked at
    if isinstance(label, str):
        return True
    looked_at = cells if label is None else cells[label : label + 1]
    return not any(_is_number(cell) for cell in looked_at)


def _is_number(cell: bytes) -> bool:
    try:
        number("cell", cell.strip())
    except BadLine:
        return False
    return True


def _guess(
    cells: Sequence[bytes], names: Sequence[str], label: str | int | None, where: str
) -> tuple[list[int], list[int]]:
    if len(cells) != len(names):
        raise BadInput(f"{where}: {len(names)} columns, but {len(cells)} fields in the first row")
    others = [i for i, name in enumerate(names) if label not in (i, name)]
    numeric = [i for i in others if _is_number(cells[i])]
    return numeric, [i for i in others if i not in numeric]
