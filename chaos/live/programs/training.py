"""A rank that trains logistic regression on planted data, with the product's own model.

    python -m resilient_ps.chaos.live.programs.training --folder F ...

A clock is one batch, which (seed, rank, clock) determine; the model sees a worker that writes down
what it does. Labels are drawn from known weights, so that there is something to be learnt, and rows
that no rank sees tell how much has been.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.live.programs.life import Life, Push, Settings
from resilient_ps.client.tables import SparseTable
from resilient_ps.data import SparseArrayDataset
from resilient_ps.data.batch import SparseBatch
from resilient_ps.models import LogisticRegression
from resilient_ps.models.api import Worker
from resilient_ps.models.logistic import BIAS_KEY
from resilient_ps.tables.optimisers import Adagrad

ROWS = 20_000
HELD_OUT = 4_000
FEATURES = 400
FEATURES_OF_ROW = 10
BATCH_ROWS = 64
MODEL = LogisticRegression("weights", optimiser=Adagrad(lr=0.3), reduction="mean")
KEYS = np.append(np.arange(FEATURES, dtype=np.uint64), np.uint64(BIAS_KEY))
"""Of all weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Planted:
    """Rows with features from 0 to `FEATURES` - 1, and labels that depend on them."""

    keys: NDArray[np.uint64]
    labels: NDArray[np.float32]

    @classmethod
    def draw(cls, seed: int) -> Planted:
        """The same for a seed, on every machine."""
        raw = np.random.PCG64(seed).random_raw
        rows = ROWS + HELD_OUT
        keys = (raw(rows * FEATURES_OF_ROW) % FEATURES).astype(np.uint64)
        keys = keys.reshape(rows, FEATURES_OF_ROW)
        weights = raw(FEATURES) / 2.0**63 - 1.0
        margins = weights[keys].sum(axis=1) * 2.0
        chance = raw(rows) / 2.0**64
        return cls(keys, (chance < 1 / (1 + np.exp(-margins))).astype(np.float32))

    def batch(self, seed: int, rank: int, clock: int) -> SparseBatch:
        """That of a clock."""
        rows = np.random.PCG64([seed, rank, clock]).random_raw(BATCH_ROWS) % ROWS
        keys = self.keys[rows].reshape(-1)
        offsets = np.arange(BATCH_ROWS + 1, dtype=np.int64) * FEATURES_OF_ROW
        return SparseBatch(self.labels[rows], offsets, keys, np.ones(len(keys), np.float32))

    def held_out(self) -> SparseArrayDataset:
        """The rows that no batch has."""
        offsets = np.arange(HELD_OUT + 1) * FEATURES_OF_ROW
        return SparseArrayDataset(self.labels[ROWS:], offsets, self.keys[ROWS:].reshape(-1))


class Training:
    """One batch after the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._data = Planted.draw(seed)
        self._held_out = self._data.held_out()

    def open(self, life: Life) -> None:
        """The table of weights."""
        table = MODEL.open(life.worker)
        assert isinstance(table, SparseTable)
        self._table = table

    def one_clock(self, life: Life) -> None:
        """The model's own loop, over one batch."""
        batch = self._data.batch(self._seed, life.settings.rank, life.worker.clock)
        watched = _Watched(life, self._table, batch)
        MODEL.train(cast(Worker, watched), self._held_out)  # it has all that this model uses


class _Watched:
    """The worker as the model sees it, for one batch; and its table."""

    def __init__(self, life: Life, table: SparseTable, batch: SparseBatch) -> None:
        self._life = life
        self._table = table
        self._batch = batch

    @property
    def rank(self) -> int:
        return self._life.worker.rank

    @property
    def of(self) -> int:
        return self._life.worker.of

    @property
    def clock(self) -> int:
        return self._life.worker.clock

    def batches(self, dataset: object, **how: object) -> Iterator[SparseBatch]:
        """Ours, whatever the data set."""
        yield self._batch
        self._life.rest(0.5)
        self._life.tick(self.clock)  # raises what the model's loop has taken for its own

    def sparse_table(self, name: str, **spec: object) -> _Watched:
        """It is open already."""
        return self

    def pull(self, keys: NDArray[np.uint64]) -> NDArray[Any]:
        """However long it takes: what is pushed depends on it."""
        while True:
            rows = self._life.pull(self._table, keys, ())
            if rows is not None:
                self._life.rest(0.5)
                return rows

    def push(self, keys: NDArray[np.uint64], grads: NDArray[Any]) -> None:
        """Written down without its keys."""
        self._life.push(Push(self._table, keys, grads, ()))


def main(arguments: list[str]) -> None:
    """The process itself."""
    settings = Settings.parse(arguments)
    Life(settings).run(Training(settings.seed))


if __name__ == "__main__":
    main(sys.argv[1:])
