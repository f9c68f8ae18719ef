"""A model whose computation lasts a while, and which looks at what its reads contain.

A clock is: pull, compute, push, tick. Computing is a sleep of a given length (so that four workers
do not fight for two cores) and then the real gradient. With the weights a rank reads how many
clocks of each rank have arrived: each rank counts its own in a table, with the same pushes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from resilient_ps.models import LogisticRegression
from resilient_ps.models.api import Array, DenseTable, Future, Table, TableOpener, Worker
from resilient_ps.tables.optimisers import Sum

Sleep = Callable[[float], None]


@dataclass(frozen=True)
class SlowLogisticRegression(LogisticRegression):
    """`seconds`: how long the computation of each clock lasts. `reads`: what was seen."""

    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    reads: list[Read] = field(default_factory=list)
    sleep: Sleep = time.sleep

    def open(self, opener: TableOpener) -> Table:
        """The weights, behind what measures: `opener` is a worker."""
        worker = cast(Worker, opener)
        counts = worker.dense_table(
            f"{self.table}/clocks", shape=(worker.of,), optimiser=Sum(), dtype="int64"
        )
        return _Measured(super().open(worker), counts, worker, self)


@dataclass(frozen=True, slots=True)
class Read:
    """One read. `staleness`: clocks that the reader has ended and the slowest rank has not, as far
    as the read tells; `pull_s`: how long it lasted, waiting for others included."""

    clock: int
    staleness: int
    pull_s: float


class _Measured:
    """The table of weights: a pull is followed by the computation, a push counts the clock."""

    def __init__(
        self, weights: Table, counts: DenseTable, worker: Worker, model: SlowLogisticRegression
    ) -> None:
        self._weights = weights
        self._counts = counts
        self._worker = worker
        self._model = model
        self._mine = np.zeros(worker.of, np.int64)
        self._mine[worker.rank] = 1

    def pull(self, keys: NDArray[np.uint64]) -> Array:
        """The rows of `keys`, and then the computation."""
        begun_s, clock = time.monotonic(), self._worker.clock
        counts = self._counts.pull()  # first: what it shows is in the weights, too
        rows = self._weights.pull(keys)
        pull_s = time.monotonic() - begun_s
        self._model.reads.append(Read(clock, clock - 1 - int(counts.min()), pull_s))
        self._model.sleep(float(self._model.seconds[clock - 1]))
        return rows

    def push(self, keys: NDArray[np.uint64], grads: Any) -> None:
        """Gradients, and that the clock is done."""
        self._counts.push(self._mine)
        self._weights.push(keys, grads)

    def pull_async(self, keys: NDArray[np.uint64]) -> Future:
        """As the table's own."""
        return self._weights.pull_async(keys)

    def push_async(self, keys: NDArray[np.uint64], grads: Any) -> Future:
        """As the table's own."""
        return self._weights.push_async(keys, grads)
