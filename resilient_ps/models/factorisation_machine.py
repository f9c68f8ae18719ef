"""Factorisation machines of second order on hashed sparse features, as worker programs.

S. Rendle, "Factorization machines", ICDM 2010. The prediction for a row x is

    mean + bias + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j

where the last sum is half of sum_f (sum_i v_if x_i)^2 - sum_i (v_if x_i)^2: linear in the row's
length. A worker pulls the weights and factors of the distinct keys of a batch, and pushes the
gradient of the batch's loss. What optimises is the tables' affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.batch import Batch, SparseBatch
from resilient_ps.data.dataset import Dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import BadInput
from resilient_ps.models.api import Table, TableOpener, TableReader, Worker
from resilient_ps.models.logistic import BIAS_KEY
from resilient_ps.models.losses import (
    Floats,
    Reduction,
    binary_targets,
    log_losses,
    number_targets,
    row_weight,
    sigmoid,
)
from resilient_ps.models.metrics import (
    Evaluation,
    RegressionEvaluation,
    evaluate_margins,
    evaluate_values,
)
from resilient_ps.models.training import OnBatch, train_batches
from resilient_ps.tables.initialisers import Normal
from resilient_ps.tables.optimisers import Adagrad, Optimiser

MAX_FACTORS = 1024
PREDICT_BATCH_ROWS = 4096


class FactorTables(NamedTuple):
    """Of weights (dim 1; the bias is a key of it) and factors."""

    weights: Table
    factors: Table


FactorReaders: TypeAlias = tuple[TableReader, TableReader]
"""The same, to be read."""


@dataclass(frozen=True)
class FactorisationMachine:
    """What classifier and regressor have in common.

    `table`: the sparse tables are `{table}/weights` and `{table}/factors`. `factors`: numbers in a
    feature's vector, 1 to 1024; they begin as normal numbers of `initial_stddev` (were they zero,
    they would stay zero). `l2_weights`, `l2_factors`: every row adds this half square of its own
    features' weights and factors to its loss, so that rare features are shrunk less often, as in
    libFM. `reduction`: gradients of a batch's rows are averaged or summed.
    """

    table: str = "fm"
    factors: int = 8
    weight_optimiser: Optimiser = field(default_factory=lambda: Adagrad(lr=0.05))
    factor_optimiser: Optimiser = field(default_factory=lambda: Adagrad(lr=0.05))
    initial_stddev: float = 0.01
    l2_weights: float = 0.0
    l2_factors: float = 0.0
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        if not 1 <= self.factors <= MAX_FACTORS:
            raise BadInput(f"factors={self.factors} is not in 1 .. {MAX_FACTORS}")
        if self.l2_weights < 0 or self.l2_factors < 0:
            raise BadInput(
                f"l2_weights={self.l2_weights}, l2_factors={self.l2_factors}: at least 0"
            )

    @property
    def table_names(self) -> tuple[str, str]:
        """Of `FactorTables`, in their order."""
        return f"{self.table}/weights", f"{self.table}/factors"

    def open(self, opener: TableOpener) -> FactorTables:
        """The tables, created if they do not exist."""
        weights, factors = self.table_names
        return FactorTables(
            opener.sparse_table(weights, dim=1, optimiser=self.weight_optimiser),
            opener.sparse_table(
                factors,
                dim=self.factors,
                optimiser=self.factor_optimiser,
                initialiser=Normal(self.initial_stddev),
            ),
        )

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
    ) -> FactorTables:
        """Train on the worker's part of the data; `on_batch` is called after each push.

        The rest is as in `Worker.batches`.
        """
        tables = self.open(worker)
        train_batches(
            worker,
            dataset,
            lambda batch: self.step(tables, batch),
            batch_size=batch_size,
            epochs=epochs,
            schedule=schedule,
            data_shards=data_shards,
            on_batch=on_batch,
        )
        return tables

    def step(self, tables: FactorTables, batch: Batch) -> float:
        """Pull, compute and push for one batch; returns its loss, summed over the rows."""
        design = Design.of(batch)
        weights, factors = _pulled(tables, design)
        loss, by_weight, by_factor = self.loss_and_gradients(design, weights, factors)
        scale = row_weight(len(batch), self.reduction)
        pushes = (
            tables.weights.push_async(
                design.with_bias, (by_weight * scale).astype(np.float32)[:, None]
            ),
            tables.factors.push_async(design.keys, (by_factor * scale).astype(np.float32)),
        )
        for push in pushes:
            push.result()
        return loss

    def loss_and_gradients(
        self, design: Design, weights: Floats, factors: Floats
    ) -> tuple[float, Floats, Floats]:
        """Summed over the rows: the loss without L2, its gradients with L2 by weight and factor.

        `weights` (keys + 1,) has the bias last, `factors` is (keys, k); so are the gradients.
        """
        sums = design.row_sums(factors)
        margins = design.margins(weights, factors, sums)
        losses, slopes = self._losses_and_slopes(margins, design.labels)
        by_weight, by_factor = design.gradients(slopes, factors, sums)
        rows_of_key = np.diff(design.key_starts)
        by_weight[:-1] += self.l2_weights * rows_of_key * weights[:-1]
        by_factor += (self.l2_factors * rows_of_key)[:, None] * factors
        return float(losses.sum()), by_weight, by_factor

    def margins(
        self, tables: FactorReaders, dataset: Dataset
    ) -> tuple[NDArray[np.float32], Floats]:
        """(labels, predictions before any link function) of all rows, in the data set's order."""
        labels: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        margins: list[Floats] = [np.zeros(0)]
        of_weights, of_factors = tables
        for batch in dataset.batches(0, 1, PREDICT_BATCH_ROWS):
            design = Design.of(batch)
            weights = np.asarray(of_weights.pull(design.with_bias)[:, 0], np.float64)
            factors = np.asarray(of_factors.pull(design.keys), np.float64)
            margins.append(design.margins(weights, factors, design.row_sums(factors)))
            labels.append(batch.labels)
        return np.concatenate(labels), np.concatenate(margins)

    def _losses_and_slopes(
        self, margins: Floats, labels: NDArray[np.float32]
    ) -> tuple[Floats, Floats]:
        """Per row: the loss, and its derivative by the margin."""
        raise NotImplementedError


