"""Optimisers: their steps against loops written from the papers, and their checks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import papers
import pytest

from resilient_ps.errors import BadInput
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.initialisers import Zeros
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Optimiser, Sum
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, Dtype, SparseSpec

OPTIMISERS: list[Optimiser] = [
    Sum(),
    SGD(lr=0.1),
    Momentum(lr=0.1),
    Momentum(lr=0.1, momentum=0.5, nesterov=True),
    Adagrad(lr=0.1),
    Adagrad(lr=0.5, epsilon=1e-6, initial_accumulator=0.1),
    Adam(),
    Adam(lr=0.01, beta1=0.8, beta2=0.99, epsilon=1e-6),
    FTRL(alpha=0.1),
    FTRL(alpha=0.5, beta=0.5, l1=0.8, l2=0.3),
]
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}
# 1 value, less than one vector, exactly one, one and a rest (of float32 and of float64).
DIMS = [1, 5, 16, 37]

each_optimiser = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=repr)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def gradients(dim: int, steps: int, dtype: str) -> np.ndarray:
    grads = np.random.default_rng(dim).normal(size=(steps, dim))
    grads[2] = 0  # a step with a gradient of zero is a step
    return grads.astype(dtype)


def expected(optimiser: Optimiser, grads: np.ndarray) -> list[float]:
    row = papers.row(optimiser, [0.0] * grads.shape[1])
    for gradient in grads:
        row.step(gradient.astype(float).tolist())
    return row.w


@each_dtype
@each_optimiser
@pytest.mark.parametrize("dim", DIMS)
def test_a_sparse_row_moves_as_in_the_paper(optimiser: Optimiser, dtype: Dtype, dim: int) -> None:
    grads = gradients(dim, 7, dtype)
    shard = SparseShard(SparseSpec("t", dim, dtype, optimiser))
    key = np.array([42], np.uint64)
    for gradient in grads:
        shard.push(key, gradient.reshape(1, dim))
    np.testing.assert_allclose(
        shard.pull(key)[0], expected(optimiser, grads), rtol=TOLERANCE[dtype], atol=1e-7
    )


@each_dtype
@each_optimiser
@pytest.mark.parametrize("size", DIMS)
def test_a_dense_block_moves_as_in_the_paper(optimiser: Optimiser, dtype: Dtype, size: int) -> None:
    grads = gradients(size, 7, dtype)
    spec = DenseSpec("t", (size,), dtype, optimiser)
    shard = DenseShard(spec, DenseLayout(spec, 1), 0)
    for gradient in grads:
        shard.push(shard.blocks, gradient)
    np.testing.assert_allclose(
        shard.pull(shard.blocks), expected(optimiser, grads), rtol=TOLERANCE[dtype], atol=1e-7
    )


def test_adam_counts_the_steps_of_each_row() -> None:
    """A row pushed for the first time takes the paper's first step, whatever others did."""
    shard = SparseShard(SparseSpec("t", 1, "float64", Adam(lr=0.1)))
    old, new = np.array([1], np.uint64), np.array([2], np.uint64)
    for _ in range(5):
        shard.push(old, np.array([[3.0]]))
    shard.push(new, np.array([[3.0]]))
    assert shard.pull(new)[0, 0] == pytest.approx(-0.1)


def test_adam_counts_the_steps_of_each_dense_block() -> None:
    spec = DenseSpec("t", (2, 40_000), "float64", Adam(lr=0.1))
    shard = DenseShard(spec, DenseLayout(spec, 1), 0)
    first, second = shard.blocks[:1], shard.blocks[1:]
    for _ in range(5):
        shard.push(first, np.full(40_000, 3.0))
    shard.push(second, np.full(40_000, 3.0))
    np.testing.assert_allclose(shard.pull(second), -0.1)


def test_ftrl_leaves_weights_at_exactly_zero_within_l1() -> None:
    shard = SparseShard(SparseSpec("t", 2, "float32", FTRL(alpha=0.1, l1=1.0)))
    key = np.array([1], np.uint64)
    shard.push(key, np.array([[0.9, 1.1]], np.float32))
    small, large = shard.pull(key)[0]
    assert small == 0
    assert not np.signbit(small)
    assert large < 0


@each_optimiser
def test_nan_gradients_are_not_hidden(optimiser: Optimiser) -> None:
    shard = SparseShard(SparseSpec("t", 3, "float32", optimiser))
    key = np.array([1], np.uint64)
    shard.push(key, np.array([[1.0, np.nan, 1.0]], np.float32))
    assert np.isnan(shard.pull(key)[0]).tolist() == [False, True, False]


NUMPY_STEPS: dict[str, Any] = {
    "sum": lambda w, s, g, o: (w + g, s),
    "sgd": lambda w, s, g, o: (w - np.float32(o.lr) * g, s),
    "momentum": lambda w, s, g, o: (
        w - np.float32(o.lr) * (np.float32(o.momentum) * s + g),
        np.float32(o.momentum) * s + g,
    ),
    "adagrad": lambda w, s, g, o: (
        w - np.float32(o.lr) * g / (np.sqrt(s + g * g) + np.float32(o.epsilon)),
        s + g * g,
    ),
}


