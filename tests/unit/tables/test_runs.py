"""Runs of blocks: the same steps as block by block, however many cores take part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from resilient_ps.engine import native
from resilient_ps.tables import runs
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.optimisers import SGD, Adagrad, Adam, Optimiser, Sum
from resilient_ps.tables.spec import DenseSpec

ROWS, WIDTH = 70_001, 16  # 18 blocks of 256 KiB, the last one short: several tasks


def shards(dtype: str, optimiser: Optimiser) -> tuple[DenseShard, DenseShard, NDArray[Any]]:
    spec = DenseSpec("d", (ROWS, WIDTH), dtype, optimiser)
    layout = DenseLayout(spec, 1)
    grads = (np.arange(spec.elements) % 13 - 6).astype(dtype)
    return DenseShard(spec, layout, 0), DenseShard(spec, layout, 0), grads


@pytest.mark.parametrize(
    ("dtype", "optimiser"),
    [
        ("float32", SGD(0.5)),
        ("float32", Adam(0.01)),
        ("float64", Adagrad(0.1)),
        ("float64", Adam(0.01)),
        ("int64", Sum()),
    ],
)
def test_a_run_is_stepped_as_its_blocks_one_by_one_are(dtype: str, optimiser: Optimiser) -> None:
    whole, single, grads = shards(dtype, optimiser)
    for _ in range(3):
        whole.push(whole.blocks, grads)
        for block in whole.blocks:
            part = whole.layout.element_slice(int(block))
            single.push(np.array([block], np.uint64), grads[part])
    assert whole.digest() == single.digest()


def test_blocks_out_of_order_are_stepped_alike() -> None:
    straight, mixed, grads = shards("float32", Adam(0.01))
    order = np.random.default_rng(1).permutation(straight.blocks)
    parts = [grads[straight.layout.element_slice(int(block))] for block in order]
    straight.push(straight.blocks, grads)
    mixed.push(order, np.concatenate(parts))
    assert straight.digest() == mixed.digest()


@pytest.mark.parametrize("run_of", [runs.run_of, runs._run_of])
@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([3], (3, 4)),
        ([3, 4, 5], (3, 6)),
        ([], None),
        ([3, 5], None),
        ([3, 3], None),
        ([4, 3], None),
        ([2**64 - 1], None),
        ([2**64 - 1, 0], None),
    ],
)
def test_runs_are_recognised(run_of: Any, blocks: list[int], expected: Any) -> None:
    assert run_of(np.array(blocks, np.uint64)) == expected


@pytest.mark.parametrize("run_of", [runs.run_of, runs._run_of])
@pytest.mark.parametrize("blocks", [np.array([1, 2]), np.array([[1, 2]], np.uint64)])
def test_other_arrays_are_no_runs(run_of: Any, blocks: Any) -> None:
    assert run_of(blocks) is None


def test_both_ways_to_push_a_run_do_the_same() -> None:
    fast, slow, grads = shards("float32", Adam(0.01))
    per_block = fast.layout.elements_per_block
    part = grads[per_block : 7 * per_block]
    for shard, push_run in ((fast, runs.push_run), (slow, runs._push_run)):
        known = shard._parameters
        numbers = known.meta, known.hyper, known.work
        push_run(shard._values, shard._state, part, 1, per_block, *numbers)
    assert fast.digest() == slow.digest()


@pytest.mark.skipif(native is None, reason="there is no native module here")
@pytest.mark.parametrize("optimiser", [SGD(0.5), Adam(0.01)])
def test_runs_of_several_tables_are_pushed_at_once(optimiser: Optimiser) -> None:
    spec = DenseSpec("d", (ROWS, WIDTH), "float32", optimiser)
    layout = DenseLayout(spec, 5)
    together, single = [[DenseShard(spec, layout, i) for i in range(5)] for _ in range(2)]
    for step in range(3):
        blocks = [shard.blocks[step:] for shard in together]
        sizes = [shard.elements_of(b) for shard, b in zip(together, blocks, strict=True)]
        grads = (np.arange(sum(sizes)) % 13 - 6).astype(np.float32)
        given = [shard.run_to_push(b) for shard, b in zip(together, blocks, strict=True)]
        assert native.push_runs(grads, sizes, given)
        starts = np.cumsum([0, *sizes])
        for shard, b, start, size in zip(single, blocks, starts, sizes, strict=False):
            shard.push(b, grads[start : start + size])
    assert [shard.digest() for shard in together] == [shard.digest() for shard in single]


@pytest.mark.skipif(native is None, reason="there is no native module here")
@pytest.mark.parametrize("wrong", ["fewer", "more", "type", "beyond", "counts"])
def test_runs_that_do_not_fit_change_nothing(wrong: str) -> None:
    first, second, grads = shards("float32", Adam(0.01))
    before = first.digest()
    given = [first.run_to_push(first.blocks), second.run_to_push(second.blocks)]
    assert given[0] is not None
    sizes, both = [grads.size, grads.size], np.concatenate([grads, grads])
    if wrong == "fewer":
        both = both[:-1]
    elif wrong == "more":
        both = np.concatenate([both, grads[:1]])
    elif wrong == "type":
        both = both.astype(np.float64)
    elif wrong == "beyond":
        given[1] = (*given[0][:2], 1, *given[0][3:])
    else:
        sizes = [grads.size - 1, grads.size + 1]
    assert native.push_runs(both, sizes, given) is None
    assert first.digest() == second.digest() == before
