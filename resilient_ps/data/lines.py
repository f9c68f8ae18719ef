"""Data sets that are read from text files line by line: ranks, epochs, cursors, bad lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Literal, Protocol

import numpy as np

from resilient_ps.data.batch import Batch, Cursor, DenseBatch, SparseBatch
from resilient_ps.data.shards import (
    ByteRange,
    LineStride,
    check_batches,
    check_ranks,
    resume_point,
)
from resilient_ps.data.textfile import MAX_LINE_BYTES, CompressedText, Line, PlainText
from resilient_ps.errors import BadInput

Row = tuple[float, Sequence[int], Sequence[float]]
OnBad = Literal["error", "skip"]

MAX_KEPT_REASONS = 20


class BadLine(ValueError):
    """Why one line cannot be used; `LineDataset` adds file and line number."""


class RowParser(Protocol):
    """Makes a row of a line."""

    def parse(self, text: bytes) -> Row | None:
        """(label, keys, values), or None for a line without data; raises `BadLine`."""


def sparse_batch(rows: Sequence[Row], cursor: Cursor) -> SparseBatch:
    """Rows as a `SparseBatch`."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row[1]) for row in rows], out=offsets[1:])
    count = int(offsets[-1])
    return SparseBatch(
        np.array([row[0] for row in rows], np.float32),
        offsets,
        np.fromiter(chain.from_iterable(row[1] for row in rows), np.uint64, count),
        np.fromiter(chain.from_iterable(row[2] for row in rows), np.float32, count),
        cursor,
    )


def dense_batch(rows: Sequence[Row], cursor: Cursor) -> DenseBatch:
    """Rows without keys, all of one width, as a `DenseBatch`."""
    return DenseBatch(
        np.array([row[0] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.float32),
        cursor,
    )


class LineDataset:
    """A text file as batches of rows, holding one batch in memory.

    A bad line raises `BadInput` with file, line number and reason, or with `on_bad="skip"` is
    counted in `skipped`, and the first `MAX_KEPT_REASONS` such messages are kept in `reasons`.
    """

    def __init__(
        self,
        source: PlainText | CompressedText,
        parser: RowParser,
        *,
        data_start: int = 0,
        on_bad: OnBad = "error",
        assemble: Callable[[Sequence[Row], Cursor], Batch] = sparse_batch,
    ) -> None:
        if on_bad not in ("error", "skip"):
            raise BadInput(f"on_bad={on_bad!r}: use 'error' or 'skip'")
        self._source = source
        self._parser = parser
        self._data_start = data_start
        self._on_bad = on_bad
        self._assemble = assemble
        self.skipped = 0
        self.reasons: list[str] = []

    def shards(self, rank: int, of: int) -> ByteRange | LineStride:
        """The rank's bytes of a plain file, or every `of`-th line of a compressed one."""
        check_ranks(rank, of)
        return self._source.shard(self._data_start, rank, of)

    def beginning(self, rank: int, of: int, epoch: int) -> Cursor:
        """The cursor of the beginning of an epoch; see `Dataset.beginning`."""
        check_ranks(rank, of)
        return {**self._identity(rank, of), "epoch": epoch}

    def batches_per_rank(self, of: int, batch_size: int, epochs: int = 1) -> list[int] | None:
        """None: the number of lines is not known before they are read."""
        check_batches(batch_size, epochs)
        return None

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
        epoch, start = resume_point(cursor, identity, "at")
        return self._from(shard, identity, batch_size, epochs, epoch, start)

    def _identity(self, rank: int, of: int) -> Cursor:
        return {
            "kind": self._source.kind,
            "file_bytes": self._source.size_bytes,
            "rank": rank,
            "of": of,
        }

    def _from(
        self,
        shard: ByteRange | LineStride,
        identity: Cursor,
        batch_size: int,
        epochs: int,
        epoch: int,
        start: int,
    ) -> Iterator[Batch]:
        while epoch < epochs:
            rows: list[Row] = []
            at = start
            for line in self._own_lines(shard, start):
                row = self._row(line)
                if row is None:
                    continue
                rows.append(row)
                at = line.next_position
                if len(rows) == batch_size:
                    yield self._assemble(rows, {**identity, "epoch": epoch, "at": at})
                    rows = []
            if rows:
                yield self._assemble(rows, {**identity, "epoch": epoch, "at": at})
            epoch, start = epoch + 1, -1

    def _own_lines(self, shard: ByteRange | LineStride, start: int) -> Iterator[Line]:
        """The shard's lines, from position `start` on if that is not negative."""
        if isinstance(shard, ByteRange):
            return self._lines_of_range(shard, start)
        return self._lines_of_stride(shard, start)

    def _lines_of_range(self, shard: ByteRange, start: int) -> Iterator[Line]:
        source = self._source
        assert isinstance(source, PlainText)
        if start < 0:
            start = source.first_line_from(shard.start, self._data_start)
        for line in source.walk(start):
            if line.position >= shard.stop:
                return
            yield line

    def _lines_of_stride(self, shard: LineStride, start: int) -> Iterator[Line]:
        for line in self._source.walk(max(start, self._data_start)):
            if (line.position - self._data_start) % shard.of == shard.rank:
                yield line

    def _row(self, line: Line) -> Row | None:
        try:
            if line.text is None:
                raise BadLine(f"longer than {MAX_LINE_BYTES} bytes")
            return self._parser.parse(line.text)
        except BadLine as error:
            if self._on_bad == "error":
                raise BadInput(f"{self._where(line)}: {error}") from error
            self.skipped += 1
            if len(self.reasons) < MAX_KEPT_REASONS:
                self.reasons.append(f"{self._where(line)}: {error}")
            return None

    def _where(self, line: Line) -> str:
        return f"{self._source.path}, line {self._source.line_number(line.position)}"