@dataclass(frozen=True)
class FactorisationMachineClassifier(FactorisationMachine):
    """Two classes, log loss: positive labels are the one class, zero and negative the other."""

    def predict(self, tables: FactorReaders, dataset: Dataset) -> Floats:
        """Probabilities of the positive class, float64 (n,), in the order of the data set."""
        return sigmoid(self.margins(tables, dataset)[1])

    def evaluate(self, tables: FactorReaders, dataset: Dataset) -> Evaluation:
        """Log loss, accuracy and AUC over a whole data set with labels."""
        labels, margins = self.margins(tables, dataset)
        return evaluate_margins(binary_targets(labels), margins)

    def _losses_and_slopes(
        self, margins: Floats, labels: NDArray[np.float32]
    ) -> tuple[Floats, Floats]:
        targets = binary_targets(labels)
        return log_losses(margins, targets), sigmoid(margins) - targets


@dataclass(frozen=True)
class FactorisationMachineRegressor(FactorisationMachine):
    """Numbers, half the squared error.

    `mean` is what is predicted before anything has been learnt: that of the training labels, say.
    """

    mean: float = 0.0

    def predict(self, tables: FactorReaders, dataset: Dataset) -> Floats:
        """Values, float64 (n,), in the order of the data set."""
        return self.margins(tables, dataset)[1] + self.mean

    def evaluate(self, tables: FactorReaders, dataset: Dataset) -> RegressionEvaluation:
        """Errors over a whole data set with labels."""
        labels, margins = self.margins(tables, dataset)
        return evaluate_values(number_targets(labels), margins + self.mean)

    def _losses_and_slopes(
        self, margins: Floats, labels: NDArray[np.float32]
    ) -> tuple[Floats, Floats]:
        errors = margins + self.mean - number_targets(labels)
        return errors * errors / 2.0, errors


