"""Logistic regression as an estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from resilient_ps.estimators.held import HeldSparse
from resilient_ps.estimators.shared import PSEstimator, column_keys, dense_rows, sparse_rows
from resilient_ps.models import DenseLogisticRegression, LogisticRegression, SoftmaxRegression
from resilient_ps.models.logistic import BIAS_KEY
from resilient_ps.models.losses import Floats, sigmoid, softmax
from resilient_ps.tables.optimisers import Adagrad, Optimiser


class PSLogisticRegression(ClassifierMixin, PSEstimator):  # type: ignore[misc]
    """Logistic regression on a cluster: `fit(X, y)`, `predict`, `predict_proba`, `score`.

    Dense X: two classes by `models.DenseLogisticRegression`, more by `models.SoftmaxRegression`.
    Sparse X (CSR): `models.LogisticRegression`, which pulls and pushes the features of a batch
    only; with more than two classes one model for each class against the others. `optimiser`: one
    of `resilient_ps.FTRL` and so on in place of Adagrad; FTRL brings L1 and L2 with it. The other
    parameters are those of all estimators; see `PSEstimator`.

    After `fit`: `classes_`, `coef_` (1 or classes, features) float32, `intercept_`, `loss_` (mean
    loss of the last epoch's batches, each before its update), `n_iter_` (epochs).
    """

    def __init__(
        self,
        *,
        cluster: str | None = None,
        name: str | None = None,
        workers: int = 1,
        consistency: str = "bsp",
        epochs: int = 50,
        batch_size: int = 128,
        learning_rate: float = 0.5,
        optimiser: Optimiser | None = None,
        seed: int = 0,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.workers = workers
        self.consistency = consistency
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.optimiser = optimiser
        self.seed = seed

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """X: (n, features), dense or sparse; y: (n,) of at least two classes."""
        x, y = self._rows_and_targets(X, y)
        codes = self._encoded(y)
        if sparse.issparse(x):
            self._fit_sparse(x, codes)
        else:
            self._fit_dense(x, codes)
        self.n_iter_ = self.epochs
        return self

    def _fit_dense(self, x: NDArray[np.float32], codes: NDArray[np.int64]) -> None:
        rows, (_, width) = dense_rows(x, codes, self.seed), x.shape
        optimiser, classes = self._optimiser(), len(self.classes_)

        def make(name: str) -> Any:
            if classes == 2:
                return DenseLogisticRegression(width, f"{name}/weights", optimiser)
            return SoftmaxRegression(width, classes, (), f"{name}/weights", optimiser)

        def names(model: Any) -> list[str]:
            return [model.table] if classes == 2 else list(model.table_names)

        (weights,), self.loss_ = self._fit_plan().run(make, names, rows, pull_dense)
        weights = weights.reshape(width + 1, -1)
        self.coef_, self.intercept_ = weights[:-1].T.copy(), weights[-1].copy()

    def _fit_sparse(self, x: Any, codes: NDArray[np.int64]) -> None:
        width, plan, optimiser = x.shape[1], self._fit_plan(), self._optimiser()
        keys = column_keys(width, BIAS_KEY)
        classes = range(len(self.classes_)) if len(self.classes_) > 2 else (1,)
        found, losses = [], []
        for number in classes:
            rows = sparse_rows(x, codes == number, self.seed)
            (weights,), loss = plan.run(
                lambda name: LogisticRegression(f"{name}/weights", optimiser, "mean"),
                lambda model: [model.table],
                rows,
                lambda client, names: [client.table(each).pull(keys) for each in names],
            )
            found.append(HeldSparse(keys, weights))
            losses.append(loss)
        columns = np.arange(width, dtype=np.uint64)
        self.coef_ = np.stack([each.pull(columns)[:, 0] for each in found])
        bias = np.array([BIAS_KEY], np.uint64)
        self.intercept_ = np.array([each.pull(bias)[0, 0] for each in found])
        self.loss_ = float(np.mean(losses))
        self.one_against_the_others_ = len(self.classes_) > 2

    def _optimiser(self) -> Optimiser:
        return self.optimiser or Adagrad(lr=self.learning_rate)

    def decision_function(self, X: Any) -> Floats:  # noqa: N803
        """Log odds (n,) of the second class; scores (n, classes) where there are more."""
        check_is_fitted(self)
        x = self._rows(X)
        scores = np.asarray(x @ self.coef_.T.astype(np.float64) + self.intercept_)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Probabilities (n, classes), in the order of `classes_`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            positive = sigmoid(scores)
            return np.stack([1 - positive, positive], axis=1)
        if getattr(self, "one_against_the_others_", False):
            each = sigmoid(scores)
            return np.asarray(each / each.sum(axis=1, keepdims=True))
        return softmax(scores)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row (n,)."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def pull_dense(client: Any, names: Any) -> list[NDArray[np.float32]]:
    """Whole dense tables."""
    return [client.table(name).pull() for name in names]
