"""Models as worker programs on the public API, computed with numpy."""

from resilient_ps.models.api import Progress
from resilient_ps.models.logistic import DenseLogisticRegression, LogisticRegression
from resilient_ps.models.metrics import Evaluation, auc
from resilient_ps.models.mlp import MLP, SoftmaxRegression

__all__ = [
    "MLP",
    "DenseLogisticRegression",
    "Evaluation",
    "LogisticRegression",
    "Progress",
    "SoftmaxRegression",
    "auc",
]
