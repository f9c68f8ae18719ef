"""Reader of Parquet files, row group by row group, when pyarrow is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from resilient_ps.data.batch import Batch, Cursor
from resilient_ps.data.columns import Columns, Numeric, RowEncoder
from resilient_ps.data.lines import (
    MAX_KEPT_REASONS,
    BadLine,
    OnBad,
    Row,
    dense_batch,
    sparse_batch,
)
from resilient_ps.data.shards import (
    RowRange,
    batch_count,
    check_batches,
    check_ranks,
    resume_point,
    row_range,
)
from resilient_ps.data.textfile import check_file
from resilient_ps.errors import BadInput

_READ_ROWS = 4096


def open_parquet(
    path: str | Path,
    *,
    label: str | int | None = 0,
    numeric: Sequence[str | int] | None = None,
    categorical: Sequence[str | int] | None = None,
    numeric_as: Numeric = "value",
    dense: bool = False,
    on_bad: OnBad = "error",
) -> ParquetDataset:
    """Stream a Parquet file; nulls are empty cells, each rank reads a contiguous range of rows.

    Columns are selected as for CSV (see `Columns`); without a selection, columns of numbers and
    booleans are numeric and the others categorical. Raises `BadInput` when pyarrow is missing.
    """
    found = check_file(path)
    file = _open(found)
    names = [str(name) for name in file.schema_arrow.names]
    if numeric is None and categorical is None:
        numeric, categorical = _by_type(file.schema_arrow, label)
    columns = Columns(label, tuple(numeric or ()), tuple(categorical or ()), numeric_as, dense)
    encoder = RowEncoder(columns, names, str(found))
    return ParquetDataset(found, file, encoder, dense=dense, on_bad=on_bad)


class ParquetDataset:
    """A Parquet file as batches of rows; holds one batch and what pyarrow reads ahead."""

    def __init__(
        self,
        path: Path,
        file: Any,
        encoder: RowEncoder,
        *,
        dense: bool,
        on_bad: OnBad,
    ) -> None:
        if on_bad not in ("error", "skip"):
            raise BadInput(f"on_bad={on_bad!r}: use 'error' or 'skip'")
        self._path = path
        self._file = file
        self._encoder = encoder
        self._assemble = dense_batch if dense else sparse_batch
        self._on_bad = on_bad
        self._rows = int(file.metadata.num_rows)
        self.skipped = 0
        self.reasons: list[str] = []

    def __len__(self) -> int:
        return self._rows

    def shards(self, rank: int, of: int) -> RowRange:
        """The contiguous rows that belong to `rank`."""
        check_ranks(rank, of)
        return row_range(self._rows, rank, of)

    def beginning(self, rank: int, of: int, epoch: int) -> Cursor:
        """The cursor of the beginning of an epoch; see `Dataset.beginning`."""
        check_ranks(rank, of)
        return {**self._identity(rank, of), "epoch": epoch}

    def batches_per_rank(self, of: int, batch_size: int, epochs: int = 1) -> list[int] | None:
        """How many batches each rank will get; None with `on_bad="skip"`."""
        check_batches(batch_size, epochs)
        if self._on_bad == "skip":
            return None
        return [batch_count(len(self.shards(r, of)), batch_size, epochs) for r in range(of)]

    def batches(
        self,
        rank: int,
        of: int,
        batch_size: int,
        epochs: int = 1,
        cursor: Cursor | None = None,
    ) -> Iterator[Batch]:
        """The rank's batches, or those after `cursor`; see `Dataset.batches`."""
        check_batches(batch_size, epochs)
        shard = self.shards(rank, of)
        identity = self._identity(rank, of)
        epoch, start = resume_point(cursor, identity, "row")
        return self._from(shard, identity, batch_size, epochs, epoch, start)

    def _identity(self, rank: int, of: int) -> Cursor:
        return {"kind": "parquet", "rows": self._rows, "rank": rank, "of": of}

    def _from(
        self,
        shard: RowRange,
        identity: Cursor,
        batch_size: int,
        epochs: int,
        epoch: int,
        start: int,
    ) -> Iterator[Batch]:
        while epoch < epochs:
            rows: list[Row] = []
            at = max(start, shard.start)
            for number, row in self._good_rows(at, shard.stop):
                rows.append(row)
                at = number + 1
                if len(rows) == batch_size:
                    yield self._assemble(rows, {**identity, "epoch": epoch, "row": at})
                    rows = []
            if rows:
                yield self._assemble(rows, {**identity, "epoch": epoch, "row": at})
            epoch, start = epoch + 1, -1

    def _good_rows(self, start: int, stop: int) -> Iterator[tuple[int, Row]]:
        for number, cells in self._cells(start, stop):
            try:
                yield number, self._encoder.encode(cells)
            except BadLine as error:
                message = f"{self._path}, row {number + 1}: {error}"
                if self._on_bad == "error":
                    raise BadInput(message) from error
                self.skipped += 1
                if len(self.reasons) < MAX_KEPT_REASONS:
                    self.reasons.append(message)

    def _cells(self, start: int, stop: int) -> Iterator[tuple[int, list[bytes]]]:
        """(row number, cells) of the rows `start .. stop - 1`."""
        groups, first = self._groups(start, stop)
        if not groups:
            return
        names = self._file.schema_arrow.names
        used = self._encoder.used
        reading = self._file.iter_batches(
            batch_size=_READ_ROWS, row_groups=groups, columns=[names[i] for i in used]
        )
        for record_batch in _translated(self._path, reading):
            skip = max(0, start - first)
            piece = record_batch.slice(skip, max(0, min(len(record_batch), stop - first) - skip))
            table = [piece.column(names[i]).to_pylist() for i in used]
            for number, values in enumerate(zip(*table, strict=True), first + skip):
                cells = [b""] * len(names)
                for index, value in zip(used, values, strict=True):
                    cells[index] = _cell(value)
                yield number, cells
            first += len(record_batch)

    def _groups(self, start: int, stop: int) -> tuple[list[int], int]:
        """The row groups that hold the rows `start .. stop - 1`, and the first row in them."""
        groups: list[int] = []
        first, begin = 0, 0
        for group in range(self._file.num_row_groups):
            end = begin + int(self._file.metadata.row_group(group).num_rows)
            if begin < stop and end > start:
                first = first if groups else begin
                groups.append(group)
            begin = end
        return groups, first


def _translated(path: Path, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow

    try:
        yield from batches
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} is truncated or damaged ({error}): fetch it again") from error


def _cell(value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"1" if value else b"0"
    return str(value).encode()


def _open(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput(
            f"{path}: reading Parquet needs pyarrow: pip install 'resilient-ps[parquet]'"
        ) from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} cannot be read as Parquet ({error})") from error


def _by_type(schema: Any, label: str | int | None) -> tuple[list[int], list[int]]:
    import pyarrow

    is_number = pyarrow.types
    numeric: list[int] = []
    categorical: list[int] = []
    for index, column in enumerate(schema):
        if label in (index, column.name):
            continue
        kind = column.type
        plain = is_number.is_integer(kind) or is_number.is_floating(kind)
        (numeric if plain or is_number.is_boolean(kind) else categorical).append(index)
    return numeric, categorical
