"""Models as worker programs on the public API, computed with numpy; LDA with numba."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from resilient_ps.models.api import Progress
from resilient_ps.models.embedding_mlp import EmbeddingMLP
from resilient_ps.models.factorisation_machine import (
    FactorisationMachineClassifier,
    FactorisationMachineRegressor,
)
from resilient_ps.models.logistic import DenseLogisticRegression, LogisticRegression
from resilient_ps.models.matrix_factorisation import MatrixFactorisation
from resilient_ps.models.metrics import Evaluation, RegressionEvaluation, auc
from resilient_ps.models.mlp import MLP, SoftmaxRegression
from resilient_ps.models.mlp_pipeline import PipelinedMLP
from resilient_ps.models.rotating_factorisation import RotatingFactorisation

if TYPE_CHECKING:
    from resilient_ps.models.lda import LDA
    from resilient_ps.models.lda_rotation import RotatingLDA

__all__ = [
    "LDA",
    "MLP",
    "DenseLogisticRegression",
    "EmbeddingMLP",
    "Evaluation",
    "FactorisationMachineClassifier",
    "FactorisationMachineRegressor",
    "LogisticRegression",
    "MatrixFactorisation",
    "PipelinedMLP",
    "Progress",
    "RegressionEvaluation",
    "RotatingFactorisation",
    "RotatingLDA",
    "SoftmaxRegression",
    "auc",
]

# Imported when they are first asked for: a compiler is loaded with them.
_HOME_OF = {"LDA": "lda", "RotatingLDA": "lda_rotation"}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
