"""Ridge regression by blocks of features, as a wavefront of tasks: many processes, one result.

A task has one block of the features in hand, and one part of the data. What the whole model says of
a sample is the sum of what each block says of it; that is kept for each sample and block, so a task
needs the weights of its own block alone. Tasks in which neither the block nor the part of the data
is the same run at the same time, and the result is that of one process that does them in order,
byte for byte: `fit_alone` is that process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.models.api import Table, TableOpener, TableReader, Task, Tasks
from resilient_ps.models.losses import Floats
from resilient_ps.schedules import Wavefront, WavefrontPlace
from resilient_ps.tables.optimisers import Sum

OnTask = Callable[[WavefrontPlace], None]


@dataclass(frozen=True)
class BlockRidge:
    """Minimises `mean((x @ w - y)**2) / 2 + l2 * sum(w**2) / 2` by gradient steps on blocks.

    In each epoch every part of the data meets every block of features once, and takes a step of
    `lr` along the gradient of its own samples. With `lr` below 1 / (the largest eigenvalue of a
    part's x.T @ x / rows) it converges to near the minimum; the smaller, the nearer.

    `name` is that of the graph, and of its tables: `<name>/weights` has a row for each feature,
    `<name>/said` for each sample what each block said of it when the sample was last met. `dtype`
    is float32 or float64. Sums are numpy's own, in a fixed order; that of BLAS depends on its
    threads.
    """

    rows: int
    features: int
    blocks: int = 4
    data_shards: int = 8
    epochs: int = 1
    lr: float = 0.1
    l2: float = 0.0
    dtype: Any = "float64"
    name: str = "ridge"

    def __post_init__(self) -> None:
        if not 1 <= self.blocks <= self.features or not 1 <= self.data_shards <= self.rows:
            raise BadInput(
                f"{self.blocks} blocks of {self.features} features, {self.data_shards} parts of "
                f"{self.rows} rows: at least one, and none may be empty"
            )
        if self.dtype not in ("float32", "float64") or not self.lr > 0 or not self.l2 >= 0:
            raise BadInput(
                f"dtype={self.dtype!r}, lr={self.lr}, l2={self.l2}: float32 or float64, lr above 0 "
                "and l2 at least 0"
            )

    @cached_property
    def schedule(self) -> Wavefront:
        """Its tasks."""
        return Wavefront(self.blocks, self.data_shards, self.epochs, name=self.name)

    def open(self, tasks: TableOpener) -> tuple[Table, Table]:
        """The weights, and what blocks said of samples; created if they do not exist."""
        weights = tasks.sparse_table(
            f"{self.name}/weights", dim=1, dtype=self.dtype, optimiser=Sum()
        )
        said = tasks.sparse_table(
            f"{self.name}/said", dim=self.blocks, dtype=self.dtype, optimiser=Sum()
        )
        return weights, said

    def train(
        self, tasks: Tasks, x: NDArray[Any], y: NDArray[Any], on_task: OnTask | None = None
    ) -> int:
        """Do tasks until all are done; how many this process has done.

        `x` (rows, features), `y` (rows,): all of the data, the same in every process. `on_task` is
        told of each task when it has pushed.
        """
        x, y = self._checked(x, y)
        weights, said = self.open(tasks)
        return tasks.run(partial(self._work, weights, said, x, y, on_task))

    def _work(
        self,
        weights: Table,
        said: Table,
        x: NDArray[Any],
        y: NDArray[Any],
        on_task: OnTask | None,
        task: Task,
    ) -> None:
        place = self.schedule.place(task.rank, task.step)
        rows, columns = self._reach(place)
        keys = np.arange(rows.start, rows.stop, dtype=np.uint64)
        names = np.arange(columns.start, columns.stop, dtype=np.uint64)
        step, change = self._step(
            place.block, x[rows, columns], y[rows], weights.pull(names)[:, 0], said.pull(keys)
        )
        weights.push(names, step[:, None])
        said.push(keys, change)
        if on_task is not None:
            on_task(place)

    def fit_alone(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        """The weights (features,) as one process computes them, without a cluster."""
        x, y = self._checked(x, y)
        weights = np.zeros(self.features, self.dtype)
        said = np.zeros((self.rows, self.blocks), self.dtype)
        for task in self.schedule.graph.serial_order():
            place = self.schedule.place(*task)
            rows, columns = self._reach(place)
            step, change = self._step(
                place.block, x[rows, columns], y[rows], weights[columns], said[rows]
            )
            weights[columns] += step
            said[rows] += change
        return weights

    def weights(self, table: TableReader) -> NDArray[Any]:
        """The weights (features,), as the table `<name>/weights` has them now."""
        return table.pull(np.arange(self.features, dtype=np.uint64))[:, 0]

    def objective(self, x: NDArray[Any], y: NDArray[Any], weights: NDArray[Any]) -> float:
        """What is minimised."""
        x, y = self._checked(x, y)
        error = _product(x, weights) - y
        return float(np.mean(error**2) / 2 + self.l2 * np.sum(weights**2) / 2)

    def _reach(self, place: WavefrontPlace) -> tuple[slice, slice]:
        """Rows and columns of the data."""
        rows = _part(self.rows, place.data_shard, self.data_shards)
        return rows, _part(self.features, place.block, self.blocks)

    def _step(
        self, block: int, x: Floats, y: Floats, weights: Floats, said: Floats
    ) -> tuple[Floats, Floats]:
        """How to change the block's weights, and what blocks say of the samples."""
        saying = _product(x, weights)
        error = saying + np.add.reduce(np.delete(said, block, axis=1), axis=1) - y
        gradient = np.add.reduce(x * error[:, None], axis=0) / len(y) + self.l2 * weights
        step = (-self.lr * gradient).astype(self.dtype)
        change = np.zeros_like(said)
        change[:, block] = _product(x, weights + step) - said[:, block]
        return step, change

    def _checked(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if x.shape != (self.rows, self.features) or y.shape != (self.rows,):
            raise BadInput(
                f"x has shape {x.shape} and y {y.shape}: they must be "
                f"({self.rows}, {self.features}) and ({self.rows},)"
            )
        return np.ascontiguousarray(x, self.dtype), np.ascontiguousarray(y, self.dtype)


def _part(whole: int, number: int, parts: int) -> slice:
    return slice(whole * number // parts, whole * (number + 1) // parts)


def _product(x: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """`x @ weights`."""
    product: NDArray[Any] = np.add.reduce(x.T * weights[:, None], axis=0)
    return product
