"""Factorisation machine and matrix factorisation on ratings of a planted model of factors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.live.programs.trained import digest, rows_of
from resilient_ps.client.connection import Client
from resilient_ps.client.tables import SparseTable
from resilient_ps.data import SparseArrayDataset
from resilient_ps.data.batch import SparseBatch
from resilient_ps.models import (
    FactorisationMachineRegressor,
    MatrixFactorisation,
    RegressionEvaluation,
)
from resilient_ps.models.api import TableOpener, TableReader, Worker
from resilient_ps.models.logistic import BIAS_KEY
from resilient_ps.tables.optimisers import Adagrad

USERS, ITEMS = 200, 100
FACTORS = 4
NOISE = 0.25
RATINGS = 16_000
HELD_OUT = 4_000
BATCH_ROWS = 64
USER_KEYS = np.arange(USERS, dtype=np.uint64)
ITEM_KEYS = np.arange(USERS, USERS + ITEMS, dtype=np.uint64)
ALL_KEYS = np.concatenate((USER_KEYS, ITEM_KEYS))


class PlantedRatings:
    """Ratings around 3, of users and items with biases and factors."""

    def __init__(self, seed: int) -> None:
        raw, total = np.random.PCG64(seed).random_raw, RATINGS + HELD_OUT
        of_users, of_items = (
            raw(count * (FACTORS + 1)).reshape(count, FACTORS + 1) / 2.0**63 - 1.0
            for count in (USERS, ITEMS)
        )
        users, items = (raw(total) % count for count in (USERS, ITEMS))
        products = np.einsum("nf,nf->n", of_users[users, 1:], of_items[items, 1:])
        noise = (raw(total) / 2.0**63 - 1.0) * NOISE
        ratings = 3.0 + of_users[users, 0] + of_items[items, 0] + products + noise
        self._seed = seed
        self._keys = np.stack([users, USERS + items], axis=1).astype(np.uint64)
        self._ratings = ratings.astype(np.float32)

    def batch(self, rank: int, clock: int) -> SparseBatch:
        """64 of those that are not held out."""
        rows = np.random.PCG64([self._seed, rank, clock]).random_raw(BATCH_ROWS) % RATINGS
        keys = self._keys[rows].reshape(-1)
        offsets = np.arange(BATCH_ROWS + 1, dtype=np.int64) * 2
        return SparseBatch(self._ratings[rows], offsets, keys, np.ones(len(keys), np.float32))

    def held_out(self) -> SparseArrayDataset:
        """The ratings that no batch has."""
        offsets = np.arange(HELD_OUT + 1) * 2
        keys = self._keys[RATINGS:].reshape(-1)
        return SparseArrayDataset(self._ratings[RATINGS:], offsets, keys)


class _TrainedFactors:
    """What both have in common: the data, and how good a prediction is."""

    measure = "held-out RMSE"
    model: Any
    keys: tuple[NDArray[np.uint64], NDArray[np.uint64]]
    """Of all rows of the model's two tables."""

    def __init__(self, seed: int) -> None:
        self._data = PlantedRatings(seed)
        self._held_out = self._data.held_out()

    def open(self, opener: TableOpener) -> None:
        """The model's two tables."""
        self.model.open(opener)

    def one_clock(self, worker: Worker) -> None:
        """One batch."""
        self.model.train(worker, self._held_out)  # the worker has a batch of its own

    def batch(self, rank: int, clock: int) -> SparseBatch:
        """64 ratings."""
        return self._data.batch(rank, clock)

    def digests(self, client: Client) -> dict[str, str]:
        """Of both tables."""
        names = self.model.table_names
        return {
            name: digest(rows_of(client, name, keys))
            for name, keys in zip(names, self.keys, strict=True)
        }

    def quality(self, client: Client) -> dict[str, float]:
        """Root mean square error."""
        tables: list[TableReader] = []
        for name in self.model.table_names:
            table = client.table(name)
            assert isinstance(table, SparseTable)
            tables.append(table)
        found: RegressionEvaluation = self.model.evaluate(tuple(tables), self._held_out)
        return {self.measure: found.rmse}

    def contradictions(self, client: Client) -> list[str]:
        """Any numbers may be factors."""
        return []


class TrainedFactorisationMachine(_TrainedFactors):
    """With Adagrad on the servers."""

    model = FactorisationMachineRegressor(
        "fm",
        factors=FACTORS,
        weight_optimiser=Adagrad(lr=0.2),
        factor_optimiser=Adagrad(lr=0.2),
        initial_stddev=0.1,
        mean=3.0,
    )
    keys = np.append(ALL_KEYS, np.uint64(BIAS_KEY)), ALL_KEYS


class TrainedMatrixFactorisation(_TrainedFactors):
    """With descent in the workers, whose changes are added."""

    model = MatrixFactorisation("mf", factors=FACTORS, lr=0.05, l2=0.01, mean=3.0)
    keys = USER_KEYS, ITEM_KEYS
