"""Matrix factorisation by rotation: blocks of items go round between parts of the users.

Gemulla et al., "Large-scale matrix factorization with distributed stochastic gradient descent",
KDD 2011, in the schedule of `schedules.Rotation`. A task goes through the ratings that the users
of its part have given to the items of its block. No two tasks that run at the same time share a
user or an item, so nothing lags and nothing adds up: **the result is that of the serial order of
the tasks, byte for byte**, whichever processes do them, and whichever of them die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.arrays import SparseArrayDataset
from resilient_ps.data.dataset import Dataset
from resilient_ps.errors import BadInput
from resilient_ps.hashing import MAX_SHARDS
from resilient_ps.models.api import Progress, Tasks
from resilient_ps.models.losses import Floats, number_targets
from resilient_ps.models.matrix_factorisation import (
    Cell,
    MatrixFactorisation,
    MatrixReaders,
    MatrixTables,
    user_and_item_keys,
)
from resilient_ps.models.metrics import RegressionEvaluation
from resilient_ps.models.tables_here import TablesHere
from resilient_ps.schedules import Rotation, RotationPlace
from resilient_ps.tables.partition import partition

PARTS_MAX = MAX_SHARDS


@dataclass(frozen=True)
class RotatingFactorisation:
    """`model` trained over `parts` (1 to 1,024) parts of the users, as many tasks at a time.

    The rate of an epoch (from 0) is `model.lr * lr_decay ** epoch`. Each epoch goes through the
    ratings of a task in another order, drawn from `seed` (>= 0). The number of parts is part of the
    result, the number of processes is not.
    """

    model: MatrixFactorisation = field(default_factory=MatrixFactorisation)
    parts: int = 4
    lr_decay: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= PARTS_MAX:
            raise BadInput(f"parts={self.parts}: 1 to {PARTS_MAX}")
        if not 0 < self.lr_decay <= 1 or self.seed < 0:
            raise BadInput(f"lr_decay={self.lr_decay}, seed={self.seed}: in (0, 1], at least 0")

    @property
    def table_names(self) -> tuple[str, str]:
        """Those of the model."""
        return self.model.table_names

    def schedule(self, *, epochs: int = 20, name: str = "mf") -> Rotation:
        """The tasks of a training; `name` is that of their graph."""
        return Rotation(self.parts, epochs, name)

    def train(
        self,
        tasks: Tasks,
        dataset: SparseArrayDataset,
        *,
        epochs: int = 20,
        on_task: Callable[[Progress], None] | None = None,
    ) -> MatrixTables:
        """Take tasks until none is left: `client.tasks(rotating.schedule(epochs=...).graph)`.

        Any number of processes do the same, with the same arguments.
        """
        schedule = self.schedule(epochs=epochs)
        program = RotatingProgram(self, self.model.open(tasks), Grid(dataset, self.parts))
        samples = 0

        def work(task: Any) -> None:
            nonlocal samples
            rows, loss = program.work(schedule.place(task.rank, task.step))
            samples += rows
            if on_task is not None:
                on_task(Progress(task.rank, task.step, rows, samples, loss / max(rows, 1)))

        tasks.run(work)
        return program.tables

    def fit_alone(self, dataset: SparseArrayDataset, *, epochs: int = 20) -> MatrixTables:
        """All tasks in their serial order, in this process: the bytes that `train` ends with."""
        schedule, tables = self.schedule(epochs=epochs), self.model.open(TablesHere())
        program = RotatingProgram(self, tables, Grid(dataset, self.parts))
        for rank, step in schedule.graph.serial_order():
            program.work(schedule.place(rank, step))
        return tables

    def predict(self, tables: MatrixReaders, dataset: Dataset) -> Floats:
        """As `MatrixFactorisation.predict`."""
        return self.model.predict(tables, dataset)

    def evaluate(self, tables: MatrixReaders, dataset: Dataset) -> RegressionEvaluation:
        """As `MatrixFactorisation.evaluate`."""
        return self.model.evaluate(tables, dataset)


class RotatingProgram:
    """What a task does. Nothing is kept between tasks but what the data alone determine."""

    def __init__(self, rotating: RotatingFactorisation, tables: MatrixTables, grid: Grid) -> None:
        self.tables = tables
        self._rotating = rotating
        self._grid = grid

    def work(self, place: RotationPlace) -> tuple[int, float]:
        """Descend once through the ratings of a block in a part; their number, and their loss."""
        rotating, cell = self._rotating, self._grid.cell(place.part, place.block)
        model = replace(rotating.model, lr=rotating.model.lr * rotating.lr_decay**place.epoch)
        return len(cell.ratings), model.step(self.tables, cell, self._order(place, cell))

    def _order(self, place: RotationPlace, cell: Cell) -> NDArray[np.int64]:
        # Raw generator output: unlike `permutation`, numpy guarantees that it never changes
        draws = np.random.PCG64([self._rotating.seed, *place]).random_raw(len(cell.ratings))
        return np.argsort(draws, kind="stable")


class Grid:
    """All ratings, by the part of their user and the block of their item.

    Which part a user belongs to is a function of the key alone, as is the block of an item.
    """

    def __init__(self, dataset: SparseArrayDataset, parts: int) -> None:
        rows = len(dataset)
        batch = next(dataset.batches(0, 1, rows))
        users, items = user_and_item_keys(batch)
        cells = _numbers(users, parts) * parts + _numbers(items, parts)
        order = np.argsort(cells, kind="stable")
        self._ends = np.searchsorted(cells[order], np.arange(parts * parts + 1))
        self._users, self._items = users[order], items[order]
        self._ratings = number_targets(batch.labels)[order]
        self._parts = parts
        self._made: dict[int, Cell] = {}

    def cell(self, part: int, block: int) -> Cell:
        """The ratings of a part's users for a block's items, in the order of the data set."""
        number = part * self._parts + block
        if number not in self._made:
            here = slice(self._ends[number], self._ends[number + 1])
            self._made[number] = Cell.made(
                self._users[here], self._items[here], self._ratings[here]
            )
        return self._made[number]


def _numbers(keys: NDArray[np.uint64], parts: int) -> NDArray[np.int64]:
    """The part of each key. As shards are chosen: what belongs together lies on few shards."""
    order, counts, _ = partition(keys, parts)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.repeat(np.arange(parts), counts)
    return numbers
