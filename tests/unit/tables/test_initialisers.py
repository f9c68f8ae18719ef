"""Initial values: a function of table, key and column alone, and of the right distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilient_ps.errors import BadInput
from resilient_ps.hashing import mix64
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.initialisers import Constant, Initialiser, Normal, Uniform, Zeros
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, Dtype, SparseSpec

GOLDEN = 0x9E3779B97F4A7C15
INITIALISERS: list[Initialiser] = [
    Zeros(),
    Constant(0.3),
    Uniform(-0.2, 0.7),
    Normal(stddev=0.05),
]
NORMAL_GOLDEN = [[0.559478759765625, 1.270599365234375], [0.084625244140625, -0.41802978515625]]
UNIFORM_GOLDEN = [
    [0.9223729572029999, 0.13460690532433506],
    [0.7556879486618924, 0.333809845930679],
]
KEYS = np.array([0, 1, 2, 77, 2**63, 2**64 - 1], np.uint64)


def from_the_definition(initialiser: Initialiser, seed: int, key: int, dim: int) -> list[float]:
    """Written from the module's text, with Python's own integers."""
    state, values = mix64(key ^ seed), []

    def draw() -> int:
        nonlocal state
        state += GOLDEN
        return mix64(state)

    for _ in range(dim):
        if isinstance(initialiser, Uniform):
            width = initialiser.high - initialiser.low
            values.append(initialiser.low + width * ((draw() >> 11) / 2**53))
        elif isinstance(initialiser, Normal):
            numbers = [draw() for _ in range(3)]
            total = sum((x >> shift) & 0xFFFF for x in numbers for shift in (0, 16, 32, 48))
            values.append(initialiser.stddev * ((total - 12 * 32767.5) / 65536))
        else:
            values.append(getattr(initialiser, "value", 0.0))
    return values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("initialiser", INITIALISERS, ids=repr)
def test_values_are_those_of_the_definition(initialiser: Initialiser, dtype: Dtype) -> None:
    spec = SparseSpec("n/t", 5, dtype, Sum(), initialiser)
    expected = [from_the_definition(initialiser, spec.seed, int(key), 5) for key in KEYS]
    assert SparseShard(spec).pull(KEYS).tobytes() == np.array(expected).astype(dtype).tobytes()


def test_golden_values_hold_for_ever() -> None:
    """Restored tables must go on with the same rows for keys that were never pushed."""
    keys = np.array([1, 2**64 - 1], np.uint64)
    normal = SparseShard(SparseSpec("golden", 2, "float64", Sum(), Normal(1.0))).pull(keys)
    uniform = SparseShard(SparseSpec("golden", 2, "float64", Sum(), Uniform(0, 1))).pull(keys)
    assert normal.tolist() == NORMAL_GOLDEN
    assert uniform.tolist() == UNIFORM_GOLDEN


@pytest.mark.parametrize("initialiser", INITIALISERS, ids=repr)
def test_a_row_is_the_same_before_and_after_its_creation(initialiser: Initialiser) -> None:
    shard = SparseShard(SparseSpec("n/t", 19, "float32", Sum(), initialiser))
    before = shard.pull(KEYS)
    assert len(shard) == 0
    shard.push(KEYS, np.zeros((KEYS.size, 19), np.float32))
    assert len(shard) == KEYS.size
    assert shard.pull(KEYS).tobytes() == before.tobytes()


def test_tables_of_different_names_differ() -> None:
    one = SparseShard(SparseSpec("one", 4, initialiser=Normal(1.0))).pull(KEYS)
    other = SparseShard(SparseSpec("other", 4, initialiser=Normal(1.0))).pull(KEYS)
    assert not np.any(one == other)


def sample(initialiser: Initialiser) -> np.ndarray:
    keys = np.arange(50_000, dtype=np.uint64)
    return SparseShard(SparseSpec("t", 4, "float64", Sum(), initialiser)).pull(keys)


def test_uniform_values_fill_their_range_evenly() -> None:
    counts, _ = np.histogram(sample(Uniform(-1, 3)), bins=40, range=(-1, 3))
    assert counts.sum() == 200_000
    assert np.all(np.abs(counts - 5_000) < 6 * np.sqrt(5_000))


def test_normal_values_have_the_moments_of_a_normal() -> None:
    values = sample(Normal(stddev=2.0)) / 2.0
    moments = [float(np.mean(values**power)) for power in (1, 2, 3, 4)]
    # The sum of 12 uniforms has a kurtosis of 2.9 instead of 3.
    np.testing.assert_allclose(moments, [0, 1, 0, 2.9], atol=0.05)
    assert np.abs(values).max() < 6


def test_columns_and_neighbouring_keys_are_uncorrelated() -> None:
    values = sample(Normal(stddev=1.0))
    correlations = np.corrcoef(np.hstack([values[:-1], values[1:]]).T)
    assert np.abs(correlations - np.eye(8)).max() < 0.03


@pytest.mark.parametrize("shards", [1, 3])
def test_dense_rows_are_those_of_keys_that_count_from_zero(shards: int) -> None:
    """However many shards the table is split over."""
    dense = DenseSpec("t", (300, 700), "float32", Sum(), Normal(1.0))
    layout = DenseLayout(dense, shards)
    flat = np.empty(dense.elements, np.float32)
    for number in range(shards):
        shard = DenseShard(dense, layout, number)
        flat[layout.shard_slice(number)] = shard.pull(shard.blocks)
    rows = SparseShard(SparseSpec("t", 700, "float32", Sum(), Normal(1.0)))
    assert flat.tobytes() == rows.pull(np.arange(300, dtype=np.uint64)).tobytes()


@pytest.mark.parametrize("initialiser", INITIALISERS, ids=repr)
def test_json_gives_the_initialiser_back(initialiser: Initialiser) -> None:
    assert Initialiser.from_json(initialiser.to_json()) == initialiser


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Constant(float("nan")), "value must be"),
        (lambda: Uniform(1, 1), "low must be below high"),
        (lambda: Uniform(0, float("inf")), "high must be"),
        (lambda: Normal(0), "stddev must be above 0"),
        (lambda: Normal("1"), "stddev must be a number"),  # type: ignore[arg-type]
    ],
)
def test_bad_parameters_are_refused(make: Any, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        make()
