"""The compiled passes of `partition`: numba's; the native module does the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilient_ps.tables.compiled import kernel, part
from resilient_ps.tables.filling import mix
from resilient_ps.tables.lanes import address, prefetch_read, prefetch_write
from resilient_ps.tables.parameters import Int
from resilient_ps.tables.steps import copy_run

ROWS_AHEAD = 16
WORDS_PER_LINE = 8
_HALF = np.uint64(32)


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


@part
def gather_run(source: Any, rows: Int, order: Any, n: Int, out: Any, width: Int) -> bool:
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
def scatter_run(grouped: Any, order: Any, n: Int, out: Any, rows: Int, width: Int) -> bool:
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
    return gather_run(address(source), source.shape[0], address(order), n, address(out), width)


@kernel
def scatter_words(grouped: Any, order: Any, out: Any) -> bool:
    """False, and some rows not written, if `order` names a row that `out` has not."""
    n, width = grouped.shape
    return scatter_run(address(grouped), address(order), n, address(out), out.shape[0], width)
