"""A rank that trains one of the product's models on planted data.

    python -m resilient_ps.chaos.live.programs.training --folder F ... train-fm

The last word is the workload's name, and says which model (`trained_models`). A clock is one batch,
which (seed, rank, clock) determine; the model sees a worker that writes down what it does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.live.programs.life import Life, Push, Settings
from resilient_ps.chaos.live.programs.trained import Trained
from resilient_ps.chaos.live.programs.trained_models import TRAINED
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.models.api import Worker


class Training:
    """One batch after the other."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained

    def open(self, life: Life) -> None:
        """The model's tables."""
        self._trained.open(cast(Worker, life.worker))

    def one_clock(self, life: Life) -> None:
        """The model's own loop, over one batch."""
        watched = _Watched(life, self._trained)
        self._trained.one_clock(cast(Worker, watched))  # it has all that models use


class _Watched:
    """The worker as a model sees it, for one batch."""

    def __init__(self, life: Life, trained: Trained) -> None:
        self._life = life
        self._trained = trained
        self._rested = False

    @property
    def rank(self) -> int:
        return self._life.worker.rank

    @property
    def of(self) -> int:
        return self._life.worker.of

    @property
    def clock(self) -> int:
        return self._life.worker.clock

    def batches(self, dataset: object, **how: object) -> Iterator[Any]:
        """Ours, whatever the data set."""
        yield self._trained.batch(self.rank, self.clock)
        self.end_clock()  # raises what the model's loop has taken for its own

    def rest(self) -> None:
        """Before the clock's first push: half of its time."""
        if not self._rested:
            self._rested = True
            self._life.rest(0.5)

    def end_clock(self) -> None:
        """When it is time."""
        self._life.rest(0.5)
        self._life.tick(self.clock)

    def sparse_table(self, name: str, **spec: Any) -> _WatchedSparse:
        """It is open already."""
        return _WatchedSparse(self, self._life, self._life.worker.sparse_table(name, **spec))

    def dense_table(self, name: str, **spec: Any) -> _WatchedDense:
        """Likewise."""
        return _WatchedDense(self, self._life, self._life.worker.dense_table(name, **spec))


class _Done:
    """A call that has been waited for."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class _WatchedSparse:
    """Pulls and pushes are written down without their keys."""

    def __init__(self, watched: _Watched, life: Life, table: SparseTable) -> None:
        self._watched = watched
        self._life = life
        self._table = table

    def pull(self, keys: NDArray[np.uint64]) -> NDArray[Any]:
        """However long it takes: what is pushed depends on it."""
        while (rows := self._life.pull(self._table, keys, ())) is None:
            pass
        return rows

    def push(self, keys: NDArray[np.uint64], grads: NDArray[Any]) -> None:
        self._watched.rest()
        self._life.push(Push(self._table, keys, grads, ()))

    def pull_async(self, keys: NDArray[np.uint64]) -> _Done:
        return _Done(self.pull(keys))

    def push_async(self, keys: NDArray[np.uint64], grads: NDArray[Any]) -> _Done:
        self.push(keys, grads)
        return _Done()


class _WatchedDense:
    """Likewise."""

    def __init__(self, watched: _Watched, life: Life, table: DenseTable) -> None:
        self._watched = watched
        self._life = life
        self._table = table

    def pull(self) -> NDArray[Any]:
        while (array := self._life.pull(self._table, None, ())) is None:
            pass
        return array

    def push(self, grad: NDArray[Any]) -> None:
        self._watched.rest()
        self._life.push(Push(self._table, None, grad))


def main(arguments: list[str]) -> None:
    """The process itself."""
    settings = Settings.parse(arguments)
    (name,) = settings.rest
    Life(settings).run(Training(TRAINED[name](settings.seed)))


if __name__ == "__main__":
    main(sys.argv[1:])
