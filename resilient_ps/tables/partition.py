"""Client-side kernels: group the keys of a request by shard, and move rows to and from that order.

`partition` is a stable counting sort; `gather_rows` and `scatter_rows` move whole rows of any
dtype as words of 8 or 4 bytes, a cache line at a time. `group_push` and `group_pull` are what a
request needs, in one pass of the native module where it is in use. A pull ends with `gather_rows`
of the received rows: it writes the answer from its first to its last byte, and reads one run of
rows per shard, which is faster than to read in order and to write at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.engine import native
from resilient_ps.errors import BadInput
from resilient_ps.hashing import MAX_SHARDS

MAX_KEYS = 1 << 31
_KEYS_DTYPE = np.dtype(np.uint64)
if native is None:
    from resilient_ps.tables.grouping import gather_words, group_keys, scatter_words
else:
    gather_words, scatter_words = native.gather, native.scatter

_NO_RANKS: NDArray[np.int32] = np.empty(0, np.int32)


def partition(
    keys: NDArray[np.uint64], shards: int, rank_of_shard: NDArray[np.int32] | None = None
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint64]]:
    """Group `keys` (uint64, shape (n,)) by shard, in the order of their positions within a group.

    Returns `order` (uint32, n): the position of each grouped key in `keys`; `counts` (int64,
    shards): the size of each group; and the grouped keys. Group i is shard i, or with
    `rank_of_shard` (int32, shards; a permutation) the shard whose rank is i: so a client orders the
    groups by server and then shard in the same pass.
    """
    keys = _checked(keys, shards, rank_of_shard)
    ranks = _NO_RANKS if rank_of_shard is None else rank_of_shard
    order = np.empty(keys.size, np.uint32)
    grouped = np.empty(keys.size, np.uint64)
    if native is not None:
        try:
            sizes = native.group_keys(keys, shards, rank_of_shard, grouped, order, None)
        except ValueError as error:
            raise BadInput(f"rank_of_shard: {error} of 0 to {shards - 1}") from error
        return order, np.array(sizes, np.int64), grouped
    counts = np.zeros(shards, np.int64)
    work = np.empty(keys.size, np.uint16)
    if not group_keys(keys, order, grouped, counts, ranks, work):
        raise BadInput(f"rank_of_shard must be a permutation of 0 to {shards - 1}")
    return order, counts, grouped


def _checked(
    keys: NDArray[np.uint64], shards: int, ranks: NDArray[np.int32] | None
) -> NDArray[np.uint64]:
    if not 1 <= shards <= MAX_SHARDS:
        raise BadInput(f"shards must be 1 to {MAX_SHARDS}, not {shards}")
    if keys.dtype != _KEYS_DTYPE or keys.ndim != 1 or keys.size >= MAX_KEYS:
        raise BadInput(
            f"keys must be uint64 of shape (n,), n below {MAX_KEYS};"
            f" got {keys.dtype} of shape {keys.shape}"
        )
    if ranks is not None and (ranks.dtype != np.int32 or ranks.shape != (shards,)):
        raise BadInput(f"rank_of_shard must be int32 of shape ({shards},)")
    return keys if keys.flags.carray else np.array(keys)


def group_push(
    keys: NDArray[np.uint64], rows: NDArray[Any], shards: int, ranks: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[Any], Sequence[int]]:
    """`keys` (n,) and their `rows` (n, d), both grouped as `partition` does, and the counts."""
    if native is None:
        order, counts, grouped = partition(keys, shards, ranks)
        return grouped, gather_rows(rows, order, np.empty_like(rows)), counts.tolist()
    keys = _checked(keys, shards, ranks)
    grouped, grouped_rows = np.empty_like(keys), np.empty_like(rows)
    counts = native.group_rows(keys, shards, ranks, grouped, rows, grouped_rows)
    return grouped, grouped_rows, counts


def group_pull(
    keys: NDArray[np.uint64], shards: int, ranks: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], Sequence[int]]:
    """The grouped keys; for each key its place among them (uint32); and the counts."""
    if native is None:
        order, counts, grouped = partition(keys, shards, ranks)
        places = np.empty_like(order)
        places[order] = np.arange(order.size, dtype=np.uint32)
        return grouped, places, counts.tolist()
    keys = _checked(keys, shards, ranks)
    grouped, places = np.empty_like(keys), np.empty(keys.size, np.uint32)
    return grouped, places, native.group_keys(keys, shards, ranks, grouped, None, places)


def gather_rows(values: NDArray[Any], order: NDArray[np.uint32], out: NDArray[Any]) -> NDArray[Any]:
    """`out[i] = values[order[i]]` for rows of `values` (n, d) and `out` (m, d); returns `out`."""
    source, target = _as_words(values), _as_words(out)
    _check_move(target, source, target, order)
    if not gather_words(_writable(source), order, target):
        raise BadInput(f"order names a row beyond the {source.shape[0]} rows")
    return out


def ungroup(rows: NDArray[Any], places: NDArray[np.uint32], out: NDArray[Any]) -> None:
    """`out[i] = rows[places[i]]`: the end of a pull, whose arrays `group_pull` has fitted."""
    if native is None:
        gather_rows(rows, places, out)
    elif not native.gather(rows, places, out):
        raise BadInput(f"places name a row beyond the {len(rows)} rows")


def scatter_rows(
    grouped: NDArray[Any], order: NDArray[np.uint32], out: NDArray[Any]
) -> NDArray[Any]:
    """`out[order[i]] = grouped[i]` for rows of `grouped` (m, d) and `out` (n, d); returns `out`."""
    source, target = _as_words(grouped), _as_words(out)
    _check_move(source, source, target, order)
    if not scatter_words(_writable(source), order, target):
        raise BadInput(f"order names a row beyond the {target.shape[0]} rows")
    return out


def _as_words(rows: NDArray[Any]) -> NDArray[Any]:
    if rows.ndim != 2 or not rows.flags.c_contiguous:
        raise BadInput(f"rows must be an array (n, d) in C order, not of shape {rows.shape}")
    row_bytes = rows.shape[1] * rows.itemsize
    if row_bytes == 0 or row_bytes % 4:
        raise BadInput(f"rows of {row_bytes} bytes: they must be of whole 4-byte values")
    return rows.view(np.uint32 if row_bytes % 8 else np.uint64)


def _writable(rows: NDArray[Any]) -> NDArray[Any]:
    """Read-only and unaligned rows are copied: kernels are compiled for the usual kind only."""
    return rows if rows.flags.carray else np.array(rows)


def _check_move(
    moved: NDArray[Any], source: NDArray[Any], target: NDArray[Any], order: NDArray[np.uint32]
) -> None:
    if source.dtype != target.dtype or source.shape[1] != target.shape[1]:
        raise BadInput("the rows to move and the rows to write have different widths")
    if order.dtype != np.uint32 or order.shape != (moved.shape[0],) or not order.flags.carray:
        raise BadInput(
            f"order must be uint32 of shape ({moved.shape[0]},),"
            f" not {order.dtype} of shape {order.shape}"
        )
    if not target.flags.writeable:
        raise BadInput("the rows to write are read-only")
