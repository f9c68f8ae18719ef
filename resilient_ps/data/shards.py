"""How a data set is split among ranks: each split is a pure function of (rank, of).

The parts of all ranks are disjoint and together are the whole, whatever `of` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilient_ps.data.batch import MAX_BATCH_ROWS, Cursor
from resilient_ps.errors import BadInput

Schedule: TypeAlias = Literal["static", "dynamic"]
"""Does each rank read its own part, or does whoever is free take one of many parts?"""


@dataclass(frozen=True, slots=True)
class RowStride:
    """The rows `rank, rank + of, rank + 2 * of, ...` of `rows`."""

    rank: int
    of: int
    rows: int

    def __len__(self) -> int:
        return max(0, (self.rows - self.rank + self.of - 1) // self.of)


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows `start .. stop - 1`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The lines of a file whose first byte lies in `start .. stop - 1`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class LineStride:
    """The lines `rank, rank + of, ...`, counted from the first line of data (compressed files)."""

    rank: int
    of: int


Shard = RowStride | RowRange | ByteRange | LineStride


def row_range(rows: int, rank: int, of: int) -> RowRange:
    """The contiguous part of `rows` rows that belongs to `rank`."""
    return RowRange(rows * rank // of, rows * (rank + 1) // of)


def byte_range(start: int, stop: int, rank: int, of: int) -> ByteRange:
    """The part of the bytes `start .. stop - 1` that belongs to `rank`."""
    size = max(0, stop - start)
    return ByteRange(start + size * rank // of, start + size * (rank + 1) // of)


def check_ranks(rank: int, of: int) -> None:
    """Raise `BadInput` unless `0 <= rank < of`."""
    if of < 1 or not 0 <= rank < of:
        raise BadInput(f"rank {rank} of {of} does not exist: ranks are 0 .. of - 1, and of >= 1")


def check_batches(batch_size: int, epochs: int) -> None:
    """Raise `BadInput` unless both numbers are within their limits."""
    if not 1 <= batch_size <= MAX_BATCH_ROWS:
        raise BadInput(f"batch_size={batch_size} is not in 1 .. {MAX_BATCH_ROWS} rows")
    if epochs < 1:
        raise BadInput(f"epochs={epochs}: at least one pass over the data is needed")


def batch_count(rows: int, batch_size: int, epochs: int) -> int:
    """How many batches `rows` rows make; the last one of an epoch may be shorter."""
    return -(-rows // batch_size) * epochs


def resume_point(cursor: Cursor | None, identity: Cursor, position: str) -> tuple[int, int]:
    """The (epoch, position) at which reading goes on; (0, -1) without a cursor.

    A cursor without a position is the beginning of its epoch (-1). `identity` is what the cursor
    must agree with: kind and size of the data, rank, of, seed.
    """
    if cursor is None:
        return 0, -1
    for name, expected in identity.items():
        if cursor.get(name) != expected:
            raise BadInput(
                f"this cursor belongs to other data or another rank: it says {name}="
                f"{cursor.get(name)!r}, but here {name}={expected!r}; resume with the cursor that "
                "the same data set gave to the same rank of as many ranks"
            )
    epoch, at = cursor.get("epoch"), cursor.get(position, 0)
    if not isinstance(epoch, int) or not isinstance(at, int) or epoch < 0 or at < 0:
        raise BadInput(f"malformed cursor {cursor!r}: it needs 'epoch' and {position!r} as numbers")
    return epoch, at if position in cursor else -1
