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
from resilient_ps.models.api import DenseTable, DenseTableReader, TableOpener, Worker
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

    @property
    def table_names(self) -> tuple[str, ...]:
        """Of the layers, from the first to the last."""
        return tuple(f"{self.table}/{layer}" for layer in range(len(self.shapes)))

    def open(self, opener: TableOpener) -> list[DenseTable]:
        """The tables of the layers, created if they do not exist."""
        return [
            opener.dense_table(
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
    ) -> tuple[float, list[NDArray[np.floating]]]:
        """Summed over the batch's rows: cross entropy, and its gradient per table.

        Products of matrices are computed in the weights' precision, losses in float64.
        """
        targets = class_targets(batch.labels, self.classes)
        layers = [np.asarray(w) for w in weights]
        activations = forward(layers, self.rows(batch))
        scores = activations[-1].astype(np.float64)
        slope = score_slope(scores, targets).astype(layers[-1].dtype)
        gradients: list[NDArray[np.floating]] = []
        for layer in reversed(range(len(layers))):
            below = activations[layer]
            gradients.append(layer_gradient(below, slope))
            if layer > 0:
                slope = slope_below(layers[layer], slope, below)
        return float(cross_entropies(scores, targets).sum()), gradients[::-1]

    def scores(
        self, tables: Sequence[DenseTableReader], dataset: Dataset
    ) -> tuple[NDArray[np.float32], Floats]:
        """(labels (n,), scores (n, classes)) of all rows of a data set, in its order."""
        layers = [np.asarray(table.pull()) for table in tables]
        labels: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        scores: list[Floats] = [np.zeros((0, self.classes))]
        for batch in dataset.batches(0, 1, PREDICT_BATCH_ROWS):
            labels.append(batch.labels)
            scores.append(forward(layers, self.rows(batch))[-1].astype(np.float64))
        return np.concatenate(labels), np.concatenate(scores)

    def predict(self, tables: Sequence[DenseTableReader], dataset: Dataset) -> Floats:
        """Probabilities of the classes, float64 (n, classes), in the order of the data set."""
        return softmax(self.scores(tables, dataset)[1])

    def evaluate(self, tables: Sequence[DenseTableReader], dataset: Dataset) -> Evaluation:
        """Cross entropy and accuracy (and with two classes AUC) over a whole data set."""
        labels, scores = self.scores(tables, dataset)
        return evaluate_scores(class_targets(labels, self.classes), scores)

    def rows(self, batch: Batch) -> NDArray[np.float32]:
        """The features of a batch, float32 (n, features). Raises `BadInput` for other data."""
        if not isinstance(batch, DenseBatch) or batch.features.shape[1] != self.features:
            raise BadInput(f"this model takes dense rows of {self.features} numbers")
        return batch.features


@dataclass(frozen=True)
class SoftmaxRegression(MLP):
    """Multinomial logistic regression: an `MLP` without hidden layers."""

    hidden: tuple[int, ...] = ()
    table: str = "softmax"

    def __post_init__(self) -> None:
        if self.hidden:
            raise BadInput("SoftmaxRegression has no hidden layers: use MLP")
        super().__post_init__()


# One layer at a time: what a network computes in one process is made of these, and what its stages
# compute in several.


def layer_outputs(
    weights: NDArray[np.floating], below: NDArray[np.floating]
) -> NDArray[np.floating]:
    """(n, outputs) of inputs (n, inputs), before ReLU; `weights` (inputs + 1, outputs)."""
    return np.asarray(below @ weights[:-1] + weights[-1])


def score_slope(scores: Floats, targets: NDArray[np.int64]) -> Floats:
    """The gradient of the summed cross entropy by the scores, (n, classes)."""
    slope = softmax(scores)
    slope[np.arange(len(targets)), targets] -= 1.0
    return slope


def layer_gradient(
    below: NDArray[np.floating], slope: NDArray[np.floating]
) -> NDArray[np.floating]:
    """The gradient by a layer's weights, from its inputs and that by its outputs."""
    return np.vstack([below.T @ slope, slope.sum(axis=0)])


def slope_below(
    weights: NDArray[np.floating], slope: NDArray[np.floating], below: NDArray[np.floating]
) -> NDArray[np.floating]:
    """The gradient by what the layer below gives out before its ReLU."""
    return np.asarray((slope @ weights[:-1].T) * (below > 0))


def forward(
    layers: Sequence[NDArray[np.floating]], x: NDArray[np.floating]
) -> list[NDArray[np.floating]]:
    """The inputs of every layer, and the scores as the last entry."""
    activations = [x]
    for number, weights in enumerate(layers):
        linear = layer_outputs(weights, activations[-1])
        last = number == len(layers) - 1
        activations.append(linear if last else np.maximum(linear, 0.0))
    return activations
