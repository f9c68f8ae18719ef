"""Estimators in the style of scikit-learn, which train on a cluster.

They come with `pip install "resilient-ps[sklearn]"`. What is learnt is pulled at the end of `fit`:
a fitted estimator is arrays, can be stored as others are, and predicts without a cluster.
"""

from __future__ import annotations

try:
    import sklearn  # noqa: F401
except ImportError:
    raise ImportError(
        'the estimators need scikit-learn: pip install "resilient-ps[sklearn]"'
    ) from None

from resilient_ps.estimators.factorisation import (
    PSFactorisationMachine,
    PSFactorisationMachineRegressor,
)
from resilient_ps.estimators.logistic import PSLogisticRegression
from resilient_ps.estimators.matrix import PSMatrixFactorisation
from resilient_ps.estimators.network import PSMLPClassifier

__all__ = [
    "PSFactorisationMachine",
    "PSFactorisationMachineRegressor",
    "PSLogisticRegression",
    "PSMLPClassifier",
    "PSMatrixFactorisation",
]
