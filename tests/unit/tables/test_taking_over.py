"""Tables that are loaded into the memory, and by the index, of tables of before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilient_ps.tables.initialisers import Normal
from resilient_ps.tables.optimisers import Adam
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.tables.survey import Survey

OTHER_KEYS = np.arange(1 << 40, (1 << 40) + 19_000, dtype=np.uint64)
CHUNK_ROWS = 3000


def adam_table(seed: int, keys: Any) -> SparseShard:
    shard = SparseShard(SparseSpec("t", 3, "float32", Adam(0.1), Normal(0.5)))
    shard.push(keys, np.random.default_rng(seed).standard_normal((keys.size, 3)).astype(np.float32))
    return shard


@pytest.mark.parametrize("as_before", [0, CHUNK_ROWS - 1, 2 * CHUNK_ROWS, 15_000, 17_000, 20_000])
@pytest.mark.parametrize("more", [0, 500, 1999])
def test_the_index_of_a_table_of_before_serves_while_its_rows_come_in_order(
    as_before: int, more: int
) -> None:
    keys = np.arange(7, 20_007, dtype=np.uint64)
    before = adam_table(1, keys)
    source = adam_table(2, np.concatenate([keys[:as_before], OTHER_KEYS[:more]]))
    fresh, reused = SparseShard(source.spec), SparseShard(source.spec)
    index = before._index.entries
    reused.take_over(before, 18_000)
    for first in range(0, len(source), CHUNK_ROWS):
        chunk = source.capture(first, min(first + CHUNK_ROWS, len(source)))
        fresh.load(*chunk)
        reused.load(*chunk)
    reused.settle()
    if as_before == 20_000 and not more:
        assert reused._index.entries is index
    assert reused.digest() == fresh.digest() == source.digest()
    assert reused.row_numbers(source.keys()).tolist() == source.row_numbers(source.keys()).tolist()
    assert (reused.row_numbers(keys[as_before:]) == -1).all()
    mark = reused.mark()
    touched = np.concatenate([keys[::7], OTHER_KEYS[:600]])
    for shard in (fresh, reused):
        shard.push(touched, np.full((touched.size, 3), 0.25, np.float32))
    assert reused.digest() == fresh.digest()
    numbers = np.flatnonzero(Survey(reused, mark, len(reused)).finish())
    assert numbers.tolist() == np.sort(reused.row_numbers(touched)).tolist()


def test_rows_that_a_later_chunk_changes_are_found_in_the_index_of_before() -> None:
    keys = np.arange(20_000, dtype=np.uint64)
    before, source = adam_table(1, keys), adam_table(2, keys[:18_000])
    reused = SparseShard(source.spec)
    reused.take_over(before, 18_000)
    reused.load(*source.capture(0, 18_000))
    changed = keys[100:19_000:3]
    source.push(changed, np.ones((changed.size, 3), np.float32))
    reused.load(*source.take(source.row_numbers(changed).astype(np.uint32)))
    reused.settle()
    assert reused.digest() == source.digest()
    assert (reused.row_numbers(keys[19_000:]) == -1).all()


def test_a_table_that_was_to_be_loaded_and_was_not_is_empty() -> None:
    before = adam_table(1, np.arange(20_000, dtype=np.uint64))
    reused = SparseShard(before.spec)
    reused.take_over(before, 18_000)
    reused.settle()
    assert len(reused) == 0
    assert (reused.row_numbers(before.keys()) == -1).all()
