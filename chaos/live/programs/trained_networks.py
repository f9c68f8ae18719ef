"""Networks on planted data: an MLP on points, and embeddings with an MLP on pairs of features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.live.programs.trained import digest, rows_of
from resilient_ps.client.connection import Client
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.data import ArrayDataset, SparseArrayDataset
from resilient_ps.data.batch import DenseBatch, SparseBatch
from resilient_ps.models.api import TableOpener, Worker
from resilient_ps.models.embedding_mlp import EmbeddingMLP, EmbeddingTables
from resilient_ps.models.mlp import MLP
from resilient_ps.tables.optimisers import Adagrad

ROWS, HELD_OUT, BATCH_ROWS = 8_000, 2_000, 64
FEATURES, CLASSES = 12, 3
FIELDS, WORDS_OF_FIELD = 5, 40
NETWORK = MLP(FEATURES, CLASSES, (24,), optimiser=Adagrad(lr=0.1))
CLICK_MODEL = EmbeddingMLP(
    FIELDS,
    dim=4,
    hidden=(16,),
    optimiser=Adagrad(lr=0.05),
    embedding_optimiser=Adagrad(lr=0.1),
    initial_stddev=0.3,
)


def _uniform(raw: Any, *shape: int) -> NDArray[np.float64]:
    """Numbers from -1 to 1."""
    return np.asarray(raw(int(np.prod(shape))).reshape(shape) / 2.0**63 - 1.0)


class TrainedMLP:
    """Points whose class another network has given them."""

    measure = "held-out log loss"

    def __init__(self, seed: int) -> None:
        raw = np.random.PCG64(seed).random_raw
        self._seed = seed
        self._x = _uniform(raw, ROWS + HELD_OUT, FEATURES).astype(np.float32)
        hidden = np.maximum(self._x @ _uniform(raw, FEATURES, 16), 0)
        self._labels = (hidden @ _uniform(raw, 16, CLASSES)).argmax(axis=1).astype(np.float32)
        self._held_out = ArrayDataset(self._x[ROWS:], self._labels[ROWS:])

    def open(self, opener: TableOpener) -> None:
        """The layers."""
        NETWORK.open(opener)

    def one_clock(self, worker: Worker) -> None:
        """One batch."""
        NETWORK.train(worker, self._held_out)  # the worker has a batch of its own

    def batch(self, rank: int, clock: int) -> DenseBatch:
        """64 points."""
        rows = np.random.PCG64([self._seed, rank, clock]).random_raw(BATCH_ROWS) % ROWS
        return DenseBatch(self._labels[rows], self._x[rows])

    def digests(self, client: Client) -> dict[str, str]:
        """Of each layer."""
        layers = _layers(client, NETWORK.table_names)
        return {layer.name: digest(layer.pull()) for layer in layers}

    def quality(self, client: Client) -> dict[str, float]:
        """Log loss and accuracy."""
        found = NETWORK.evaluate(_layers(client, NETWORK.table_names), self._held_out)
        return {self.measure: found.logloss, "held-out accuracy": found.accuracy}

    def contradictions(self, client: Client) -> list[str]:
        """Any numbers may be a layer's."""
        return []


class TrainedEmbeddings:
    """Rows whose label depends on pairs of features."""

    measure = "held-out log loss"

    def __init__(self, seed: int) -> None:
        raw = np.random.PCG64(seed).random_raw
        codes = (raw((ROWS + HELD_OUT) * FIELDS) % WORDS_OF_FIELD).astype(np.int64)
        codes = codes.reshape(-1, FIELDS)
        margins = (
            _uniform(raw, WORDS_OF_FIELD)[codes[:, 0]] * _uniform(raw, WORDS_OF_FIELD)[codes[:, 1]]
            + 0.5 * _uniform(raw, WORDS_OF_FIELD)[codes[:, 2]]
        )
        self._seed = seed
        self._keys = (codes + WORDS_OF_FIELD * np.arange(FIELDS)).astype(np.uint64)
        self._labels = (margins > 0).astype(np.float32)
        offsets = np.arange(HELD_OUT + 1) * FIELDS
        held_out = self._keys[ROWS:].reshape(-1)
        self._held_out = SparseArrayDataset(self._labels[ROWS:], offsets, held_out)

    def open(self, opener: TableOpener) -> None:
        """Embeddings and layers."""
        CLICK_MODEL.open(opener)

    def one_clock(self, worker: Worker) -> None:
        """One batch."""
        CLICK_MODEL.train(worker, self._held_out)  # the worker has a batch of its own

    def batch(self, rank: int, clock: int) -> SparseBatch:
        """64 rows."""
        rows = np.random.PCG64([self._seed, rank, clock]).random_raw(BATCH_ROWS) % ROWS
        keys = self._keys[rows].reshape(-1)
        offsets = np.arange(BATCH_ROWS + 1, dtype=np.int64) * FIELDS
        return SparseBatch(self._labels[rows], offsets, keys, np.ones(len(keys), np.float32))

    def digests(self, client: Client) -> dict[str, str]:
        """Of all embeddings, and of each layer."""
        first, *rest = CLICK_MODEL.table_names
        keys = np.arange(FIELDS * WORDS_OF_FIELD, dtype=np.uint64)
        layers = {layer.name: digest(layer.pull()) for layer in _layers(client, rest)}
        return {first: digest(rows_of(client, first, keys)), **layers}

    def quality(self, client: Client) -> dict[str, float]:
        """Log loss and AUC."""
        first, *rest = CLICK_MODEL.table_names
        embeddings = client.table(first)
        assert isinstance(embeddings, SparseTable)
        tables = EmbeddingTables(embeddings, _layers(client, rest))
        found = CLICK_MODEL.evaluate(tables, self._held_out)
        assert found.auc is not None, "both classes are held out"
        return {self.measure: found.logloss, "held-out AUC": found.auc}

    def contradictions(self, client: Client) -> list[str]:
        """Any numbers may be embeddings."""
        return []


def _layers(client: Client, names: Any) -> list[DenseTable]:
    tables = [client.table(name) for name in names]
    return [table for table in tables if isinstance(table, DenseTable)]