@pytest.mark.parametrize("optimiser", [Sum(), SGD(0.3), Momentum(0.3), Adagrad(0.3)], ids=repr)
@pytest.mark.parametrize("dim", [1, 3, 16, 50])
def test_float32_steps_equal_plain_numpy_byte_for_byte(optimiser: Optimiser, dim: int) -> None:
    """Nothing is fused: a fused multiply-add would round once where numpy rounds twice."""
    rng = np.random.default_rng(5)
    keys = np.arange(300, dtype=np.uint64)
    shard = SparseShard(SparseSpec("t", dim, "float32", optimiser))
    spec = DenseSpec("t", (300, dim), "float32", optimiser)
    dense = DenseShard(spec, DenseLayout(spec, 1), 0)
    w = state = np.zeros((300, dim), np.float32)
    for _ in range(4):
        grads = rng.normal(size=(300, dim)).astype(np.float32)
        shard.push(keys, grads)
        dense.push(dense.blocks, grads.reshape(-1))
        w, state = NUMPY_STEPS[optimiser.name](w, state, grads, optimiser)
    assert shard.pull(keys).tobytes() == w.tobytes()
    assert dense.pull(dense.blocks).tobytes() == w.tobytes()


def test_a_fused_multiply_add_would_be_seen() -> None:
    """Negative control: rounding once gives other bytes on the data of the test above."""
    grads = np.random.default_rng(5).normal(size=5000).astype(np.float32)
    w = np.random.default_rng(6).normal(size=5000).astype(np.float32)
    rounded_once = (w - np.float64(np.float32(0.3)) * grads).astype(np.float32)
    assert rounded_once.tobytes() != (w - np.float32(0.3) * grads).tobytes()


@each_optimiser
def test_json_gives_the_optimiser_back(optimiser: Optimiser) -> None:
    assert Optimiser.from_json(optimiser.to_json()) == optimiser


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: SGD(lr=0), "lr must be"),
        (lambda: SGD(lr=-1), "lr must be"),
        (lambda: SGD(lr=math.nan), "lr must be"),
        (lambda: SGD(lr=math.inf), "lr must be"),
        (lambda: SGD(lr=10**400), "lr must be"),
        (lambda: SGD(lr="fast"), "lr must be a number"),  # type: ignore[arg-type]
        (lambda: SGD(lr=True), "lr must be a number"),
        (lambda: SGD(lr=1e-50), "lr must be"),
        (lambda: Momentum(lr=1, momentum=1), "momentum must be"),
        (lambda: Momentum(lr=1, nesterov=1), "nesterov must be"),  # type: ignore[arg-type]
        (lambda: Adagrad(lr=1, epsilon=0), "epsilon must be"),
        (lambda: Adagrad(lr=1, initial_accumulator=-1), "initial_accumulator must be"),
        (lambda: Adam(beta1=1), "beta1 must be"),
        (lambda: Adam(beta2=-0.1), "beta2 must be"),
        (lambda: FTRL(alpha=0), "alpha must be"),
        (lambda: FTRL(alpha=1, l1=-1), "l1 must be"),
        (lambda: FTRL(alpha=1, beta=0), "beta must be"),
    ],
)
def test_bad_hyperparameters_are_refused(make: Any, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        make()


@pytest.mark.parametrize(
    "data",
    [
        None,
        "sgd",
        {},
        {"name": 3},
        {"name": "adamw", "lr": 0.1},
        {"name": "sgd"},
        {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        {"name": "sgd", "lr": "0.1"},
    ],
)
def test_bad_json_is_refused(data: object) -> None:
    with pytest.raises(BadInput, match=r"optimiser|SGD"):
        Optimiser.from_json(data)


def test_a_new_learning_rate_counts_from_the_next_push() -> None:
    shard = SparseShard(SparseSpec("t", 1, "float32", SGD(lr=1.0)))
    key, grad = np.array([1], np.uint64), np.ones((1, 1), np.float32)
    shard.push(key, grad)
    shard.set_lr(0.25)
    shard.push(key, grad)
    assert shard.pull(key)[0, 0] == -1.25


@each_optimiser
def test_with_lr_changes_nothing_but_the_rate(optimiser: Optimiser) -> None:
    if isinstance(optimiser, Sum):
        with pytest.raises(BadInput, match="Sum has no learning rate"):
            optimiser.with_lr(0.5)
        return
    changed = optimiser.with_lr(0.5)
    differences = [k for k, v in changed.to_json().items() if optimiser.to_json()[k] != v]
    assert set(differences) <= {"lr", "alpha"}
    with pytest.raises(BadInput):
        optimiser.with_lr(math.nan)


@each_optimiser
def test_state_columns_are_what_a_row_exports(optimiser: Optimiser) -> None:
    shard = SparseShard(SparseSpec("t", 5, "float32", optimiser, Zeros()))
    shard.push(np.array([9], np.uint64), np.ones((1, 5), np.float32))
    assert shard.export()[2].shape == (1, optimiser.state_columns(5))
