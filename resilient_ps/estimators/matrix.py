"""Matrix factorisation as an estimator: rows are (user, item), targets are ratings."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from resilient_ps.data import SparseArrayDataset
from resilient_ps.estimators.held import HeldSparse
from resilient_ps.estimators.shared import PSEstimator
from resilient_ps.models.losses import Floats
from resilient_ps.models.matrix_factorisation import MatrixFactorisation

Ids = NDArray[np.int64]


class PSMatrixFactorisation(RegressorMixin, PSEstimator):  # type: ignore[misc]
    """Matrix factorisation with biases (`models.MatrixFactorisation`) on a cluster.

    X: (n, 2) whole numbers, the user and the item of each rating; they need not be contiguous.
    `factors`, `l2` and `initial_stddev` are the model's, `learning_rate` its `lr`. `seed` gives the
    first factors, too. A user or an item that was not there in `fit` counts as an average one. The
    other parameters are those of all estimators; see `PSEstimator`.

    After `fit`: `users_` and `items_` (ids, ascending), `user_factors_` and `item_factors_` (a row
    for each, the last column the bias), `mean_`, `loss_` (half the squared error, mean of the last
    epoch), `n_iter_`.
    """

    def __init__(
        self,
        factors: int = 16,
        *,
        cluster: str | None = None,
        name: str | None = None,
        workers: int = 1,
        consistency: str = "bsp",
        epochs: int = 20,
        batch_size: int = 1024,
        learning_rate: float = 0.02,
        l2: float = 0.1,
        initial_stddev: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.factors = factors
        self.cluster = cluster
        self.name = name
        self.workers = workers
        self.consistency = consistency
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.l2 = l2
        self.initial_stddev = initial_stddev
        self.seed = seed

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """X: (n, 2) ids; y: (n,) ratings."""
        x, y = validate_data(self, X, y, dtype=np.int64, y_numeric=True)
        self._check_ids(x)
        self.mean_ = float(np.mean(y))
        self.users_, self.items_ = np.unique(x[:, 0]), np.unique(x[:, 1])
        keys = self.users_.astype(np.uint64), self.items_.astype(np.uint64)

        def read(client: Any, names: Any) -> list[NDArray[np.float32]]:
            return [client.table(n).pull(k) for n, k in zip(names, keys, strict=True)]

        found, self.loss_ = self._fit_plan().run(
            lambda name: self._model(f"{name}/{self.seed}"),
            lambda model: model.table_names,
            pairs(x, y, self.seed),
            read,
        )
        self.user_factors_, self.item_factors_ = found
        self.n_iter_ = self.epochs
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """The rating of each (user, item) (n,)."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.int64)
        self._check_ids(x)
        held = (
            HeldSparse(self.users_.astype(np.uint64), self.user_factors_),
            HeldSparse(self.items_.astype(np.uint64), self.item_factors_),
        )
        return self._model("held").predict(held, pairs(x, None, None))

    def _check_ids(self, x: Ids) -> None:
        if x.shape[1] != 2:
            raise ValueError(f"X has {x.shape[1]} columns: give two, the user and the item")
        if x.min() < 0:
            raise ValueError("Negative values in data passed to X: ids are 0 and more")

    def _model(self, table: str) -> MatrixFactorisation:
        return MatrixFactorisation(
            table, self.factors, self.learning_rate, self.l2, self.mean_, self.initial_stddev
        )


def pairs(x: Ids, y: NDArray[Any] | None, seed: int | None) -> SparseArrayDataset:
    """A rating a row: two features, the user and the item, each with its id as the key."""
    labels = np.zeros(len(x), np.float32) if y is None else np.asarray(y, np.float32)
    offsets = 2 * np.arange(len(x) + 1, dtype=np.int64)
    return SparseArrayDataset(
        labels, offsets, x.reshape(-1).astype(np.uint64), None, shuffle_seed=seed
    )
