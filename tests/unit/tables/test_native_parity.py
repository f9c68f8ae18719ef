"""The native kernels against numba's: the same bytes, in tables, state and answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilient_ps.engine import native
from resilient_ps.tables import grouping, kernels, parameters, partition, passes, sparse
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.initialisers import Constant, Initialiser, Normal, Uniform, Zeros
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Optimiser, Sum
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, Dtype, SparseSpec

if native is None:
    pytest.skip("there is no native module here", allow_module_level=True)

FLOATS: list[Dtype] = ["float32", "float64"]
OPTIMISERS = [
    Sum(),
    SGD(0.1),
    Momentum(0.1, 0.9),
    Momentum(0.1, 0.9, nesterov=True),
    Adagrad(0.1, initial_accumulator=0.1),
    Adam(0.01),
    FTRL(alpha=0.3, l1=0.2, l2=0.1),
]
CASES = [(o, d) for d in FLOATS for o in OPTIMISERS] + [(Sum(), "int64")]
NAMES = (
    "push_rows",
    "load_rows",
    "pull_rows",
    "rehash",
    "forget_stamps",
    "row_numbers",
    "claim_rows",
    "survey_rows",
    "push_blocks",
    "fill_rows",
)
DIMS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100]


@pytest.fixture(params=["baseline", "best"])
def instructions(request: pytest.FixtureRequest) -> Any:
    yield native.use_instructions(request.param)
    native.use_instructions("best")


class Both:
    """Runs something on each engine and gives both results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, function: Any, *arguments: Any) -> tuple[Any, Any]:
        assert all(getattr(passes, name) is getattr(native, name) for name in NAMES)
        native_result = function(*arguments)
        with self._patch.context() as patch:
            for name in NAMES:
                patch.setattr(passes, name, getattr(kernels, name))
            patch.setattr(passes, "LOADS_BYTES", False)
            return native_result, function(*arguments)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(monkeypatch)


