"""Softmax regression and multi-layer perceptrons as worker programs on dense tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.batch import Batch, DenseBatch
from resilient_ps.data.dataset import Dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import BadInput
from resilient_ps.models.api import DenseTable, DenseTableReader, Worker
from resilient_ps.models.losses import (
    Floats,
    Reduction,
    class_targets,
    cross_entropies,
    row_weight,
    softmax,
)
from resilient_ps.models.metrics import Evaluation, evaluate_scores
from resilient_ps.models.training import OnBatch, train_batches
from resilient_ps.tables.initialisers import Initialiser, Uniform, Zeros
from resilient_ps.tables.optimisers import Adagrad, Optimiser

MAX_LAYERS = 32
PREDICT_BATCH_ROWS = 4096


@dataclass(frozen=True)
class MLP:
    """`features` numbers in, hidden layers with ReLU, `classes` scores out, softmax loss.

    Layer i is the dense table `{table}/{i}` of shape (inputs + 1, outputs), its last row the
    biases. Tables begin uniform in +-sqrt(6 / inputs) (He et al., "Delving deep into rectifiers",
    ICCV 2015), the last one with zeros. Labels are class numbers 0 .. classes - 1.
    """

    features: int
    classes: int
    hidden: tuple[int, ...] = (64,)
    table: str = "mlp"
    optimiser: Optimiser = field(default_factory=lambda: Adagrad(lr=0.05))
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        if self.features < 1 or self.classes < 2 or any(width < 1 for width in self.hidden):
            raise BadInput("an MLP needs features and hidden layers >= 1 and at least 2 classes")
        if len(self.hidden) >= MAX_LAYERS:
            raise BadInput(f"{len(self.hidden)} hidden layers: at most {MAX_LAYERS - 1}")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the tables, from the first layer to the last."""
        widths = (self.features, *self.hidden, self.classes)
        return [(i + 1, o) for i, o in pairwise(widths)]

    def open(self, worker: Worker) -> list[DenseTable]:
        """The tables of the layers, created if they do not exist."""
        return [
            worker.dense_table(
                f"{self.table}/{layer}",
                shape=shape,
                optimiser=self.optimiser,
                initialiser=self._initialiser(layer, shape[0] - 1),
            )
            for layer, shape in enumerate(self.shapes)
        ]

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
        batch_size: int = 128,
        epochs: int = 1,
        schedule: Schedule = "static",
        data_shards: int | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[DenseTable]:
        """Train on the worker's part of the data; `on_batch` is called after each push.

        The rest is as in `Worker.batches`.
        """
        tables = self.open(worker)

        def step(batch: Batch) -> float:
            loss, gradients = self.loss_and_gradients([t.pull() for t in tables], batch)
            weight = row_weight(len(batch), self.reduction)
            for table, gradient in zip(tables, gradients, strict=True):
                table.push((gradient * weight).astype(np.float32))
            return loss

        train_batches(
            worker,
            dataset,
            step,
            batch_size=batch_size,
            epochs=epochs,
            schedule=schedule,
            data_shards=data_shards,
            on_batch=on_batch,
        )
        return tables

    def loss_and_gradients(
        self, weights: Sequence[NDArray[np.floating]], batch: Batch
    ) -> tuple[float, list[Floats]]:
        """Summed over the batch's rows: cross entropy, and its gradient per table."""
        targets = class_targets(batch.labels, self.classes)
        layers = [np.asarray(w, np.float64) for w in weights]
        activations = _forward(layers, self._rows(batch))
        scores = activations[-1]
        slope = softmax(scores)
        slope[np.arange(len(targets)), targets] -= 1.0
        gradients: list[Floats] = []
        for layer in reversed(range(len(layers))):
            below = activations[layer]
            gradients.append(np.vstack([below.T @ slope, slope.sum(axis=0)]))
            if layer > 0:
                slope = (slope @ layers[layer][:-1].T) * (below > 0)
        return float(cross_entropies(scores, targets).sum()), gradients[::-1]

    def scores(
        self, tables: Sequence[DenseTableReader], dataset: Dataset
    ) -> tuple[NDArray[np.float32], Floats]:
        """(labels (n,), scores (n, classes)) of all rows of a data set, in its order."""
        layers = [np.asarray(table.pull(), np.float64) for table in tables]
        labels: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        scores: list[Floats] = [np.zeros((0, self.classes))]
        for batch in dataset.batches(0, 1, PREDICT_BATCH_ROWS):
            labels.append(batch.labels)
            scores.append(_forward(layers, self._rows(batch))[-1])
        return np.concatenate(labels), np.concatenate(scores)

    def predict(self, tables: Sequence[DenseTableReader], dataset: Dataset) -> Floats:
        """Probabilities of the classes, float64 (n, classes), in the order of the data set."""
        return softmax(self.scores(tables, dataset)[1])

    def evaluate(self, tables: Sequence[DenseTableReader], dataset: Dataset) -> Evaluation:
        """Cross entropy and accuracy (and with two classes AUC) over a whole data set."""
        labels, scores = self.scores(tables, dataset)
        return evaluate_scores(class_targets(labels, self.classes), scores)

    def _rows(self, batch: Batch) -> Floats:
        if not isinstance(batch, DenseBatch) or batch.features.shape[1] != self.features:
            raise BadInput(f"this model takes dense rows of {self.features} numbers")
        return batch.features.astype(np.float64)


@dataclass(frozen=True)
class SoftmaxRegression(MLP):
    """Multinomial logistic regression: an `MLP` without hidden layers."""

    hidden: tuple[int, ...] = ()
    table: str = "softmax"

    def __post_init__(self) -> None:
        if self.hidden:
            raise BadInput("SoftmaxRegression has no hidden layers: use MLP")
        super().__post_init__()


def _forward(layers: Sequence[Floats], x: Floats) -> list[Floats]:
    """The inputs of every layer, and the scores as the last entry."""
    activations = [x]
    for number, weights in enumerate(layers):
        linear = activations[-1] @ weights[:-1] + weights[-1]
        last = number == len(layers) - 1
        activations.append(linear if last else np.maximum(linear, 0.0))
    return activations
