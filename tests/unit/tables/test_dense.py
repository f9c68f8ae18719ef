"""Dense tables: the layout covers the array exactly once; shards move whole blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.errors import BadInput
from resilient_ps.tables.dense import BLOCK_BYTES, MAX_BLOCKS, DenseLayout, DenseShard
from resilient_ps.tables.optimisers import SGD, Adagrad, Adam, Sum
from resilient_ps.tables.spec import DenseSpec

SHAPES = st.lists(st.integers(1, 3000), max_size=2).map(tuple)


@given(SHAPES, st.integers(1, 40), st.sampled_from(["float32", "float64", "int64"]))
def test_every_element_is_in_one_block_of_one_shard(
    shape: tuple[int, ...], shards: int, dtype: str
) -> None:
    spec = DenseSpec("some/table", shape, dtype)  # type: ignore[arg-type]
    layout = DenseLayout(spec, shards)
    slices = [layout.element_slice(block) for block in range(layout.blocks)]
    assert slices[0].start == 0
    assert slices[-1].stop == spec.elements
    assert all(a.stop == b.start for a, b in itertools.pairwise(slices))
    assert [s.stop - s.start for s in slices] == [
        layout.block_elements(block) for block in range(layout.blocks)
    ]
    owned = [int(block) for shard in range(shards) for block in layout.blocks_of(shard)]
    assert sorted(owned) == list(range(layout.blocks))


@given(SHAPES, st.integers(1, 40))
def test_shards_hold_equally_many_consecutive_blocks(shape: tuple[int, ...], shards: int) -> None:
    layout = DenseLayout(DenseSpec("some/table", shape), shards)
    counts = [layout.blocks_of(shard).size for shard in range(shards)]
    assert max(counts) - min(counts) <= 1
    for shard in range(shards):
        blocks = layout.blocks_of(shard)
        assert blocks.dtype == np.uint64
        assert all(layout.shard_of_block(int(block)) == shard for block in blocks)
        if blocks.size:
            whole = layout.shard_slice(shard)
            assert whole.start == layout.element_slice(int(blocks[0])).start
            assert whole.stop == layout.element_slice(int(blocks[-1])).stop
            assert np.all(np.diff(blocks.astype(np.int64)) == 1)


@pytest.mark.parametrize(
    ("shape", "blocks", "elements"),
    [
        ((), 1, 1),
        ((10,), 1, 10),
        ((1 << 22,), 64, 1 << 16),  # 16 MiB in blocks of 256 KiB
        ((1 << 30,), 512, 1 << 21),  # more bytes: larger blocks, not more
        ((1000, 100_000), 500, 200_000),  # 391 KiB a row: two rows a block, for at most 512
        ((3, 1 << 20), 3, 1 << 20),  # a row is never split
    ],
)
def test_blocks_are_rows_of_about_256_kib(
    shape: tuple[int, ...], blocks: int, elements: int
) -> None:
    layout = DenseLayout(DenseSpec("t", shape), 4)
    assert (layout.blocks, layout.elements_per_block) == (blocks, elements)
    assert blocks <= MAX_BLOCKS
    assert BLOCK_BYTES == 256 * 1024


def test_small_tables_begin_on_different_shards() -> None:
    shards = {DenseLayout(DenseSpec(f"bias/{i}", (1,)), 8).shard_of_block(0) for i in range(100)}
    assert shards == set(range(8))


def test_unknown_shards_and_blocks_are_refused() -> None:
    layout = DenseLayout(DenseSpec("t", (10,)), 2)
    for call in (
        lambda: layout.blocks_of(2),
        lambda: layout.element_slice(1),
        lambda: layout.shard_of_block(-1),
        lambda: DenseLayout(layout.spec, 0),
        lambda: DenseLayout(layout.spec, 1025),
    ):
        with pytest.raises(BadInput):
            call()


SPEC = DenseSpec("t", (5 * 65_536 + 100,), "float32", Adagrad(lr=0.1))  # six blocks, one short


def shard_of(spec: DenseSpec) -> DenseShard:
    return DenseShard(spec, DenseLayout(spec, 1), 0)


def test_a_pull_gives_the_blocks_in_the_order_asked_for() -> None:
    shard = shard_of(DenseSpec("t", SPEC.shape, "float32", Sum()))
    everything = np.arange(SPEC.elements, dtype=np.float32)
    shard.push(shard.blocks, everything)
    np.testing.assert_array_equal(shard.pull(shard.blocks), everything)
    wanted = np.array([5, 0, 3], np.uint64)
    parts = [everything[shard.layout.element_slice(int(block))] for block in wanted]
    np.testing.assert_array_equal(shard.pull(wanted), np.concatenate(parts))
    assert shard.pull(np.empty(0, np.uint64)).size == 0


def test_what_was_pulled_is_not_changed_by_a_later_push() -> None:
    shard = shard_of(DenseSpec("t", SPEC.shape, "float32", Sum()))
    held = [shard.pull(shard.blocks), shard.pull(shard.blocks[1:3])[5:].data]
    before = [np.array(each) for each in held]
    ones = np.ones(SPEC.elements, np.float32)
    shard.push(shard.blocks, ones)
    shard.push(shard.blocks, ones)
    for each, as_it_was in zip(held, before, strict=True):
        np.testing.assert_array_equal(each, as_it_was)
    np.testing.assert_array_equal(shard.pull(shard.blocks), 2 * ones)


def test_what_was_pulled_cannot_be_written() -> None:
    shard = shard_of(DenseSpec("t", SPEC.shape, "float32", Sum()))
    with pytest.raises(ValueError, match="read-only"):
        shard.pull(shard.blocks)[:] = 7


def test_a_push_copies_the_values_only_while_somebody_holds_them() -> None:
    shard = shard_of(DenseSpec("t", SPEC.shape, "float32", Sum()))
    ones = np.ones(SPEC.elements, np.float32)
    lent = shard.pull(shard.blocks)
    address = lent.ctypes.data
    shard.push(shard.blocks, ones)
    moved = shard.pull(shard.blocks).ctypes.data
    assert moved != address
    del lent
    shard.push(shard.blocks, ones)
    assert shard.pull(shard.blocks).ctypes.data == moved


@pytest.mark.parametrize("optimiser", [SGD(0.1), Adagrad(0.1), Adam()], ids=repr)
def test_blocks_pushed_one_by_one_or_together_give_the_same_bytes(
    optimiser: SGD | Adagrad | Adam,
) -> None:
    spec = DenseSpec("t", SPEC.shape, "float32", optimiser)
    grads = np.random.default_rng(0).normal(size=spec.elements).astype(np.float32)
    together, alone = shard_of(spec), shard_of(spec)
    for _ in range(3):
        together.push(together.blocks, grads)
        for block in (3, 0, 5, 1, 2, 4):
            part = grads[alone.layout.element_slice(block)]
            alone.push(np.array([block], np.uint64), part)
    assert together.digest() == alone.digest()


def test_a_partial_push_moves_only_its_blocks() -> None:
    shard = shard_of(SPEC)
    before = shard.pull(shard.blocks)
    shard.push(np.array([2], np.uint64), np.ones(65_536, np.float32))
    changed = np.flatnonzero(shard.pull(shard.blocks) != before)
    assert (changed[0], changed[-1], changed.size) == (2 * 65_536, 3 * 65_536 - 1, 65_536)


def test_gradients_are_not_changed() -> None:
    shard = shard_of(SPEC)
    grads = np.ones(SPEC.elements, np.float32)
    shard.push(shard.blocks, grads)
    np.testing.assert_array_equal(grads, np.ones(SPEC.elements))


def test_read_only_gradients_are_accepted() -> None:
    shard = shard_of(DenseSpec("t", (3,), "float32", Sum()))
    shard.push(shard.blocks, np.frombuffer(np.ones(3, np.float32).tobytes(), np.float32))
    np.testing.assert_array_equal(shard.pull(shard.blocks), np.ones(3))


def test_several_pushes_add_up_in_their_order() -> None:
    shard = shard_of(SPEC)
    rng = np.random.default_rng(1)
    blocks = [np.array(b, np.uint64) for b in ([0, 5], [5, 2], [5])]
    grads = [rng.normal(size=shard.elements_of(b)).astype(np.float32) for b in blocks]
    numbers, total = shard.add_up(blocks, grads)
    assert numbers.tolist() == [0, 2, 5]
    last = (grads[0][65_536:] + grads[1][:100]) + grads[2]
    assert total[-100:].tobytes() == last.tobytes()
    same_numbers, same = shard.add_up([blocks[0]] * 3, [grads[0]] * 3)
    assert same_numbers.tolist() == [0, 5]
    assert same.tobytes() == ((grads[0] + grads[0]) + grads[0]).tobytes()


def test_a_shard_of_a_small_table_may_be_empty() -> None:
    spec = DenseSpec("t", (3,))
    layout = DenseLayout(spec, 4)
    empty = next(s for s in range(4) if not layout.blocks_of(s).size)
    shard = DenseShard(spec, layout, empty)
    assert len(shard) == 0
    assert shard.pull(shard.blocks).size == 0
    shard.push(shard.blocks, np.empty(0, np.float32))
    with pytest.raises(BadInput, match="has no blocks"):
        shard.pull(np.array([0], np.uint64))


@pytest.mark.parametrize(
    ("blocks", "values", "complaint"),
    [
        (np.array([6], np.uint64), np.ones(1, np.float32), "has blocks 0 to 5"),
        (np.array([2**64 - 1], np.uint64), np.ones(1, np.float32), "has blocks 0 to 5"),
        (np.array([0], np.int64), np.ones(65_536, np.float32), "blocks must be uint64"),
        (np.array([[0]], np.uint64), np.ones(65_536, np.float32), "blocks must have shape"),
        (np.array([0], np.uint64), np.ones(65_536), "gradients must be float32"),
        (np.array([0], np.uint64), np.ones(65_535, np.float32), "gradients must have shape"),
        (np.array([0], np.uint64), np.ones((1, 65_536), np.float32), "gradients must have shape"),
        (np.array([0, 0], np.uint64), np.ones(131_072, np.float32), "twice"),
    ],
)
def test_bad_pushes_are_refused_and_change_nothing(
    blocks: np.ndarray, values: np.ndarray, complaint: str
) -> None:
    shard = shard_of(SPEC)
    before = shard.digest()
    with pytest.raises(BadInput, match=complaint):
        shard.push(blocks, values)
    assert shard.digest() == before


def test_int64_tables_sum_exactly() -> None:
    shard = shard_of(DenseSpec("t", (20,), "int64", Sum()))
    large = np.full(20, 2**62 - 1)
    shard.push(shard.blocks, large)
    shard.push(shard.blocks, large)
    assert shard.pull(shard.blocks).tolist() == [2**63 - 2] * 20
    with pytest.raises(BadInput, match="Sum has no learning rate"):
        shard.set_lr(0.1)


def test_bytes_held_counts_values_and_state() -> None:
    assert shard_of(SPEC).bytes_held == pytest.approx(2 * 4 * SPEC.elements, rel=0.01)


# -- elements that come from elsewhere


@pytest.mark.parametrize("optimiser", [Sum(), SGD(0.1), Adagrad(0.1), Adam(0.1)], ids=repr)
@pytest.mark.parametrize("step", [1_000_003, 100_000, 65_536])
def test_captured_elements_are_loaded_with_their_state(
    optimiser: Sum | SGD | Adagrad | Adam, step: int
) -> None:
    spec = DenseSpec("t", SPEC.shape, "float32", optimiser)
    source, target = shard_of(spec), shard_of(spec)
    rng = np.random.default_rng(0)
    for blocks in ([0, 1, 2, 3, 4, 5], [5, 1], [1]):
        numbers = np.array(blocks, np.uint64)
        grads = rng.normal(size=source.elements_of(numbers)).astype(np.float32)
        source.push(numbers, grads)
    target.push(target.blocks, np.ones(len(target), np.float32))
    for start in range(0, len(source), step):
        stop = min(start + step, len(source))
        target.load(start, stop, source.capture(start, stop))
    assert target.digest() == source.digest()


def test_loading_leaves_alone_what_was_pulled() -> None:
    shard = shard_of(SPEC)
    pulled = shard.pull(shard.blocks)
    before = pulled.copy()
    shard.load(0, 10, np.full(shard.capture(0, 10).size, 7, np.float32))
    np.testing.assert_array_equal(pulled, before)
    assert shard.pull(shard.blocks)[:11].tolist()[:10] == [7] * 10


@pytest.mark.parametrize(
    ("start", "stop", "size", "complaint"),
    [
        (-1, 5, 12, "has 327780 elements"),
        (0, 327_781, 12, "has 327780 elements"),
        (5, 4, 0, "has 327780 elements"),
        (0, 5, 11, "content must have shape"),
        (0, 5, 4, "content must have shape"),
    ],
)
def test_elements_that_do_not_fit_are_refused_and_change_nothing(
    start: int, stop: int, size: int, complaint: str
) -> None:
    shard = shard_of(SPEC)
    before = shard.digest()
    with pytest.raises(BadInput, match=complaint):
        shard.load(start, stop, np.ones(size, np.float32))
    with pytest.raises(BadInput, match="content must be float32"):
        shard.load(0, 5, np.ones(5))
    assert shard.digest() == before
