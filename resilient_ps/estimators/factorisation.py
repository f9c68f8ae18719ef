"""Factorisation machines as estimators: of two classes, and of numbers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from resilient_ps.estimators.held import HeldSparse
from resilient_ps.estimators.shared import PSEstimator, column_keys, sparse_rows
from resilient_ps.models.factorisation_machine import (
    FactorisationMachine,
    FactorisationMachineClassifier,
    FactorisationMachineRegressor,
)
from resilient_ps.models.logistic import BIAS_KEY
from resilient_ps.models.losses import Floats
from resilient_ps.tables.optimisers import Adagrad


class _Machine(PSEstimator):
    """What both have in common."""

    def __init__(
        self,
        factors: int = 8,
        *,
        cluster: str | None = None,
        name: str | None = None,
        workers: int = 1,
        consistency: str = "bsp",
        epochs: int = 100,
        batch_size: int = 128,
        learning_rate: float = 0.1,
        l2_weights: float = 0.0,
        l2_factors: float = 0.0,
        initial_stddev: float = 0.01,
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
        self.l2_weights = l2_weights
        self.l2_factors = l2_factors
        self.initial_stddev = initial_stddev
        self.seed = seed

    def _fit(self, x: Any, y: NDArray[Any]) -> None:
        keys, rows = column_keys(x.shape[1], BIAS_KEY), sparse_rows(x, y, self.seed)

        def read(client: Any, names: Any) -> list[HeldSparse]:
            return [HeldSparse(keys, client.table(name).pull(keys)) for name in names]

        found, self.loss_ = self._fit_plan().run(
            lambda name: self._model(f"{name}/{self.seed}"),
            lambda model: model.table_names,
            rows,
            read,
        )
        columns, bias = keys[:-1], keys[-1:]
        self.weights_ = found[0].pull(columns)[:, 0]
        self.intercept_ = float(found[0].pull(bias)[0, 0])
        self.factors_ = found[1].pull(columns)
        self.n_iter_ = self.epochs

    def _predicted(self, X: Any) -> Floats:  # noqa: N803
        """What the model's own `predict` says."""
        check_is_fitted(self)
        keys = column_keys(len(self.weights_), BIAS_KEY)
        weights = np.append(self.weights_, np.float32(self.intercept_))[:, None]
        nothing = np.zeros((1, self.factors_.shape[1]), np.float32)
        factors = np.vstack([self.factors_, nothing])
        held = HeldSparse(keys, weights), HeldSparse(keys, factors)
        rows = sparse_rows(self._rows(X), None, None)
        model = self._model("held")
        return model.predict(held, rows)  # type: ignore[attr-defined, no-any-return]

    def _settings(self, table: str) -> dict[str, Any]:
        optimiser = Adagrad(lr=self.learning_rate)
        return {
            "table": table,
            "factors": self.factors,
            "weight_optimiser": optimiser,
            "factor_optimiser": optimiser,
            "initial_stddev": self.initial_stddev,
            "l2_weights": self.l2_weights,
            "l2_factors": self.l2_factors,
        }

    def _model(self, table: str) -> FactorisationMachine:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class PSFactorisationMachine(ClassifierMixin, _Machine):  # type: ignore[misc]
    """A factorisation machine of two classes (`models.FactorisationMachineClassifier`).

    X: dense or CSR; zeros are no features. `factors`: numbers in a feature's vector. `l2_weights`,
    `l2_factors`, `initial_stddev`: as the model's. `seed` gives the first factors, too. The other
    parameters are those of all estimators; see `PSEstimator`.

    After `fit`: `classes_`, `weights_` (features,), `factors_` (features, factors), `intercept_`,
    `loss_` (mean log loss of the last epoch's batches, each before its update), `n_iter_`.
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """X: (n, features); y: (n,) of two classes."""
        x, y = self._rows_and_targets(X, y)
        codes = self._encoded(y)
        if len(self.classes_) != 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass: "
                f"{len(self.classes_)} classes"
            )
        self._fit(x, codes)
        return self

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Probabilities (n, 2), in the order of `classes_`."""
        positive = self._predicted(X)
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The more probable class of each row (n,)."""
        codes = (self._predicted(X) > 0.5).astype(int)
        return np.asarray(self.classes_[codes])

    def _model(self, table: str) -> FactorisationMachineClassifier:
        return FactorisationMachineClassifier(**self._settings(table))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class PSFactorisationMachineRegressor(RegressorMixin, _Machine):  # type: ignore[misc]
    """A factorisation machine of numbers (`models.FactorisationMachineRegressor`).

    As `PSFactorisationMachine`, with the squared error. After `fit` also `mean_`, of the targets.
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """X: (n, features); y: (n,) numbers."""
        x, y = self._rows_and_targets(X, y, numeric=True)
        self.mean_ = float(np.mean(y))
        self._fit(x, y)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """The value of each row (n,)."""
        return self._predicted(X)

    def _model(self, table: str) -> FactorisationMachineRegressor:
        return FactorisationMachineRegressor(**self._settings(table), mean=self.mean_)
