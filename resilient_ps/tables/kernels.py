"""The compiled passes over tables: find rows, create rows, push, pull. numba's; the native module
does the same (see `passes`).

The index is open addressing with linear probing over entries of 16 bytes: the key, and a word
whose lower 32 bits are the row's number plus 1 (0: the entry is empty). The upper 32 bits are a
*stamp*: the push, and the position in it, that last touched the row; it stands in the same
cache line that a lookup reads anyway. A push of n keys uses the stamps `base .. base + n - 1`, and
the next one begins above them: so a stamp of `base` or more says that the key has come before in
this push, and where. Repeats are chained (`following`), so that a row's gradients are added in the
order of their positions, then one step is taken.

Memory latency is what lookups cost: entries and rows are prefetched some positions before they are
used, steadily, so that the memory system always has work and is never flooded.

Kernels check nothing: `SparseShard` and `DenseShard` do. What a kernel needs to know of a table
comes in three arrays: `meta` (int64), `hyper` (float64) and `work` (the table's dtype).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilient_ps.tables.compiled import kernel, part
from resilient_ps.tables.filling import fill_row, mix
from resilient_ps.tables.lanes import address, prefetch_read, prefetch_write
from resilient_ps.tables.optimisers import HYPERPARAMETERS
from resilient_ps.tables.parameters import (
    ADAM,
    BASE,
    CREATED,
    DIM,
    DONE,
    FORMULA,
    INDEX_FULL,
    INDEXABLE,
    INIT_A,
    INIT_B,
    INIT_KIND,
    INITIAL_STATE,
    LINE,
    LOCATED,
    REPEATED,
    RING,
    ROOM,
    ROOM_FULL,
    ROWS,
    SEED,
    SLOTS,
    STRIDE,
    Int,
)
from resilient_ps.tables.steps import add_run, copy_run, set_adam_rates, step

BLOCK_KEYS = 16
KEYS_AHEAD = 20
ROWS_AHEAD = 12

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@part
def look_ahead(keys: Any, first: Int, last: Int, entries: Any, mask: Int, meta: Any) -> None:
    """Put down where to begin to look for some keys, and ask for those entries."""
    for i in range(first, last):
        slot = np.int64(mix(keys[i]) & np.uint64(mask))
        meta[SLOTS + (i & RING)] = slot
        prefetch_read(entries, 2 * slot)


@part
def locate(keys: Any, n: Int, entries: Any, mask: Int, rows: Any, following: Any, meta: Any) -> Int:
    """Give every key its row, from position `meta[LOCATED]` on; missing rows are numbered.

    `rows[i]` becomes the row of `keys[i]`, or -1 where the key came before in this push; then
    `following` of the position before is i, and 0 of the last.
    """
    base = meta[BASE]
    count = meta[ROWS]
    begin = meta[LOCATED]
    look_ahead(keys, begin, min(begin + KEYS_AHEAD, n), entries, mask, meta)
    for i in range(begin, n):
        key = keys[i]
        slot = meta[SLOTS + (i & RING)]
        if i + KEYS_AHEAD < n:
            look_ahead(keys, i + KEYS_AHEAD, i + KEYS_AHEAD + 1, entries, mask, meta)
        stamp = np.uint64(base + i) << _HALF
        following[i] = 0
        while True:
            word = entries[2 * slot + 1]
            if word == 0:
                if count == meta[INDEXABLE]:
                    meta[LOCATED] = i
                    meta[ROWS] = count
                    return INDEX_FULL
                count += 1
                entries[2 * slot] = key
                entries[2 * slot + 1] = stamp | np.uint64(count)
                rows[i] = count - 1
                break
            if entries[2 * slot] == key:
                before = np.int64(word >> _HALF) - base
                entries[2 * slot + 1] = stamp | (word & _LOW)
                if before < 0:
                    rows[i] = np.int64(word & _LOW) - 1
                else:
                    rows[i] = -1
                    following[before] = i
                break
            slot = (slot + 1) & mask
    meta[LOCATED] = n
    meta[ROWS] = count
    return DONE


@part
def create_row(slab: Any, at: Int, key: Any, meta: Any, hyper: Any) -> None:
    dim = meta[DIM]
    seed = np.uint64(meta[SEED])
    fill_row(slab, at, dim, key, seed, meta[INIT_KIND], hyper[INIT_A], hyper[INIT_B])
    for column in range(at + dim, at + meta[STRIDE]):
        slab[column] = hyper[INITIAL_STATE]


@part
def add_repeats(grads: Any, first: Int, following: Any, total: Any, at: Int, dim: Int) -> None:
    """Sum a row's gradients, in the order of their positions, into `total[at : at + dim]`."""
    copy_run(grads, first * dim, total, at, dim)
    i = np.int64(following[first])
    while i > 0:
        add_run(total, at, grads, i * dim, dim)
        i = np.int64(following[i])


