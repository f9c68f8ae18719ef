"""Logistic regression on labels that are drawn from known weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.live.programs.trained import digest, rows_of
from resilient_ps.client.connection import Client
from resilient_ps.client.tables import SparseTable
from resilient_ps.data import SparseArrayDataset
from resilient_ps.data.batch import SparseBatch
from resilient_ps.models import LogisticRegression
from resilient_ps.models.api import TableOpener, Worker
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


class TrainedLogistic:
    """See the module."""

    measure = "held-out log loss"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._data = Planted.draw(seed)
        self._held_out = self._data.held_out()

    def open(self, opener: TableOpener) -> None:
        """The table of weights."""
        MODEL.open(opener)

    def one_clock(self, worker: Worker) -> None:
        """One batch."""
        MODEL.train(worker, self._held_out)  # the worker has a batch of its own

    def batch(self, rank: int, clock: int) -> SparseBatch:
        """64 rows."""
        return self._data.batch(self._seed, rank, clock)

    def digests(self, client: Client) -> dict[str, str]:
        """Of all weights."""
        return {MODEL.table: digest(rows_of(client, MODEL.table, KEYS))}

    def quality(self, client: Client) -> dict[str, float]:
        """Log loss and AUC."""
        table = client.table(MODEL.table)
        assert isinstance(table, SparseTable)
        found = MODEL.evaluate(table, self._held_out)
        assert found.auc is not None, "both classes are held out"
        return {self.measure: found.logloss, "held-out AUC": found.auc}

    def contradictions(self, client: Client) -> list[str]:
        """Any numbers may be weights."""
        return []