def assert_same_bytes(one: Any, other: Any) -> None:
    """All arrays equal byte for byte, but for which NaN it is: processors differ there."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind == "f":
            assert np.array_equal(np.isnan(a), np.isnan(b))
            a, b = np.nan_to_num(a, nan=0.0), np.nan_to_num(b, nan=0.0)
        assert a.tobytes() == b.tobytes()


def gradients(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype == "int64":
        return rng.integers(-(2**62), 2**62, shape) * 4  # overflows, too
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 8, shape)
    flat = values.reshape(-1)
    for special in (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38):
        flat[rng.integers(0, flat.size, max(1, flat.size // 200))] = special
    return values.astype(dtype)


def sparse_run(spec: SparseSpec, seed: int) -> list[Any]:
    """Pushes with growth and repeats, pulls of known and unknown keys; all memory at the end."""
    rng = np.random.default_rng(seed)
    shard = SparseShard(spec)
    pulled = []
    for count in (1, 3, 40, 700, 2000):
        keys = rng.integers(0, 1500, count).astype(np.uint64) * np.uint64(2**61 + 1)
        shard.push(keys, gradients(rng, (count, spec.dim), spec.dtype))
        pulled.append(shard.pull(rng.integers(0, 3000, count).astype(np.uint64)))
        pulled.append(shard.pull(keys[::-1]))
    copied = SparseShard(spec)
    for first in range(0, len(shard), 500):
        copied.load(*shard.capture(first, min(first + 500, len(shard))))
    pulled += copied.export()
    numbers = shard.row_numbers(rng.integers(0, 3000, 999).astype(np.uint64))
    states = np.zeros(len(shard), np.uint8)
    pulled += [numbers, shard.claim(keys, states, 3, len(shard)), states]
    mark, touched = shard.mark(), np.zeros((3, len(shard) - 5), np.bool_)
    assert not shard.survey(mark, shard._index.entries.size // 2, 1 << 40, touched[0])
    shard.push(keys[::7], gradients(rng, (keys[::7].size, spec.dim), spec.dtype))
    for flags, first, last in zip(touched, (0, 0, 100), (1 << 40, 300, 2000), strict=True):
        assert shard.survey(mark, first, last, flags)
    pulled.append(touched)
    used = shard._slab[: len(shard) * shard._stride]
    return [
        *pulled,
        used,
        shard._row_keys[: len(shard)],
        shard._index.entries,
        shard._meta[: parameters.SLOTS],
        *shard.export(),
    ]


@pytest.mark.parametrize(("optimiser", "dtype"), CASES)
def test_sparse_tables_are_the_same(
    optimiser: Optimiser, dtype: Dtype, both: Both, instructions: str
) -> None:
    for dim in DIMS if dtype != "float64" else DIMS[::3]:
        spec = SparseSpec("t", dim, dtype, optimiser)
        with np.errstate(all="ignore"):
            assert_same_bytes(*both(sparse_run, spec, dim))


@pytest.mark.parametrize("initialiser", [Zeros(), Constant(-3), Uniform(-1.5, 2.5), Normal(0.3)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_initial_values_are_the_same(
    initialiser: Initialiser, dtype: Dtype, both: Both, instructions: str
) -> None:
    for dim in (1, 5, 16):
        spec = SparseSpec("a/table", dim, dtype, Adagrad(0.1), initialiser)
        assert_same_bytes(*both(sparse_run, spec, 1))
        dense = DenseSpec("a/table", (1000, dim), dtype, SGD(0.1), initialiser)
        assert_same_bytes(*both(lambda spec=dense: [whole(DenseLayout(spec, 2), 1)._values]))


def whole(layout: DenseLayout, shard: int) -> DenseShard:
    return DenseShard(layout.spec, layout, shard)


def dense_run(spec: DenseSpec) -> list[Any]:
    rng = np.random.default_rng(1)
    shard = whole(DenseLayout(spec, 3), 1)
    for count in (1, 2, len(shard.blocks)):
        blocks = rng.permutation(shard.blocks)[:count]
        shard.push(blocks, gradients(rng, (shard.elements_of(blocks),), spec.dtype))
    return [shard._values, shard._state]


@pytest.mark.parametrize(("optimiser", "dtype"), CASES)
def test_dense_tables_are_the_same(
    optimiser: Optimiser, dtype: Dtype, both: Both, instructions: str
) -> None:
    with np.errstate(all="ignore"):
        for shape in ((300_001,), (1000, 333)):
            assert_same_bytes(*both(dense_run, DenseSpec("t", shape, dtype, optimiser)))


def test_a_push_that_is_too_large_is_undone_alike(both: Both) -> None:
    def run() -> list[Any]:
        shard = SparseShard(SparseSpec("t", 3, "float32", Adagrad(0.1)), max_rows=500)
        shard.push(np.arange(400, dtype=np.uint64), np.ones((400, 3), np.float32))
        with pytest.raises(ValueError, match="more than 500 rows"):
            shard.push(np.arange(300, 700, dtype=np.uint64), np.ones((400, 3), np.float32))
        shard.push(np.arange(350, 450, dtype=np.uint64), np.ones((100, 3), np.float32))
        return [*shard.export()]

    assert_same_bytes(*both(run))


def test_a_key_that_is_loaded_twice_is_refused_alike(both: Both) -> None:
    def run() -> list[Any]:
        shard = SparseShard(SparseSpec("t", 3, "float64", Adagrad(0.1)))
        for keys in ([1, 2, 3], [4, 5, 4], [2, 9, 7]):
            rows = np.arange(18.0).reshape(3, 6)
            if keys[0] == 4:
                with pytest.raises(ValueError, match="loaded twice"):
                    shard.load(np.array(keys, np.uint64), rows)
            else:
                shard.load(np.array(keys, np.uint64), rows)
        return [*shard.export()]

    assert_same_bytes(*both(run))


def test_stamps_are_forgotten_alike(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_MAX_STAMP", 1000)

    def run() -> list[Any]:
        return sparse_run(SparseSpec("t", 2, "float32", SGD(0.1)), 5)

    assert_same_bytes(*both(run))


@pytest.mark.parametrize("shards", [1, 3, 4, 1024])
def test_keys_are_grouped_alike(
    shards: int, monkeypatch: pytest.MonkeyPatch, instructions: str
) -> None:
    rng = np.random.default_rng(shards)
    ranks = rng.permutation(shards).astype(np.int32)
    for n, width in ((0, 1), (1, 16), (100, 3), (9000, 16), (9000, 20)):
        keys = rng.integers(0, 2**64, n, np.uint64)
        rows = rng.standard_normal((n, width)).astype(np.float32)
        pushed = partition.group_push(keys, rows, shards, ranks)
        pulled = partition.group_pull(keys, shards, ranks)
        back = partition.gather_rows(pushed[1], pulled[1], np.empty_like(rows))
        assert_same_bytes([back], [rows])
        with monkeypatch.context() as patch:
            patch.setattr(partition, "native", None)
            for name in ("group_keys", "gather_words", "scatter_words"):
                patch.setattr(partition, name, getattr(grouping, name), raising=False)
            for one, other in (
                (pushed, partition.group_push(keys, rows, shards, ranks)),
                (pulled, partition.group_pull(keys, shards, ranks)),
            ):
                assert_same_bytes(one[:2], other[:2])
                assert list(one[2]) == list(other[2])


def test_rows_are_moved_alike(instructions: str) -> None:
    rng = np.random.default_rng(0)
    for width in (1, 2, 3, 15, 16, 17, 40):
        rows = rng.standard_normal((500, width)).astype(np.float32)
        order = rng.integers(0, 500, 700).astype(np.uint32)
        out = np.empty((700, width), np.float32)
        assert native.gather(rows, order, out)
        assert_same_bytes([out], [rows[order]])
        places = rng.permutation(500).astype(np.uint32)
        assert native.scatter(rows, places, out)
        assert_same_bytes([out[places]], [rows])
        order[600] = 500
        assert not native.gather(rows, order, out)


def test_the_tests_of_tables_and_frames_pass_on_the_other_engine() -> None:
    # These two look at numba in processes of their own, whichever engine is ours.
    elsewhere = "not makes_all_cached_kernels_stale and not nothing_can_be_written"
    files = ["test_sparse.py", "test_dense.py", "test_partition.py", "test_warm_up.py"]
    here = Path(__file__).parent
    paths = [*(str(here / name) for name in files), str(here.parent / "test_wire.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-k", elsewhere, *paths],
        env={**os.environ, "RESILIENT_PS_KERNELS": "numba"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_a_survey_that_does_not_fit_is_refused() -> None:
    entries, touched = np.zeros(512, np.uint64), np.zeros(9, np.bool_)
    native.survey_rows(entries, 3, 256, 1, touched)
    for wrong in (
        (entries, 3, 257, 1, touched),
        (entries, 4, 3, 1, touched),
        (entries, -1, 3, 1, touched),
        (entries, 3, 256, 0, touched),
        (entries, 3, 256, 1, touched.view(np.uint8)),
        (entries[::2], 3, 9, 1, touched),
        (entries.view(np.int64), 3, 9, 1, touched),
        (entries, 3, 9, touched),
    ):
        with pytest.raises((TypeError, ValueError, BufferError)):
            native.survey_rows(*wrong)


def good_push() -> list[Any]:
    shard = SparseShard(SparseSpec("t", 4, "float32", SGD(0.1)))
    return [
        np.arange(8, dtype=np.uint64), np.zeros(32, np.float32), shard._index.entries, shard._slab,
        shard._row_keys, shard._scratch, shard._meta, shard._hyper, shard._parameters.work,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, np.arange(8, dtype=np.int64)),
        (0, np.arange(7, dtype=np.uint64)),
        (0, np.arange(16, dtype=np.uint64)[::2]),
        (1, np.zeros(32, np.float64)),
        (1, np.zeros(31, np.float32)),
        (1, np.zeros(32, np.dtype(">f4"))),
        (2, np.zeros(6, np.uint64)),
        (3, np.zeros(4, np.float32)),
        (4, np.zeros(63, np.uint64)),
        (5, np.zeros(15, np.int32)),
        (6, np.zeros(3, np.int64)),
        (7, np.zeros(3, np.float64)),
        (8, np.zeros(3, np.float32)),
        (1, b"12345"),
        (1, None),
    ],
)
def test_arrays_that_do_not_fit_are_refused(place: int, wrong: Any) -> None:
    arguments = good_push()
    assert native.push_rows(*arguments) in (parameters.DONE, parameters.ROOM_FULL)
    arguments = good_push()
    arguments[place] = wrong
    with pytest.raises((TypeError, ValueError, BufferError)):
        native.push_rows(*arguments)
