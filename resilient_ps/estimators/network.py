"""The multi-layer perceptron as an estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from resilient_ps.estimators.held import HeldDense
from resilient_ps.estimators.logistic import pull_dense
from resilient_ps.estimators.shared import PSEstimator, dense_rows
from resilient_ps.models import MLP
from resilient_ps.models.losses import Floats
from resilient_ps.tables.optimisers import Adagrad, Optimiser


class PSMLPClassifier(ClassifierMixin, PSEstimator):  # type: ignore[misc]
    """A multi-layer perceptron (`models.MLP`: ReLU, softmax) on a cluster.

    `hidden_layer_sizes`: widths of the hidden layers. `optimiser`: one of `resilient_ps.Adam` and
    so on in place of Adagrad with `learning_rate`. `seed` gives the first weights, too. The other
    parameters are those of all estimators; see `PSEstimator`.

    After `fit`: `classes_`, `coefs_` and `intercepts_` (of each layer, float32), `loss_` (mean
    cross entropy of the last epoch's batches, each before its update), `n_iter_` (epochs).
    """

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (64,),
        *,
        cluster: str | None = None,
        name: str | None = None,
        workers: int = 1,
        consistency: str = "bsp",
        epochs: int = 100,
        batch_size: int = 64,
        learning_rate: float = 0.05,
        optimiser: Optimiser | None = None,
        seed: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
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
        """X: (n, features), dense; y: (n,) of at least two classes."""
        x, y = self._rows_and_targets(X, y)
        codes = self._encoded(y)
        optimiser = self.optimiser or Adagrad(lr=self.learning_rate)
        layers, self.loss_ = self._fit_plan().run(
            lambda name: self._model(f"{name}/{self.seed}", x.shape[1], optimiser),
            lambda model: model.table_names,
            dense_rows(x, codes, self.seed),
            pull_dense,
        )
        self.coefs_ = [layer[:-1] for layer in layers]
        self.intercepts_ = [layer[-1] for layer in layers]
        self.n_iter_ = self.epochs
        return self

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Probabilities (n, classes), in the order of `classes_`."""
        check_is_fitted(self)
        x = self._rows(X)
        layers = [
            HeldDense(np.vstack([coefs, biases]))
            for coefs, biases in zip(self.coefs_, self.intercepts_, strict=True)
        ]
        model = self._model("held", x.shape[1], Adagrad(lr=self.learning_rate))
        return model.predict(layers, dense_rows(x, None, None))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row (n,)."""
        codes = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def _model(self, table: str, width: int, optimiser: Optimiser) -> MLP:
        hidden = tuple(int(size) for size in self.hidden_layer_sizes)
        return MLP(width, len(self.classes_), hidden, table, optimiser)
