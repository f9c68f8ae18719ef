"""Ridge regression by blocks: what it computes, and that a wavefront's order changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.models.wavefront import BlockRidge

Array = NDArray[Any]
ROWS, FEATURES = 160, 24
L2 = 0.01


def planted() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(ROWS, FEATURES)) / np.sqrt(FEATURES)
    return x, x @ rng.normal(size=FEATURES) + 0.1 * rng.normal(size=ROWS)


def ridge(**settings: Any) -> BlockRidge:
    return BlockRidge(rows=ROWS, features=FEATURES, l2=L2, **settings)


class LocalTable:
    """Rows that are zero until something is added to them."""

    def __init__(self, dim: int, dtype: Any) -> None:
        self._rows: dict[int, Array] = {}
        self._zero = np.zeros(dim, dtype)

    def pull(self, keys: Array) -> Array:
        return np.array([self._rows.get(int(key), self._zero) for key in keys])

    def push(self, keys: Array, grads: Array) -> None:
        for key, grad in zip(keys, grads, strict=True):
            self._rows[int(key)] = self._rows.get(int(key), self._zero) + grad


class LocalTasks:
    """Does the tasks in a given order, on tables in this process."""

    def __init__(self, order: Iterable[tuple[int, int]]) -> None:
        self.tables: dict[str, LocalTable] = {}
        self._order = order

    def sparse_table(self, name: str, *, dim: int, dtype: Any, optimiser: Any) -> LocalTable:
        return self.tables.setdefault(name, LocalTable(dim, dtype))

    def run(self, work: Callable[[Any], None]) -> int:
        done = 0
        for rank, step in self._order:
            work(SimpleNamespace(rank=rank, step=step))
            done += 1
        return done


def in_order(model: BlockRidge, order: Iterable[tuple[int, int]]) -> Array:
    x, y = planted()
    tasks: Any = LocalTasks(order)
    model.train(tasks, x, y)
    return model.weights(tasks.tables["ridge/weights"])


def along_diagonals(task: tuple[int, int]) -> tuple[int, int]:
    rank, step = task
    return rank + step, rank


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_tasks_of_a_diagonal_may_run_at_once_and_nothing_changes(dtype: str) -> None:
    model = ridge(blocks=4, data_shards=8, epochs=2, dtype=dtype)
    alone = model.fit_alone(*planted())
    tasks = list(model.schedule.graph.serial_order())
    assert in_order(model, tasks).tobytes() == alone.tobytes()
    assert in_order(model, sorted(tasks, key=along_diagonals)).tobytes() == alone.tobytes()


def test_an_order_that_breaks_the_dependencies_changes_the_result() -> None:
    model = ridge(blocks=4, data_shards=8)
    tasks = sorted(model.schedule.graph.serial_order())  # block after block
    assert in_order(model, tasks[::-1]).tobytes() != model.fit_alone(*planted()).tobytes()


def test_a_step_is_one_along_the_gradient_of_the_blocks_own_samples() -> None:
    x, y = planted()
    model = ridge(blocks=1, data_shards=1, lr=0.3)
    weights = model.fit_alone(x, y)
    assert np.allclose(weights, 0.3 * x.T @ y / ROWS)


def test_it_comes_to_the_minimum_that_the_normal_equations_give() -> None:
    x, y = planted()
    best = np.linalg.solve(x.T @ x / ROWS + L2 * np.eye(FEATURES), x.T @ y / ROWS)
    model = ridge(blocks=3, data_shards=1, epochs=600, lr=1.0)
    assert np.allclose(model.fit_alone(x, y), best, atol=1e-4)
    parts = ridge(blocks=3, data_shards=4, epochs=300, lr=0.2)
    assert parts.objective(x, y, parts.fit_alone(x, y)) < 1.1 * parts.objective(x, y, best)


@pytest.mark.parametrize(
    "wrong",
    [{"blocks": 25}, {"data_shards": 161}, {"lr": 0.0}, {"dtype": "int64"}, {"blocks": 0}],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        ridge(**wrong)


def test_data_of_another_shape_is_refused() -> None:
    x, y = planted()
    with pytest.raises(BadInput, match=r"\(160, 24\) and \(160,\)"):
        ridge().fit_alone(x[:-1], y)
