"""Matrix factorisation with biases, by stochastic gradient descent, as a worker program.

The prediction for user u and item i is mean + b_u + b_i + <p_u, q_i> (Koren, Bell, Volinsky,
"Matrix factorization techniques for recommender systems", IEEE Computer 2009). Every rating adds
half its squared error to the loss, and l2 / 2 times the squares of the parameters that it uses.

A worker pulls the rows of the users and items of a batch, goes through the batch rating by rating
as one process would, and pushes what its rows have changed by: tables only add (`Sum`). So a step
of the descent sees the steps before it, and many of them cost one request. What several workers do
to the same row at the same time is added, too. In `rotating_factorisation` that does not happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.batch import Batch, SparseBatch
from resilient_ps.data.dataset import Dataset
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import BadInput
from resilient_ps.models.api import SparseOpener, Table, TableReader, Worker
from resilient_ps.models.losses import Floats, number_targets
from resilient_ps.models.metrics import RegressionEvaluation, evaluate_values
from resilient_ps.models.training import OnBatch, train_batches
from resilient_ps.tables.initialisers import Normal
from resilient_ps.tables.optimisers import Sum

MAX_FACTORS = 1023
PREDICT_BATCH_ROWS = 8192


class MatrixTables(NamedTuple):
    """Of users and of items: rows of factors, and the bias as the last column."""

    users: Table
    items: Table


MatrixReaders: TypeAlias = tuple[TableReader, TableReader]
"""The same, to be read."""


@dataclass(frozen=True)
class MatrixFactorisation:
    """On sparse rows of two features, the user and then the item; the label is the rating.

    `table`: the sparse tables are `{table}/users` and `{table}/items`. `factors`: 1 to 1,023; they
    and the biases begin as normal numbers of `initial_stddev`. `mean` is what is predicted before
    anything has been learnt: that of the training labels.
    """

    table: str = "mf"
    factors: int = 16
    lr: float = 0.02
    l2: float = 0.1
    mean: float = 0.0
    initial_stddev: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.factors <= MAX_FACTORS:
            raise BadInput(f"factors={self.factors} is not in 1 .. {MAX_FACTORS}")
        if not (self.lr > 0 and self.l2 >= 0):
            raise BadInput(f"lr={self.lr}, l2={self.l2}: above 0 and at least 0")

    @property
    def table_names(self) -> tuple[str, str]:
        """Of `MatrixTables`, in their order."""
        return f"{self.table}/users", f"{self.table}/items"

    def open(self, opener: SparseOpener) -> MatrixTables:
        """The tables, created if they do not exist."""
        users, items = (
            opener.sparse_table(
                name,
                dim=self.factors + 1,
                optimiser=Sum(),
                initialiser=Normal(self.initial_stddev),
            )
            for name in self.table_names
        )
        return MatrixTables(users, items)

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
    ) -> MatrixTables:
        """Train on the worker's part of the ratings; `on_batch` is called after each push.

        The rest is as in `Worker.batches`. Progress tells half the squared errors as the loss.
        """
        tables = self.open(worker)
        train_batches(
            worker,
            dataset,
            lambda batch: self.step(tables, Cell.of(batch)),
            batch_size=batch_size,
            epochs=epochs,
            schedule=schedule,
            data_shards=data_shards,
            on_batch=on_batch,
        )
        return tables

    def step(
        self, tables: MatrixTables, cell: Cell, order: NDArray[np.int64] | None = None
    ) -> float:
        """Pull, go through the ratings in this order, and push; their loss, summed."""
        from resilient_ps.models.factor_sgd import descend  # only who trains needs the compiler

        if not len(cell.ratings):
            return 0.0
        held = tables.users.pull_async(cell.user_keys), tables.items.pull_async(cell.item_keys)
        before = [np.asarray(pull.result(), np.float64) for pull in held]
        users, items = (rows.copy() for rows in before)
        order = np.arange(len(cell.ratings)) if order is None else order
        squares = descend(
            cell.users, cell.items, cell.ratings, order, users, items, self.mean, self.lr, self.l2
        )
        pushes = (
            tables.users.push_async(cell.user_keys, (users - before[0]).astype(np.float32)),
            tables.items.push_async(cell.item_keys, (items - before[1]).astype(np.float32)),
        )
        for push in pushes:
            push.result()
        return float(squares) / 2.0

    def predict(self, tables: MatrixReaders, dataset: Dataset) -> Floats:
        """Ratings, float64 (n,), in the order of the data set."""
        return self._predicted(tables, dataset)[1]

    def evaluate(self, tables: MatrixReaders, dataset: Dataset) -> RegressionEvaluation:
        """Errors over a whole data set with ratings."""
        labels, values = self._predicted(tables, dataset)
        return evaluate_values(number_targets(labels), values)

    def _predicted(
        self, tables: MatrixReaders, dataset: Dataset
    ) -> tuple[NDArray[np.float32], Floats]:
        labels: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        values: list[Floats] = [np.zeros(0)]
        for batch in dataset.batches(0, 1, PREDICT_BATCH_ROWS):
            keys = user_and_item_keys(batch)
            users, items = (
                np.asarray(table.pull(of), np.float64)
                for table, of in zip(tables, keys, strict=True)
            )
            products = np.einsum("nf,nf->n", users[:, :-1], items[:, :-1])
            values.append(self.mean + users[:, -1] + items[:, -1] + products)
            labels.append(batch.labels)
        return np.concatenate(labels), np.concatenate(values)


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Some ratings, with their distinct users and items.

    Rating i is `ratings[i]` (float64), of the user `user_keys[users[i]]` and likewise the item.
    """

    user_keys: NDArray[np.uint64]
    item_keys: NDArray[np.uint64]
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    ratings: Floats

    @classmethod
    def of(cls, batch: Batch) -> Cell:
        """Raises `BadInput` for rows of another kind, or without a rating."""
        return cls.made(*user_and_item_keys(batch), number_targets(batch.labels))

    @classmethod
    def made(cls, users: NDArray[np.uint64], items: NDArray[np.uint64], ratings: Floats) -> Cell:
        """Of the keys of each rating's user and item."""
        user_keys, user_codes = np.unique(users, return_inverse=True)
        item_keys, item_codes = np.unique(items, return_inverse=True)
        return cls(user_keys, item_keys, user_codes, item_codes, ratings)


def user_and_item_keys(batch: Batch) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first and the second key of each row. Raises `BadInput` for rows of another kind."""
    if not isinstance(batch, SparseBatch):
        raise BadInput("matrix factorisation takes sparse rows of (user, item), not dense ones")
    lengths = np.diff(batch.row_offsets)
    if (lengths != 2).any():
        row = int(np.flatnonzero(lengths != 2)[0])
        raise BadInput(
            f"row {row} of a batch has {lengths[row]} features: matrix factorisation takes two, "
            "the user and then the item"
        )
    if (batch.values != 1).any():
        raise BadInput(
            "matrix factorisation takes user and item as categories (features of value 1), not as "
            "numbers: name both columns as categorical"
        )
    return batch.keys[0::2], batch.keys[1::2]
