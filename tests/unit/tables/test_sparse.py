"""Sparse shards: against a dictionary, under growth, repeats and hostile keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.errors import BadInput
from resilient_ps.hashing import mix64
from resilient_ps.tables import parameters
from resilient_ps.tables.initialisers import Constant, Normal
from resilient_ps.tables.optimisers import SGD, Adagrad, Adam, Sum
from resilient_ps.tables.sparse import SparseShard, row_stride
from resilient_ps.tables.spec import Dtype, SparseSpec

FIRST, LAST = 0, 2**64 - 1


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def sums(dim: int = 1, dtype: Dtype = "float32") -> SparseShard:
    return SparseShard(SparseSpec("t", dim, dtype, Sum()))


def test_an_unknown_key_gives_its_initial_value_and_creates_nothing() -> None:
    shard = SparseShard(SparseSpec("t", 2, "float32", Sum(), Constant(0.5)))
    assert shard.pull(keys_of(1, 2, 1)).tolist() == [[0.5, 0.5]] * 3
    assert len(shard) == 0
    assert shard.keys().size == 0


def test_a_push_creates_rows() -> None:
    shard = sums(dim=2)
    shard.push(keys_of(9, FIRST, LAST), np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    assert len(shard) == 3
    assert shard.keys().tolist() == [0, 9, LAST]
    assert shard.rows(keys_of(LAST, 9, 7)).tolist() == [[5, 6], [1, 2], [0, 0]]


def test_repeats_are_summed_before_one_step_is_taken() -> None:
    """Adagrad tells two steps from one step with the sum."""
    shard = SparseShard(SparseSpec("t", 1, "float64", Adagrad(lr=1.0)))
    shard.push(keys_of(5), np.array([[1.0]]))
    shard.push(keys_of(5, 6, 5), np.array([[3.0], [1.0], [4.0]]))
    stepped_once = -1.0 - 7.0 / np.sqrt(1.0 + 7.0**2)
    stepped_twice = -1.0 - 3.0 / np.sqrt(1.0 + 3.0**2) - 4.0 / np.sqrt(1.0 + 3.0**2 + 4.0**2)
    assert shard.pull(keys_of(5))[0, 0] == pytest.approx(stepped_once, rel=1e-9)
    assert abs(stepped_twice - stepped_once) > 0.1, "the control must differ"


def test_repeats_of_a_new_key_are_summed_too() -> None:
    shard = SparseShard(SparseSpec("t", 1, "float64", Adagrad(lr=1.0, initial_accumulator=1.0)))
    shard.push(keys_of(5, 5), np.array([[3.0], [4.0]]))
    assert shard.pull(keys_of(5))[0, 0] == pytest.approx(-7.0 / np.sqrt(50.0), rel=1e-9)


def test_repeats_count_as_one_step() -> None:
    shard = SparseShard(SparseSpec("t", 1, "float64", Adam()))
    for keys in (keys_of(5), keys_of(5, 5, 5)):
        shard.push(keys, np.ones((keys.size, 1)))
    steps = shard.export()[2][0, -1]
    assert steps == 2


@pytest.mark.parametrize("dim", [1, 16, 19])
def test_repeats_are_added_in_the_order_of_their_positions(dim: int) -> None:
    """Byte for byte the loop "per row, add in position order, then one step": as BSP applies a
    clock from the concatenated pushes of its ranks."""
    rng = np.random.default_rng(3)
    shard = SparseShard(SparseSpec("t", dim, "float32", Adagrad(lr=0.1)))
    weights: dict[int, np.ndarray] = {}
    squares: dict[int, np.ndarray] = {}
    for _ in range(3):
        ranks = [rng.integers(0, 500, 400).astype(np.uint64) for _ in range(4)]
        pushes = [rng.normal(size=(400, dim)).astype(np.float32) for _ in ranks]
        totals: dict[int, np.ndarray] = {}
        for keys, grads in zip(ranks, pushes, strict=True):
            for key, grad in zip(keys.tolist(), grads, strict=True):
                totals[key] = totals[key] + grad if key in totals else grad
        for key, total in totals.items():
            squares[key] = squares.get(key, np.zeros(dim, np.float32)) + total * total
            step = np.float32(0.1) * total / (np.sqrt(squares[key]) + np.float32(1e-10))
            weights[key] = weights.get(key, np.zeros(dim, np.float32)) - step
        shard.push(np.concatenate(ranks), np.concatenate(pushes))
    expected = np.stack([weights[key] for key in sorted(weights)])
    assert shard.export()[1].tobytes() == expected.tobytes()


def test_the_order_of_addition_can_be_seen() -> None:
    """Negative control of the test above: float32 sums depend on it."""
    grads = np.random.default_rng(3).normal(size=(400, 16)).astype(np.float32)
    forwards, backwards = sums(16), sums(16)
    forwards.push(np.zeros(400, np.uint64), grads)
    backwards.push(np.zeros(400, np.uint64), grads[::-1])
    assert forwards.digest() != backwards.digest()


def test_a_push_does_not_change_what_it_is_given() -> None:
    keys, grads = keys_of(1, 1, 2), np.ones((3, 4), np.float32)
    sums(dim=4).push(keys, grads)
    assert keys.tolist() == [1, 1, 2]
    assert np.all(grads == 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("dim", [1, 3, 8, 16, 17, 100])
def test_every_dtype_and_width_sums_exactly(dtype: Dtype, dim: int) -> None:
    rng = np.random.default_rng(dim)
    keys = rng.integers(0, 50, 200).astype(np.uint64)
    grads = rng.integers(-100, 100, (200, dim)).astype(dtype)
    shard = sums(dim, dtype)
    shard.push(keys, grads)
    expected = np.zeros((50, dim), dtype)
    np.add.at(expected, keys.astype(int), grads)
    np.testing.assert_array_equal(shard.pull(np.arange(50, dtype=np.uint64)), expected)


PUSHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 3, 1 << 32, 1 << 63, LAST]) | st.integers(0, LAST),
            st.integers(-9, 9),
        ),
        max_size=40,
    ),
    max_size=12,
)


@given(PUSHES)
@settings(max_examples=30)
def test_any_pushes_leave_what_a_dictionary_has(pushes: list[list[tuple[int, int]]]) -> None:
    shard = sums(dim=2, dtype="int64")
    model: dict[int, int] = {}
    for push in pushes:
        for key, value in push:
            model[key] = model.get(key, 0) + value
        grads = np.array([value for _, value in push], np.int64)
        shard.push(keys_of(*(key for key, _ in push)), np.repeat(grads, 2).reshape(-1, 2))
        asked = [*model, 4, 5]
        expected = [[model.get(key, 0)] * 2 for key in asked]
        assert shard.pull(keys_of(*asked)).tolist() == expected
    assert shard.keys().tolist() == sorted(model)
    assert len(shard) == len(model)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: i,
        lambda i: LAST - i,
        lambda i: i << 40,
        lambda i: i << 20 | 7,
        lambda i: mix64(i),
    ],
)
def test_growth_over_many_doublings_keeps_every_row(make: Any) -> None:
    keys = np.array([make(i) for i in range(120_000)], np.uint64)
    shard = sums(dtype="int64")
    for start in range(0, keys.size, 7_000):
        part = keys[start : start + 7_000]
        shard.push(part, np.arange(start, start + part.size).reshape(-1, 1))
    assert len(shard) == keys.size
    np.testing.assert_array_equal(shard.pull(keys)[:, 0], np.arange(keys.size))
    np.testing.assert_array_equal(shard.keys(), np.sort(keys))


def test_one_push_may_grow_the_shard_many_times_and_repeat_keys() -> None:
    keys = np.tile(np.arange(50_000, dtype=np.uint64), 2)
    shard = sums(dtype="int64")
    shard.push(keys, np.ones((keys.size, 1), np.int64))
    assert np.all(shard.pull(keys) == 2)


def colliding_keys(count: int) -> list[int]:
    """Keys whose search begins at the same entry of a new index."""
    return [key for key in range(400_000) if mix64(key) & 255 == 77][:count]


def test_keys_that_collide_stay_apart() -> None:
    keys = keys_of(*colliding_keys(120))
    shard = sums(dtype="int64")
    for number, key in enumerate(keys):
        shard.push(key.reshape(1), np.array([[number + 1]]))
    assert shard.pull(keys)[:, 0].tolist() == list(range(1, 121))
    absent = keys_of(*colliding_keys(200)[120:])
    assert not shard.pull(absent).any()


@pytest.mark.parametrize("optimiser", [Adagrad(0.1), Adam(), SGD(0.1)], ids=repr)
def test_the_digest_does_not_depend_on_the_order_of_creation(optimiser: Any) -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, LAST, 3_000, dtype=np.uint64)
    grads = rng.normal(size=(3_000, 5)).astype(np.float32)
    order = rng.permutation(3_000)
    spec = SparseSpec("t", 5, "float32", optimiser, Normal(0.1))
    one, other = SparseShard(spec), SparseShard(spec)
    one.push(keys, grads)
    for part in np.array_split(order, 40):
        other.push(keys[part], grads[part])
    assert one.digest() == other.digest()
    for exported, same in zip(one.export(), other.export(), strict=True):
        np.testing.assert_array_equal(exported, same)
    other.push(keys[:1], grads[:1])
    assert one.digest() != other.digest()


def test_the_digest_sees_state_as_well_as_values() -> None:
    one = SparseShard(SparseSpec("t", 1, "float32", Adagrad(0.1)))
    other = SparseShard(SparseSpec("t", 1, "float32", Adagrad(0.1, initial_accumulator=1.0)))
    for shard in (one, other):
        shard.push(keys_of(1), np.zeros((1, 1), np.float32))
    assert one.export()[1].tolist() == other.export()[1].tolist()
    assert one.digest() != other.digest()


def test_stamps_that_run_out_are_forgotten() -> None:
    """After some four billion pushed keys the stamps begin anew; old ones must not look like
    repeats of the push that follows."""
    shard = sums(dtype="int64")
    keys = np.arange(10, dtype=np.uint64)
    shard.push(keys, np.ones((10, 1), np.int64))
    shard._meta[parameters.BASE] = 2**32 - 15  # as if so many had been pushed
    for _ in range(3):
        shard.push(keys, np.ones((10, 1), np.int64))
    assert np.all(shard.pull(keys) == 4)
    assert shard._meta[parameters.BASE] == 21


def test_a_push_beyond_the_maximum_of_rows_changes_nothing() -> None:
    shard = SparseShard(SparseSpec("n/t", 2, "float32", Adagrad(0.1)), max_rows=1000)
    keys = np.arange(990, dtype=np.uint64)
    shard.push(keys, np.ones((990, 2), np.float32))
    before = shard.digest()
    too_many = np.arange(980, 3000, dtype=np.uint64)
    for _ in range(2):
        with pytest.raises(BadInput, match=r"sparse table n/t .* more than 1000 rows"):
            shard.push(too_many, np.ones((too_many.size, 2), np.float32))
    assert (len(shard), shard.digest()) == (990, before)
    shard.push(too_many[:20], np.ones((20, 2), np.float32))
    assert len(shard) == 1000
    twin = SparseShard(shard.spec)
    twin.push(keys, np.ones((990, 2), np.float32))
    twin.push(too_many[:20], np.ones((20, 2), np.float32))
    assert shard.digest() == twin.digest()


def test_a_pull_fills_the_array_that_it_is_given() -> None:
    shard = sums(dim=3)
    out = np.full((2, 3), 7, np.float32)
    assert shard.pull(keys_of(1, 2), out) is out
    assert not out.any()


def test_an_export_is_a_copy() -> None:
    shard = sums()
    shard.push(keys_of(1), np.ones((1, 1), np.float32))
    for array in shard.export():
        array[:] = 9
    shard.pull(keys_of(1))[:] = 9
    assert shard.pull(keys_of(1)).tolist() == [[1]]


def test_empty_requests_do_nothing() -> None:
    shard = sums(dim=3)
    empty = np.empty(0, np.uint64)
    shard.push(empty, np.empty((0, 3), np.float32))
    assert shard.pull(empty).shape == (0, 3)
    assert len(shard) == 0


def test_read_only_and_strided_arrays_are_accepted() -> None:
    shard = sums(dim=2)
    keys = np.frombuffer(keys_of(1, 9, 2).tobytes(), np.uint64)[::2]
    grads = np.frombuffer(np.ones((4, 2), np.float32).tobytes(), np.float32).reshape(4, 2)[::2]
    shard.push(keys, grads)
    assert shard.pull(keys).tolist() == [[1, 1], [1, 1]]


ONE, GRAD = np.array([1], np.uint64), np.ones((1, 3), np.float32)


@pytest.mark.parametrize(
    ("keys", "grads", "complaint"),
    [
        (ONE.astype(np.int64), GRAD, "keys must be uint64, not int64"),
        (ONE.reshape(1, 1), GRAD, "keys must have shape"),
        ([1], GRAD, "keys must be a numpy array"),
        (ONE, GRAD.astype(float), "gradients must be float32, not float64"),
        (ONE, GRAD[0], r"gradients must have shape \(1, 3\)"),
        (ONE, np.ones((2, 3), np.float32), r"gradients must have shape \(1, 3\)"),
        (ONE, np.ones((1, 4), np.float32), r"gradients must have shape \(1, 3\)"),
        (ONE, GRAD.astype(">f4"), "gradients must be float32"),
    ],
)
def test_bad_pushes_are_refused_with_the_table_named(keys: Any, grads: Any, complaint: str) -> None:
    shard = SparseShard(SparseSpec("n/t", 3))
    with pytest.raises(BadInput, match=f"sparse table n/t .*{complaint}"):
        shard.push(keys, grads)
    assert len(shard) == 0


def test_bad_pulls_are_refused() -> None:
    shard = sums(dim=3)
    read_only = np.zeros((1, 3), np.float32)
    read_only.flags.writeable = False
    for out in (np.zeros((1, 3)), np.zeros((2, 3), np.float32), read_only):
        with pytest.raises(BadInput, match="out must"):
            shard.pull(ONE, out)
    with pytest.raises(BadInput, match="keys must be uint64"):
        shard.pull(np.array([1.0]))
    with pytest.raises(BadInput, match="max_rows must be"):
        SparseShard(shard.spec, max_rows=0)


def test_bytes_held_grow_with_the_rows() -> None:
    shard = SparseShard(SparseSpec("t", 16, "float32", Adagrad(0.1)))
    empty = shard.bytes_held
    keys = np.arange(10_000, dtype=np.uint64)
    shard.push(keys, np.ones((10_000, 16), np.float32))
    assert shard.bytes_held - empty > 10_000 * (128 + 16)
    assert shard.bytes_held - empty < 10_000 * (128 + 16) * 3


@pytest.mark.parametrize(
    ("columns", "item_bytes", "stride"),
    [(32, 4, 32), (1, 4, 1), (20, 4, 20), (60, 4, 64), (49, 4, 49), (31, 8, 32), (16, 4, 16)],
)
def test_rows_are_whole_cache_lines_where_that_costs_little(
    columns: int, item_bytes: int, stride: int
) -> None:
    assert row_stride(columns, item_bytes) == stride


# -- rows that come from elsewhere

ALL = (Sum(), SGD(0.1), Adagrad(0.1), Adam(0.1))


@pytest.mark.parametrize("optimiser", ALL, ids=repr)
def test_captured_rows_are_loaded_with_their_state(optimiser: Sum | SGD | Adagrad | Adam) -> None:
    spec = SparseSpec("t", 3, "float32", optimiser, Normal(1.0))
    source, target = SparseShard(spec), SparseShard(spec)
    rng = np.random.default_rng(0)
    for _ in range(3):
        keys = rng.integers(0, 3000, 2000).astype(np.uint64)
        source.push(keys, rng.normal(size=(2000, 3)).astype(np.float32))
    for first in range(0, len(source), 100):
        target.load(*source.capture(first, min(first + 100, len(source))))
    assert target.digest() == source.digest()
    grads = rng.normal(size=(2000, 3)).astype(np.float32)
    for shard in (source, target):
        shard.push(keys, grads)
    assert target.digest() == source.digest()
    assert target.pull(keys).tobytes() == source.pull(keys).tobytes()


def test_rows_are_loaded_from_wherever_they_stand_in_a_buffer() -> None:
    spec = SparseSpec("t", 3, optimiser=Adagrad(0.1))
    source = SparseShard(spec)
    source.push(np.arange(50, dtype=np.uint64), np.ones((50, 3), np.float32))
    keys, rows = source.capture(0, 50)
    for shift in range(8):
        held = bytes(shift) + rows.tobytes()
        moved = np.frombuffer(held, np.uint8)[shift:].view(np.float32).reshape(rows.shape)
        target = SparseShard(spec)
        target.load(keys, moved)
        assert target.digest() == source.digest()


def test_a_loaded_row_takes_the_place_of_one_that_is_there() -> None:
    source, target = sums(dim=2), sums(dim=2)
    source.push(keys_of(1, 2, 3), np.ones((3, 2), np.float32))
    target.push(keys_of(3, 4), np.full((2, 2), 9, np.float32))
    target.load(*source.capture(0, 3))
    assert target.pull(keys_of(1, 2, 3, 4)).tolist() == [[1, 1], [1, 1], [1, 1], [9, 9]]
    assert target.keys().tolist() == [1, 2, 3, 4]


def adam_table(seed: int, keys: Any) -> SparseShard:
    shard = SparseShard(SparseSpec("t", 3, "float32", Adam(0.1), Normal(0.5)))
    shard.push(keys, np.random.default_rng(seed).standard_normal((keys.size, 3)).astype(np.float32))
    return shard


def test_a_table_in_the_memory_of_another_has_nothing_of_it() -> None:
    before = adam_table(1, np.arange(20_000, dtype=np.uint64))
    source = adam_table(2, np.arange(15_000, 33_000, dtype=np.uint64))
    fresh, reused = SparseShard(source.spec), SparseShard(source.spec)
    reused.take_over(before, len(source))
    assert reused._slab is before._slab
    assert reused._index.entries is before._index.entries
    for shard in (fresh, reused):
        shard.reserve(len(source))
        for first in range(0, len(source), 6000):
            shard.load(*source.capture(first, first + 6000))
    assert fresh.digest() == reused.digest() == source.digest()
    assert reused.row_numbers(np.arange(15_000, dtype=np.uint64)).tolist() == [-1] * 15_000
    more = np.arange(10_000, 60_000, dtype=np.uint64)
    for shard in (fresh, reused):
        shard.push(more, np.full((more.size, 3), 0.25, np.float32))
    assert fresh.digest() == reused.digest()


@pytest.mark.parametrize(("dim", "rows"), [(4, 18_000), (3, 1000), (3, 90_000)])
def test_memory_that_does_not_fit_is_left_alone(dim: int, rows: int) -> None:
    before = adam_table(1, np.arange(20_000, dtype=np.uint64))
    digest = before.digest()
    shard = SparseShard(SparseSpec("t", dim, "float32", Adam(0.1)))
    shard.take_over(before, rows)
    shard.reserve(rows)
    assert not np.shares_memory(shard._slab, before._slab)
    assert shard._index.entries is not before._index.entries
    assert before.digest() == digest


def test_rows_are_captured_in_the_order_of_their_creation() -> None:
    shard = sums()
    for key in (9, FIRST, LAST, 4):
        shard.push(keys_of(key, 9), np.ones((2, 1), np.float32))
    keys, rows = shard.capture(1, 3)
    assert keys.tolist() == [FIRST, LAST]
    assert rows.tolist() == [[1], [1]]


def test_a_capture_is_not_changed_by_later_pushes() -> None:
    shard = sums()
    shard.push(keys_of(1), np.ones((1, 1), np.float32))
    _, rows = shard.capture(0, 1)
    shard.push(keys_of(1), np.ones((1, 1), np.float32))
    assert rows.tolist() == [[1]]


@pytest.mark.parametrize(
    ("keys", "rows", "complaint"),
    [
        (keys_of(5, 5), np.ones((2, 1), np.float32), "twice"),
        (keys_of(1, 5, 1), np.ones((3, 1), np.float32), "twice"),
        (keys_of(5), np.ones((1, 2), np.float32), "rows must have shape"),
        (keys_of(5), np.ones((2, 1), np.float32), "rows must have shape"),
        (keys_of(5), np.ones((1, 1)), "rows must be float32"),
        (np.array([5]), np.ones((1, 1), np.float32), "keys must be uint64"),
        (np.arange(50, dtype=np.uint64), np.ones((50, 1), np.float32), "more than 40 rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(
    keys: np.ndarray, rows: np.ndarray, complaint: str
) -> None:
    shard = SparseShard(SparseSpec("t", 1, "float32", Sum()), max_rows=40)
    shard.push(keys_of(1, 2), np.ones((2, 1), np.float32))
    before = shard.digest()
    with pytest.raises(BadInput, match=complaint):
        shard.load(keys, rows)
    assert shard.digest() == before
    shard.push(keys_of(5, 1), np.ones((2, 1), np.float32))
    assert shard.pull(keys_of(1, 2, 5)).tolist() == [[2], [1], [1]]
    assert len(shard) == 3