def _pulled(tables: FactorTables, design: Design) -> tuple[Floats, Floats]:
    pulls = tables.weights.pull_async(design.with_bias), tables.factors.pull_async(design.keys)
    weights, factors = (np.asarray(pull.result(), np.float64) for pull in pulls)
    return weights[:, 0], factors


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """A batch as a sparse matrix whose columns are its distinct keys.

    Entries lie row by row; `by_key` is the order in which they lie key by key, of which key c has
    the places `key_starts[c] : key_starts[c + 1]`. A key that repeats in a row is one entry.
    """

    labels: NDArray[np.float32]
    keys: NDArray[np.uint64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: Floats
    row_offsets: NDArray[np.int64]
    by_key: NDArray[np.int64]
    key_starts: NDArray[np.int64]

    @classmethod
    def of(cls, batch: Batch) -> Design:
        """Raises `BadInput` for dense rows."""
        if not isinstance(batch, SparseBatch):
            raise BadInput("a factorisation machine takes sparse rows, not dense ones")
        rows, values, offsets = batch.row_numbers(), batch.values, batch.row_offsets
        entry_keys = batch.keys
        by_key = np.argsort(entry_keys, kind="stable")
        if _repeats(entry_keys, rows, by_key).any():
            rows, entry_keys, values = _merged(rows, entry_keys, values)
            offsets = np.searchsorted(rows, np.arange(len(batch) + 1)).astype(np.int64)
            by_key = np.argsort(entry_keys, kind="stable")
        ordered = entry_keys[by_key]
        first = np.ones(len(ordered), np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        columns = np.empty(len(ordered), np.int64)
        columns[by_key] = np.cumsum(first) - 1
        return cls(
            labels=batch.labels,
            keys=ordered[first],
            rows=rows,
            columns=columns,
            values=np.asarray(values, np.float64),
            row_offsets=offsets,
            by_key=by_key,
            key_starts=np.append(np.flatnonzero(first), len(ordered)),
        )

    @property
    def with_bias(self) -> NDArray[np.uint64]:
        """The distinct keys, and that of the bias."""
        return np.append(self.keys, np.uint64(BIAS_KEY))

    def row_sums(self, factors: Floats) -> Floats:
        """Of each row, sum_i v_i x_i: (rows, k)."""
        sums = np.zeros((len(self.labels), factors.shape[1]))
        starts, there = self.row_offsets[:-1], np.diff(self.row_offsets) > 0
        if there.any():
            weighted = factors[self.columns] * self.values[:, None]
            sums[there] = np.add.reduceat(weighted, starts[there], axis=0)
        return sums

    def margins(self, weights: Floats, factors: Floats, sums: Floats) -> Floats:
        """Of each row, bias, linear part and pairs; `sums` as `row_sums` says."""
        squares = np.einsum("cf,cf->c", factors, factors)
        terms = self.values * weights[self.columns]
        terms -= 0.5 * self.values * self.values * squares[self.columns]
        alone = np.bincount(self.rows, weights=terms, minlength=len(self.labels))
        return np.asarray(alone + weights[-1] + 0.5 * np.einsum("rf,rf->r", sums, sums))

    def gradients(self, slopes: Floats, factors: Floats, sums: Floats) -> tuple[Floats, Floats]:
        """By weight (keys + 1,), the bias last, and by factor (keys, k)."""
        if not len(self.keys):
            return np.array([slopes.sum()]), np.zeros_like(factors)
        order, starts = self.by_key, self.key_starts[:-1]
        rows, values = self.rows[order], self.values[order]
        by_value = slopes[rows] * values
        by_weight = np.add.reduceat(by_value, starts)
        with_others = np.add.reduceat(by_value[:, None] * sums[rows], starts, axis=0)
        with_itself = np.add.reduceat(by_value * values, starts)
        return np.append(by_weight, slopes.sum()), with_others - with_itself[:, None] * factors


def _repeats(
    keys: NDArray[np.uint64], rows: NDArray[np.int64], by_key: NDArray[np.int64]
) -> NDArray[np.bool_]:
    keys, rows = keys[by_key], rows[by_key]
    return np.asarray((keys[1:] == keys[:-1]) & (rows[1:] == rows[:-1]))


def _merged(
    rows: NDArray[np.int64], keys: NDArray[np.uint64], values: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.float32]]:
    """Entries of the same row and key, added; row by row."""
    order = np.lexsort((keys, rows))
    rows, keys = rows[order], keys[order]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (rows[1:] != rows[:-1]) | (keys[1:] != keys[:-1])
    starts = np.flatnonzero(first)
    return rows[starts], keys[starts], np.add.reduceat(values[order], starts)