@part
def apply(
    keys: Any, n: Int, grads: Any, slab: Any, row_keys: Any, rows: Any, following: Any,
    meta: Any, hyper: Any, work: Any,
) -> None:  # fmt: skip
    dim = meta[DIM]
    stride = meta[STRIDE]
    formula = meta[FORMULA]
    created_from = meta[CREATED]
    line = meta[LINE]
    for i in range(n):
        if i + ROWS_AHEAD < n:
            soon = np.int64(rows[i + ROWS_AHEAD])
            if soon >= 0:
                prefetch_write(slab, soon * stride)
                if stride > line:
                    prefetch_write(slab, soon * stride + line)
        row = np.int64(rows[i])
        if row < 0:
            continue
        at = row * stride
        if row >= created_from:
            create_row(slab, at, keys[i], meta, hyper)
            row_keys[row] = keys[i]
        source, source_at = grads, i * dim
        if following[i] != 0:
            source, source_at = work, HYPERPARAMETERS
            add_repeats(grads, i, following, work, HYPERPARAMETERS, dim)
        slot = at + dim
        if formula == ADAM:
            set_adam_rates(slab, slot + 2 * dim, hyper, work)
        step(formula, slab, at, slab, slot, slot + dim, source, source_at, dim, work)


@kernel
def push_rows(
    keys: Any, grads: Any, entries: Any, slab: Any, row_keys: Any, scratch: Any,
    meta: Any, hyper: Any, work: Any,
) -> Int:  # fmt: skip
    """One step for every distinct row of `keys`; begins, and goes on after growth.

    `scratch` (int32) has room for twice as many values as there are keys. `row_keys` gets the key
    of every row that is created.
    """
    n = keys.size
    mask = entries.size // 2 - 1
    rows, following = address(scratch), address(scratch[scratch.size // 2 :])
    full = locate(address(keys), n, address(entries), mask, rows, following, address(meta))
    if full != DONE:
        return full
    if meta[ROWS] > meta[ROOM]:
        return ROOM_FULL
    apply(
        address(keys), n, address(grads), address(slab), address(row_keys), rows, following,
        address(meta), address(hyper), address(work),
    )  # fmt: skip
    meta[CREATED] = meta[ROWS]
    meta[BASE] += n
    meta[LOCATED] = 0
    return DONE


@kernel
def load_rows(
    keys: Any, source: Any, columns: Int, entries: Any, slab: Any, row_keys: Any, scratch: Any,
    meta: Any,
) -> Int:  # fmt: skip
    """Set the rows of `keys` to the `columns` values and state that `source` has of each.

    Begins, and goes on after growth, as `push_rows` does.
    """
    n = keys.size
    mask = entries.size // 2 - 1
    rows, following = address(scratch), address(scratch[scratch.size // 2 :])
    full = locate(address(keys), n, address(entries), mask, rows, following, address(meta))
    if full != DONE:
        return full
    for i in range(n):
        if rows[i] < 0:
            return REPEATED
    if meta[ROWS] > meta[ROOM]:
        return ROOM_FULL
    stride = meta[STRIDE]
    for i in range(n):
        if i + ROWS_AHEAD < n:
            prefetch_write(address(slab), np.int64(rows[i + ROWS_AHEAD]) * stride)
        row = np.int64(rows[i])
        row_keys[row] = keys[i]
        copy_run(address(source), i * columns, address(slab), row * stride, columns)
    meta[CREATED] = meta[ROWS]
    meta[BASE] += n
    meta[LOCATED] = 0
    return DONE


@part
def find_rows(
    keys: Any, first: Int, last: Int, entries: Any, mask: Int, slab: Any, meta: Any
) -> None:
    """Put down where the rows of some keys begin, negative if missing, and ask for them."""
    stride = meta[STRIDE]
    line = meta[LINE]
    more_lines = meta[DIM] > line
    for i in range(first, last):
        key = keys[i]
        slot = meta[SLOTS + (i & RING)]
        word = entries[2 * slot + 1]
        while word != 0 and entries[2 * slot] != key:
            slot = (slot + 1) & mask
            word = entries[2 * slot + 1]
        at = (np.int64(word & _LOW) - 1) * stride
        meta[SLOTS + (i & RING)] = at
        prefetch_read(slab, at)  # a wrong address is ignored
        if more_lines:
            prefetch_read(slab, at + line)


@part
def copy_rows(keys: Any, first: Int, last: Int, slab: Any, out: Any, meta: Any, hyper: Any) -> None:
    dim = meta[DIM]
    seed = np.uint64(meta[SEED])
    for i in range(first, last):
        at = meta[SLOTS + (i & RING)]
        if at >= 0:
            copy_run(slab, at, out, i * dim, dim)
        else:
            fill_row(
                out, i * dim, dim, keys[i], seed,
                meta[INIT_KIND], hyper[INIT_A], hyper[INIT_B],
            )  # fmt: skip


@part
def pull(
    keys: Any, n: Int, out: Any, entries: Any, mask: Int, slab: Any, meta: Any, hyper: Any
) -> None:
    """Three stages, each a block of keys ahead of the next: look, find, copy."""
    second, third = min(BLOCK_KEYS, n), min(2 * BLOCK_KEYS, n)
    look_ahead(keys, 0, third, entries, mask, meta)
    find_rows(keys, 0, second, entries, mask, slab, meta)
    for first in range(0, n, BLOCK_KEYS):
        fourth = min(third + BLOCK_KEYS, n)
        look_ahead(keys, third, fourth, entries, mask, meta)
        find_rows(keys, second, third, entries, mask, slab, meta)
        copy_rows(keys, first, second, slab, out, meta, hyper)
        second, third = third, fourth


@kernel
def pull_rows(keys: Any, out: Any, entries: Any, slab: Any, meta: Any, hyper: Any) -> None:
    """Copy the rows of `keys` to `out`; a missing row's initial value is computed, not stored."""
    pull(
        address(keys), keys.size, address(out), address(entries), entries.size // 2 - 1,
        address(slab), address(meta), address(hyper),
    )  # fmt: skip


@kernel
def rehash(entries: Any, larger: Any, rows_kept: Int) -> None:
    """Move the entries of the first `rows_kept` rows to `larger`, which is all zero."""
    mask = np.int64(larger.size // 2 - 1)
    source, target = address(entries), address(larger)
    size = entries.size // 2
    for old in range(size):
        ahead = old + KEYS_AHEAD
        if ahead < size and source[2 * ahead + 1] != 0:
            prefetch_write(target, 2 * np.int64(mix(source[2 * ahead]) & np.uint64(mask)))
        word = source[2 * old + 1]
        if word == 0 or np.int64(word & _LOW) > rows_kept:
            continue
        key = source[2 * old]
        slot = np.int64(mix(key) & np.uint64(mask))
        while target[2 * slot + 1] != 0:
            slot = (slot + 1) & mask
        target[2 * slot] = key
        target[2 * slot + 1] = word


@kernel
def forget_stamps(entries: Any) -> None:
    """Set all stamps to 0, below the first push's."""
    for slot in range(entries.size // 2):
        entries[2 * slot + 1] &= _LOW


@kernel
def survey_rows(entries: Any, first: Int, last: Int, stamp: Int, touched: Any) -> None:
    """Set the flags of rows that have an entry from `first` to `last - 1` with `stamp` or a later
    one, which is more than 0. Rows beyond the flags have none.
    """
    least = np.uint64(stamp) << _HALF
    for i in range(first, last):
        word = entries[2 * i + 1]
        row = np.int64(word & _LOW) - 1
        if word >= least and row < touched.size:
            touched[row] = True


@part
def look(key: Any, entries: Any, mask: Int) -> Int:
    """The number of a key's row, or -1."""
    slot = np.int64(mix(key) & np.uint64(mask))
    word = entries[2 * slot + 1]
    while word != 0 and entries[2 * slot] != key:
        slot = (slot + 1) & mask
        word = entries[2 * slot + 1]
    return np.int64(word & _LOW) - 1


@part
def prefetch_entry(keys: Any, i: Int, n: Int, entries: Any, mask: Int) -> None:
    if i < n:
        prefetch_read(entries, 2 * np.int64(mix(keys[i]) & np.uint64(mask)))


@kernel
def row_numbers(keys: Any, rows: Any, entries: Any) -> None:
    """Put down in `rows` (int32) the number of each key's row, -1 for keys that have none."""
    mask = np.int64(entries.size // 2 - 1)
    n = keys.size
    for i in range(n):
        prefetch_entry(address(keys), i + KEYS_AHEAD, n, address(entries), mask)
        rows[i] = look(keys[i], address(entries), mask)


@kernel
def claim_rows(keys: Any, rows: Any, states: Any, first: Int, last: Int, entries: Any) -> Int:
    """Set the state of those rows of `keys` to 1 that have state 0, and put them down in `rows`.

    Each once (uint32), and only rows from `first` to `last - 1`; returns how many those are.
    """
    mask = np.int64(entries.size // 2 - 1)
    n = keys.size
    count = 0
    for i in range(n):
        prefetch_entry(address(keys), i + KEYS_AHEAD, n, address(entries), mask)
        row = look(keys[i], address(entries), mask)
        if first <= row < last and states[row] == 0:
            states[row] = 1
            rows[count] = row
            count += 1
    return count


@part
def slot_elements(elements: Int, line: Int) -> Int:
    """Elements of one slot of a dense shard's state: whole cache lines of `line` elements."""
    return (elements + line - 1) // line * line


@kernel
def push_blocks(
    values: Any, state: Any, grads: Any, blocks: Any, block_elements: Int,
    meta: Any, hyper: Any, work: Any,
) -> None:  # fmt: skip
    """One step for each of a dense shard's `blocks` (numbers within the shard, int64).

    `state` is both slots, each as long as `values` rounded up to whole cache lines, then the count
    of steps of each block; shorter where the optimiser has less.
    """
    slot_size = slot_elements(values.size, meta[LINE])
    grad_at = 0
    for i in range(blocks.size):
        block = blocks[i]
        at = block * block_elements
        n = min(block_elements, values.size - at)
        if meta[FORMULA] == ADAM:
            steps_at = 2 * slot_size + block
            set_adam_rates(address(state), steps_at, address(hyper), address(work))
        step(
            meta[FORMULA], address(values), at, address(state), at, slot_size + at,
            address(grads), grad_at, n, address(work),
        )  # fmt: skip
        grad_at += n


@kernel
def fill_rows(out: Any, first_row: Int, meta: Any, hyper: Any) -> None:
    """Initial values of a dense table's rows, from row `first_row` on."""
    seed = np.uint64(meta[SEED])
    dim = meta[DIM]
    for row in range(out.size // dim):
        fill_row(
            address(out), row * dim, dim, np.uint64(first_row + row), seed,
            meta[INIT_KIND], hyper[INIT_A], hyper[INIT_B],
        )  # fmt: skip
