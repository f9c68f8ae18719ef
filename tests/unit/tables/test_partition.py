"""Grouping keys by shard, and moving rows to that order and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from resilient_ps.errors import BadInput
from resilient_ps.hashing import shard_of
from resilient_ps.tables.partition import gather_rows, partition, scatter_rows

KEYS = hnp.arrays(np.uint64, st.integers(0, 200), elements=st.integers(0, 2**64 - 1))


@given(KEYS, st.integers(1, 40))
def test_groups_are_the_shards_in_order_and_stable(keys: np.ndarray, shards: int) -> None:
    order, counts, grouped = partition(keys, shards)
    groups = [shard_of(int(key), shards) for key in keys]
    expected = sorted(range(keys.size), key=lambda i: groups[i])  # Python's sort is stable
    assert order.tolist() == expected
    assert counts.tolist() == [groups.count(shard) for shard in range(shards)]
    assert grouped.tolist() == keys[expected].tolist()
    assert [a.dtype.name for a in (order, counts, grouped)] == ["uint32", "int64", "uint64"]


@given(KEYS, st.permutations(range(6)))
def test_ranks_decide_the_order_of_the_groups(keys: np.ndarray, ranks: list[int]) -> None:
    order, counts, _ = partition(keys, 6, np.array(ranks, np.int32))
    groups = [ranks[shard_of(int(key), 6)] for key in keys]
    assert order.tolist() == sorted(range(keys.size), key=lambda i: groups[i])
    assert counts.tolist() == [groups.count(rank) for rank in range(6)]


ROWS = [
    ("float32", 1),
    ("float32", 2),
    ("float32", 5),
    ("float32", 16),
    ("float32", 33),
    ("float64", 1),
    ("float64", 8),
    ("float64", 100),
    ("int64", 3),
]


@pytest.mark.parametrize(("dtype", "width"), ROWS)
@pytest.mark.parametrize("n", [0, 1, 15, 1000])
def test_rows_move_as_numpy_moves_them(dtype: str, width: int, n: int) -> None:
    rng = np.random.default_rng(width)
    values = rng.integers(-1000, 1000, (n, width)).astype(dtype)
    order = rng.permutation(n).astype(np.uint32)
    gathered = gather_rows(values, order, np.full((n, width), -1, dtype))
    np.testing.assert_array_equal(gathered, values[order])
    scattered = scatter_rows(gathered, order, np.full((n, width), -1, dtype))
    np.testing.assert_array_equal(scattered, values)


def test_a_part_of_the_rows_can_be_moved() -> None:
    values = np.arange(30, dtype=np.float32).reshape(10, 3)
    order = np.array([9, 0, 4], np.uint32)
    part = gather_rows(values, order, np.empty((3, 3), np.float32))
    np.testing.assert_array_equal(part, values[order])
    out = scatter_rows(part, order, np.zeros((10, 3), np.float32))
    np.testing.assert_array_equal(out[order], part)
    assert np.count_nonzero(out.any(axis=1)) == 3


def test_what_is_moved_may_be_read_only() -> None:
    values = np.frombuffer(np.ones((2, 4), np.float32).tobytes(), np.float32).reshape(2, 4)
    order = np.array([1, 0], np.uint32)
    assert gather_rows(values, order, np.empty((2, 4), np.float32)).all()
    keys = np.frombuffer(np.arange(5, dtype=np.uint64).tobytes(), np.uint64)
    assert partition(keys, 2)[1].sum() == 5


VALUES, ORDER, OUT = np.zeros((4, 2), np.float32), np.arange(4, dtype=np.uint32), np.zeros((4, 2))
OUT = OUT.astype(np.float32)


@pytest.mark.parametrize(
    ("values", "order", "out", "complaint"),
    [
        (VALUES, ORDER + np.uint32(1), OUT, "beyond the 4 rows"),
        (VALUES, ORDER.astype(np.int64), OUT, "order must be uint32"),
        (VALUES, ORDER[:3], OUT, "order must be uint32 of shape"),
        (VALUES, ORDER, np.zeros((4, 3), np.float32), "different widths"),
        (VALUES, ORDER, np.zeros((4, 1), np.float32), "different widths"),
        (VALUES[:, :1], ORDER, OUT, "in C order"),
        (VALUES[0], ORDER, OUT, "in C order"),
        (np.zeros((4, 2), np.int16), ORDER, np.zeros((4, 3), np.int16), "4-byte values"),
    ],
)
def test_bad_moves_are_refused(values: Any, order: Any, out: Any, complaint: str) -> None:
    for move in (gather_rows, scatter_rows):
        with pytest.raises(BadInput, match=complaint):
            move(values, order, out)


def test_read_only_targets_are_refused() -> None:
    out = OUT.copy()
    out.flags.writeable = False
    for move in (gather_rows, scatter_rows):
        with pytest.raises(BadInput, match="read-only"):
            move(VALUES, ORDER, out)


@pytest.mark.parametrize(
    ("keys", "shards", "ranks", "complaint"),
    [
        (np.zeros(3, np.int64), 2, None, "keys must be uint64"),
        (np.zeros((3, 1), np.uint64), 2, None, "keys must be uint64"),
        (np.zeros(3, np.uint64), 0, None, "shards must be 1 to"),
        (np.zeros(3, np.uint64), 5000, None, "shards must be 1 to"),
        (np.zeros(3, np.uint64), 2, np.zeros(3, np.int32), "rank_of_shard must be int32"),
        (np.zeros(3, np.uint64), 2, np.zeros(2, np.int64), "rank_of_shard must be int32"),
        (np.zeros(3, np.uint64), 2, np.array([2, 0], np.int32), "must be a permutation"),
        (np.zeros(3, np.uint64), 2, np.array([-1, 0], np.int32), "must be a permutation"),
    ],
)
def test_bad_partitions_are_refused(keys: Any, shards: int, ranks: Any, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        partition(keys, shards, ranks)
