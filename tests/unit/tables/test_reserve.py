"""Room that is made at once: a matter of speed and memory, never of content."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.tables.optimisers import Adagrad
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import SparseSpec

SPEC = SparseSpec("t", 3, optimiser=Adagrad(lr=0.1))


@pytest.mark.parametrize("rows", [0, 1, 700, 5_000, 100_000])
def test_a_table_is_the_same_whatever_was_reserved(rows: int) -> None:
    plain, reserved = SparseShard(SPEC), SparseShard(SPEC)
    reserved.reserve(rows)
    draw = np.random.default_rng(1)
    for at in range(0, 3000, 500):
        keys = np.arange(at, at + 500, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        content = draw.random((500, plain.columns), np.float32)
        for table in (plain, reserved):
            table.load(keys, content)
            table.push(keys[:100], content[:100, :3].copy())
    assert reserved.digest() == plain.digest()
    assert np.array_equal(reserved.pull(plain.keys()), plain.pull(plain.keys()))


def test_rows_that_were_reserved_for_are_not_moved() -> None:
    table = SparseShard(SPEC)
    table.reserve(10_000)
    slab, entries = table._slab, table._index.entries
    table.load(np.arange(10_000, dtype=np.uint64), np.ones((10_000, table.columns), np.float32))
    assert table._slab is slab
    assert table._index.entries is entries
    table.reserve(100)
    assert table._slab is slab


def test_no_more_is_reserved_than_a_shard_may_hold() -> None:
    table = SparseShard(SPEC, max_rows=1000)
    table.reserve(10**9)
    assert table._slab.nbytes < 10**6
    assert table.bytes_held < 10**6
