"""Logistic regression as a worker program: on hashed sparse features, and on dense ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.batch import Batch, DenseBatch, SparseBatch
from resilient_ps.data.dataset import Dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import BadInput
from resilient_ps.hashing import hash_text
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
from resilient_ps.models.training import OnBatch, train_batches
from resilient_ps.tables.optimisers import FTRL, Adagrad, Optimiser

BIAS_KEY = hash_text(b"resilient_ps bias")
PREDICT_BATCH_ROWS = 8192
BLOCK_BYTES = 1 << 20  # of rows that are read twice, one after the other: they fit into L2
BLOCK_ROWS_MIN = 16


@dataclass(frozen=True)
class LogisticRegression:
    """Two-class logistic regression on sparse features: one weight per key, and a bias.

    `table` is the name of the sparse table (dim 1) with the weights. A worker pulls the distinct
    keys of a batch, and pushes the gradient of the batch's log loss, summed over its rows
    (`reduction="sum"`) or averaged. L1 and L2 are FTRL's own: with "sum", an `l2` of 1/C asks for
    what scikit-learn's `C` does. Positive labels are the one class, zero and negative the other.
    """

    table: str = "logistic"
    optimiser: Optimiser = field(default_factory=lambda: FTRL(alpha=0.2, l2=1.0))
    reduction: Reduction = "sum"

    def open(self, opener: TableOpener) -> Table:
        """The table of weights, created if it does not exist."""
        return opener.sparse_table(self.table, dim=1, optimiser=self.optimiser)

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
    ) -> Table:
        """Train on the worker's part of the data; `on_batch` is called after each push.

        The rest is as in `Worker.batches`.
        """
        table = self.open(worker)

        def step(batch: Batch) -> float:
            design = _Design.of(batch)
            weights = table.pull(design.keys)[:, 0]
            loss, gradient = design.loss_and_gradient(weights, binary_targets(batch.labels))
            gradient *= row_weight(len(batch), self.reduction)
            table.push(design.keys, gradient.astype(np.float32)[:, None])
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
        return table

    def margins(self, table: TableReader, dataset: Dataset) -> tuple[NDArray[np.float32], Floats]:
        """(labels, log odds) of all rows of a data set, in its order."""
        labels: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        margins: list[Floats] = [np.zeros(0)]
        for batch in dataset.batches(0, 1, PREDICT_BATCH_ROWS):
            design = _Design.of(batch)
            margins.append(design.margins(table.pull(design.keys)[:, 0]))
            labels.append(batch.labels)
        return np.concatenate(labels), np.concatenate(margins)

    def predict(self, table: TableReader, dataset: Dataset) -> Floats:
        """Probabilities of the positive class, float64 (n,), in the order of the data set."""
        return sigmoid(self.margins(table, dataset)[1])

    def evaluate(self, table: TableReader, dataset: Dataset) -> Evaluation:
        """Log loss, accuracy and AUC over a whole data set with labels."""
        labels, margins = self.margins(table, dataset)
        return evaluate_margins(binary_targets(labels), margins)


@dataclass(frozen=True, slots=True, eq=False)
class _Design:
    """A batch as a matrix whose columns are its distinct keys, the bias among them."""

    keys: NDArray[np.uint64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float32]
    bias_column: int
    row_count: int

    @classmethod
    def of(cls, batch: Batch) -> _Design:
        if not isinstance(batch, SparseBatch):
            raise BadInput("this model takes sparse rows: use DenseLogisticRegression for dense")
        # The bias is looked up as one key more, not as one entry more in every row
        with_bias = np.append(batch.keys, np.uint64(BIAS_KEY))
        keys, columns = np.unique(with_bias, return_inverse=True)
        codes = columns.astype(np.int64)
        rows = batch.row_numbers()
        return cls(keys, rows, codes[:-1], batch.values, int(codes[-1]), len(batch))

    def margins(self, weights: NDArray[np.float32]) -> Floats:
        products = self.values * weights[self.columns].astype(np.float64)
        sums = np.bincount(self.rows, weights=products, minlength=self.row_count)
        return np.asarray(sums + float(weights[self.bias_column]))

    def loss_and_gradient(
        self, weights: NDArray[np.float32], targets: Floats
    ) -> tuple[float, Floats]:
        """Log loss summed over the rows, and its gradient (one number per key)."""
        margins = self.margins(weights)
        residuals = sigmoid(margins) - targets
        products = self.values * residuals[self.rows]
        sums = np.bincount(self.columns, weights=products, minlength=len(self.keys))
        gradient = np.asarray(sums, np.float64)
        gradient[self.bias_column] += residuals.sum()
        return float(log_losses(margins, targets).sum()), gradient


@dataclass(frozen=True)
class DenseLogisticRegression:
    """Two-class logistic regression on rows of `features` numbers, with a bias.

    The weights are one dense table of shape (features + 1,), the bias last. `l2` is added to the
    gradient: per row of the data with `reduction="sum"` it is scikit-learn's 1 / (C * rows).
    Products with the rows are computed in float32, as they come; losses in float64.
    """

    features: int
    table: str = "dense-logistic"
    optimiser: Optimiser = field(default_factory=lambda: Adagrad(lr=0.1))
    l2: float = 0.0
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        if self.features < 1 or self.l2 < 0:
            raise BadInput(f"features={self.features}, l2={self.l2}: at least 1 and at least 0")

    def open(self, opener: TableOpener) -> DenseTable:
        """The table of weights, created if it does not exist."""
        return opener.dense_table(self.table, shape=(self.features + 1,), optimiser=self.optimiser)

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
    ) -> DenseTable:
        """Train on the worker's part of the data; `on_batch` is called after each push.

        The rest is as in `Worker.batches`.
        """
        table = self.open(worker)

        def step(batch: Batch) -> float:
            loss, gradient = self.loss_and_gradient(table.pull(), batch)
            table.push((gradient * row_weight(len(batch), self.reduction)).astype(np.float32))
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
        return table

    def loss_and_gradient(self, weights: NDArray[np.float32], batch: Batch) -> tuple[float, Floats]:
        """Summed over the batch's rows: log loss, and its gradient with that of L2 (d + 1,)."""
        x, targets = self._rows(batch), binary_targets(batch.labels)
        margins, residuals = np.empty(len(batch)), np.empty(len(batch))
        products = np.zeros(self.features, np.float32)
        step = max(BLOCK_ROWS_MIN, BLOCK_BYTES // (4 * self.features))
        for start in range(0, len(batch), step):  # rows are in the cache when they are read again
            part = slice(start, start + step)
            rows = x[part]
            margins[part] = _affine(rows, weights)
            # Half a tanh: what a probability near 0 loses in digits, a residual does not need
            residuals[part] = 0.5 + 0.5 * np.tanh(0.5 * margins[part]) - targets[part]
            products += residuals[part].astype(np.float32) @ rows
        gradient = np.append(products.astype(np.float64), residuals.sum())
        if self.l2:
            gradient[:-1] += self.l2 * len(batch) * weights[:-1]
        return float(log_losses(margins, targets).sum()), gradient

    def margins(
        self, table: DenseTableReader, dataset: Dataset
    ) -> tuple[NDArray[np.float32], Floats]:
        """(labels, log odds) of all rows of a data set, in its order."""
        weights = table.pull()
        labels: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        margins: list[Floats] = [np.zeros(0)]
        for batch in dataset.batches(0, 1, PREDICT_BATCH_ROWS):
            labels.append(batch.labels)
            margins.append(_affine(self._rows(batch), weights))
        return np.concatenate(labels), np.concatenate(margins)

    def predict(self, table: DenseTableReader, dataset: Dataset) -> Floats:
        """Probabilities of the positive class, float64 (n,), in the order of the data set."""
        return sigmoid(self.margins(table, dataset)[1])

    def evaluate(self, table: DenseTableReader, dataset: Dataset) -> Evaluation:
        """Log loss, accuracy and AUC over a whole data set with labels."""
        labels, margins = self.margins(table, dataset)
        return evaluate_margins(binary_targets(labels), margins)

    def _rows(self, batch: Batch) -> NDArray[np.float32]:
        if not isinstance(batch, DenseBatch) or batch.features.shape[1] != self.features:
            raise BadInput(f"this model takes dense rows of {self.features} numbers")
        return batch.features


def _affine(x: NDArray[np.float32], weights: NDArray[np.float32]) -> Floats:
    return np.asarray((x @ weights[:-1]).astype(np.float64) + float(weights[-1]))
