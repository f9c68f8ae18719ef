"""Embeddings and a multi-layer perceptron for click-through rates, as a worker program.

Each feature of a row has an embedding, a row of one sparse table under the feature's hash; those of
a row's fields stand one beside the other, and go through dense layers to one number, the log odds.
That is the deep part of Wide & Deep (Cheng et al., 2016), and the model for which parameter
servers are used most: nearly all parameters are in the embeddings, and a batch touches few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.batch import Batch, SparseBatch
from resilient_ps.data.dataset import Dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import BadInput
from resilient_ps.models.api import (
    DenseTable,
    DenseTableReader,
    Table,
    TableOpener,
    TableReader,
    Worker,
)
from resilient_ps.models.losses import (
    Floats,
    Reduction,
    binary_targets,
    log_losses,
    row_weight,
    sigmoid,
)
from resilient_ps.models.metrics import Evaluation, evaluate_margins
from resilient_ps.models.mlp import MAX_LAYERS, forward, layer_gradient, slope_below
from resilient_ps.models.training import OnBatch, train_batches
from resilient_ps.tables.initialisers import Initialiser, Normal, Uniform, Zeros
from resilient_ps.tables.optimisers import Adagrad, Optimiser
from resilient_ps.tables.spec import MAX_DIM

MAX_FIELDS = 4096
PREDICT_BATCH_ROWS = 8192

Array = NDArray[np.floating]


class EmbeddingTables(NamedTuple):
    """What the model reads: embeddings of features, and the dense layers from first to last."""

    embeddings: TableReader
    layers: Sequence[DenseTableReader]


class _Trained(NamedTuple):
    embeddings: Table
    layers: Sequence[DenseTable]


@dataclass(frozen=True)
class EmbeddingMLP:
    """`fields` features in every row, each with an embedding of `dim` numbers (1 to 4,096).

    `{table}/embeddings` is the sparse table of all embeddings: features of different fields have
    different hashes, as the readers of `resilient_ps.data` make them. They begin as normal numbers
    of `initial_stddev`; a feature's value multiplies its embedding. `{table}/{i}` are the dense
    layers, shaped and begun as those of `MLP`, with one output. Labels are as for
    `LogisticRegression`. Raises `BadInput` for settings out of range.
    """

    fields: int
    dim: int = 8
    hidden: tuple[int, ...] = (64, 32)
    table: str = "embedding-mlp"
    optimiser: Optimiser = field(default_factory=lambda: Adagrad(lr=0.02))
    embedding_optimiser: Optimiser = field(default_factory=lambda: Adagrad(lr=0.05))
    initial_stddev: float = 0.05
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        if not (1 <= self.fields <= MAX_FIELDS and 1 <= self.dim <= MAX_DIM):
            raise BadInput(
                f"fields={self.fields}, dim={self.dim}: 1 to {MAX_FIELDS} fields, and embeddings "
                f"of 1 to {MAX_DIM} numbers"
            )
        if any(width < 1 for width in self.hidden) or len(self.hidden) >= MAX_LAYERS:
            raise BadInput(
                f"hidden={self.hidden}: at most {MAX_LAYERS - 1} layers of at least 1 unit"
            )

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the dense tables, from the first layer to the last."""
        widths = (self.fields * self.dim, *self.hidden, 1)
        return [(i + 1, o) for i, o in pairwise(widths)]

    @property
    def table_names(self) -> tuple[str, ...]:
        """That of the embeddings, then those of the layers."""
        layers = [f"{self.table}/{layer}" for layer in range(len(self.shapes))]
        return (f"{self.table}/embeddings", *layers)

    def open(self, opener: TableOpener) -> EmbeddingTables:
        """The tables, created if they do not exist."""
        return EmbeddingTables(*self._open(opener))

    def _open(self, opener: TableOpener) -> _Trained:
        embeddings, *layers = self.table_names
        return _Trained(
            opener.sparse_table(
                embeddings,
                dim=self.dim,
                optimiser=self.embedding_optimiser,
                initialiser=Normal(self.initial_stddev),
            ),
            [
                opener.dense_table(
                    name,
                    shape=shape,
                    optimiser=self.optimiser,
                    initialiser=self._initialiser(layer, shape[0] - 1),
                )
                for layer, (name, shape) in enumerate(zip(layers, self.shapes, strict=True))
            ],
        )

    def _initialiser(self, layer: int, inputs: int) -> Initialiser:
        if layer == len(self.hidden):
            return Zeros()
        bound = float(np.sqrt(6.0 / inputs))
        return Uniform(-bound, bound)

    def train(
        self,
        worker: Worker,
        dataset: Dataset,
        *,
        batch_size: int = 1024,
        epochs: int = 1,
        schedule: Schedule = "static",
        data_shards: int | None = None,
        on_batch: OnBatch | None = None,
    ) -> EmbeddingTables:
        """Train on the worker's part of the data; `on_batch` is called after each push.

        The rest is as in `Worker.batches`.
        """
        tables = self._open(worker)
        train_batches(
            worker,
            dataset,
            lambda batch: self._step(tables, batch),
            batch_size=batch_size,
            epochs=epochs,
            schedule=schedule,
            data_shards=data_shards,
            on_batch=on_batch,
        )
        return EmbeddingTables(*tables)

    def _step(self, tables: _Trained, batch: Batch) -> float:
        fields = self._fields_of(batch)
        embeddings = tables.embeddings.pull_async(fields.keys)
        layers = [table.pull() for table in tables.layers]
        targets = binary_targets(batch.labels)
        loss, slopes = self.loss_and_gradients(embeddings.result(), layers, fields, targets)
        weight = row_weight(len(batch), self.reduction)
        pushed = tables.embeddings.push_async(fields.keys, (slopes[0] * weight).astype(np.float32))
        for table, slope in zip(tables.layers, slopes[1:], strict=True):
            table.push((slope * weight).astype(np.float32))
        pushed.result()
        return loss

    def loss_and_gradients(
        self, embeddings: Array, layers: Sequence[Array], fields: Fields, targets: Floats
    ) -> tuple[float, list[Array]]:
        """Summed over the rows: log loss, and its gradients by the embeddings and each layer.

        `embeddings` are those of `fields.keys`, (keys, dim). Products of matrices are computed in
        the precision of what is given, the loss in float64.
        """
        activations = forward(layers, fields.rows_of(embeddings))
        margins = activations[-1][:, 0].astype(np.float64)
        slope: Array = (sigmoid(margins) - targets)[:, None].astype(layers[-1].dtype)
        gradients: list[Array] = []
        for layer in reversed(range(1, len(layers))):
            gradients.append(layer_gradient(activations[layer], slope))
            slope = slope_below(layers[layer], slope, activations[layer])
        gradients.append(layer_gradient(activations[0], slope))
        gradients.append(fields.gradient_of(slope @ layers[0][:-1].T))
        return float(log_losses(margins, targets).sum()), gradients[::-1]

    def margins(
        self, tables: EmbeddingTables, dataset: Dataset
    ) -> tuple[NDArray[np.float32], Floats]:
        """(labels, log odds) of all rows of a data set, in its order."""
        layers = [table.pull() for table in tables.layers]
        labels: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        margins: list[Floats] = [np.zeros(0)]
        for batch in dataset.batches(0, 1, PREDICT_BATCH_ROWS):
            fields = self._fields_of(batch)
            rows = fields.rows_of(tables.embeddings.pull(fields.keys))
            margins.append(forward(layers, rows)[-1][:, 0].astype(np.float64))
            labels.append(batch.labels)
        return np.concatenate(labels), np.concatenate(margins)

    def predict(self, tables: EmbeddingTables, dataset: Dataset) -> Floats:
        """Probabilities of the positive class, float64 (n,), in the order of the data set."""
        return sigmoid(self.margins(tables, dataset)[1])

    def evaluate(self, tables: EmbeddingTables, dataset: Dataset) -> Evaluation:
        """Log loss, accuracy and AUC over a whole data set with labels."""
        labels, margins = self.margins(tables, dataset)
        return evaluate_margins(binary_targets(labels), margins)

    def _fields_of(self, batch: Batch) -> Fields:
        if not isinstance(batch, SparseBatch):
            raise BadInput("this model takes sparse rows: use MLP for rows of numbers")
        if (np.diff(batch.row_offsets) != self.fields).any():
            found = np.unique(np.diff(batch.row_offsets))
            raise BadInput(
                f"this model takes rows of {self.fields} features, one for each field, and here "
                f"are rows of {', '.join(map(str, found[:5]))}: say fields= as the data have, with "
                "a category for what is missing"
            )
        return Fields.of(batch, self.fields)


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """A batch whose rows have a feature for each field: `codes` (n, fields) number the `keys`."""

    keys: NDArray[np.uint64]
    codes: NDArray[np.int64]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, batch: SparseBatch, fields: int) -> Fields:
        """Each row of the batch must have so many."""
        keys, codes = np.unique(batch.keys, return_inverse=True)
        shape = (len(batch), fields)
        return cls(keys, codes.astype(np.int64).reshape(shape), batch.values.reshape(shape))

    def rows_of(self, embeddings: Array) -> Array:
        """The embeddings of each row one beside the other, (n, fields * dim)."""
        rows = embeddings[self.codes] * self.values[:, :, None]
        return np.asarray(rows.reshape(len(self.codes), -1))

    def gradient_of(self, slope: Array) -> Array:
        """The gradient by the embeddings (keys, dim), from that by the rows."""
        dim = slope.shape[1] // self.codes.shape[1]
        each = slope.reshape(-1, dim) * self.values.reshape(-1, 1)
        order = np.argsort(self.codes, axis=None, kind="stable")
        firsts = np.searchsorted(self.codes.reshape(-1)[order], np.arange(len(self.keys)))
        return np.asarray(np.add.reduceat(each[order], firsts, axis=0))
