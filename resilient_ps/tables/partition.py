"""Client-side kernels: group the keys of a request by shard, and move rows to and from that order.

`partition` is a stable counting sort; `gather_rows` and `scatter_rows` move whole rows of any
dtype as words of 8 or 4 bytes, a cache line at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.hashing import MAX_SHARDS
from resilient_ps.tables.compiled import Int, kernel, part
from resilient_ps.tables.initialisers import mix
from resilient_ps.tables.lanes import address, prefetch_read, prefetch_write
from resilient_ps.tables.steps import copy_run

MAX_KEYS = 1 << 31
ROWS_AHEAD = 16
WORDS_PER_LINE = 8
_HALF = np.uint64(32)
_KEYS_DTYPE = np.dtype(np.uint64)
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
    if not 1 <= shards <= MAX_SHARDS:
        raise BadInput(f"shards must be 1 to {MAX_SHARDS}, not {shards}")
    if keys.dtype != _KEYS_DTYPE or keys.ndim != 1 or keys.size >= MAX_KEYS:
        raise BadInput(
            f"keys must be uint64 of shape (n,), n below {MAX_KEYS};"
            f" got {keys.dtype} of shape {keys.shape}"
        )
    if not keys.flags.carray:
        keys = np.array(keys)
    ranks = _NO_RANKS if rank_of_shard is None else rank_of_shard
    if rank_of_shard is not None and (ranks.dtype != np.int32 or ranks.shape != (shards,)):
        raise BadInput(f"rank_of_shard must be int32 of shape ({shards},)")
    order = np.empty(keys.size, np.uint32)
    grouped = np.empty(keys.size, np.uint64)
    counts = np.zeros(shards, np.int64)
    work = np.empty(keys.size, np.uint16)
    if not group_keys(keys, order, grouped, counts, ranks, work):
        raise BadInput(f"rank_of_shard must be a permutation of 0 to {shards - 1}")
    return order, counts, grouped


@part
def count_groups(keys: Any, n: Int, groups: Any, counts: Any, shards: Int, ranks: Any) -> bool:
    """`groups[i]`: the group of `keys[i]`; false if a rank is not in `0 .. shards - 1`."""
    for i in range(n):
        group = np.int64(((mix(keys[i]) >> _HALF) * np.uint64(shards)) >> _HALF)
        if ranks.size:
            group = np.int64(ranks[group])
            if group < 0 or group >= shards:
                return False
        groups[i] = group
        counts[group] += 1
    return True


@kernel
def group_keys(keys: Any, order: Any, grouped: Any, counts: Any, ranks: Any, work: Any) -> bool:
    """`work` (uint16) has room for a group number per key."""
    n = keys.size
    key, group_of, order_at, grouped_at = (
        address(keys),
        address(work),
        address(order),
        address(grouped),
    )
    if not count_groups(key, n, group_of, address(counts), counts.size, ranks):
        return False
    next_at = np.empty(counts.size, np.int64)
    total = np.int64(0)
    for shard in range(counts.size):
        next_at[shard] = total
        total += counts[shard]
    for i in range(n):
        group = np.int64(group_of[i])
        at = next_at[group]
        next_at[group] = at + 1
        order_at[at] = i
        grouped_at[at] = key[i]
    return True


def gather_rows(values: NDArray[Any], order: NDArray[np.uint32], out: NDArray[Any]) -> NDArray[Any]:
    """`out[i] = values[order[i]]` for rows of `values` (n, d) and `out` (m, d); returns `out`."""
    source, target = _as_words(values), _as_words(out)
    _check_move(target, source, target, order)
    if not gather_words(_writable(source), order, target):
        raise BadInput(f"order names a row beyond the {source.shape[0]} rows")
    return out


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


@part
def gather(source: Any, rows: Int, order: Any, n: Int, out: Any, width: Int) -> bool:
    for i in range(n):
        if i + ROWS_AHEAD < n:
            soon = np.int64(order[i + ROWS_AHEAD])
            prefetch_read(source, soon * width)
            if width > WORDS_PER_LINE:
                prefetch_read(source, soon * width + WORDS_PER_LINE)
        row = np.int64(order[i])
        if row >= rows:
            return False
        copy_run(source, row * width, out, i * width, width)
    return True


@part
def scatter(grouped: Any, order: Any, n: Int, out: Any, rows: Int, width: Int) -> bool:
    for i in range(n):
        if i + ROWS_AHEAD < n:
            soon = np.int64(order[i + ROWS_AHEAD])
            prefetch_write(out, soon * width)
            if width > WORDS_PER_LINE:
                prefetch_write(out, soon * width + WORDS_PER_LINE)
        row = np.int64(order[i])
        if row >= rows:
            return False
        copy_run(grouped, i * width, out, row * width, width)
    return True


@kernel
def gather_words(source: Any, order: Any, out: Any) -> bool:
    """False, and some rows not written, if `order` names a row that `source` has not."""
    n, width = out.shape
    return gather(address(source), source.shape[0], address(order), n, address(out), width)


@kernel
def scatter_words(grouped: Any, order: Any, out: Any) -> bool:
    """False, and some rows not written, if `order` names a row that `out` has not."""
    n, width = grouped.shape
    return scatter(address(grouped), address(order), n, address(out), out.shape[0], width)
