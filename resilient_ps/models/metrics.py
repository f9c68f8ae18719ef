"""Measures of predictions: exact AUC, log loss, accuracy; errors of predicted numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput
from resilient_ps.models.losses import cross_entropies, log_losses

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`auc` is None for more than two classes, and when only one class is present."""

    samples: int
    logloss: float
    accuracy: float
    auc: float | None


@dataclass(frozen=True, slots=True)
class RegressionEvaluation:
    """Root mean square and mean absolute error; `r2` is the share of the variance explained.

    `r2` is None where all targets are the same.
    """

    samples: int
    rmse: float
    mae: float
    r2: float | None


def auc(targets: NDArray[np.bool_], scores: Floats) -> float | None:
    """Area under the ROC curve, exact, ties counted half (Mann and Whitney's U, 1947).

    The probability that a random positive row scores above a random negative one. None when there
    is no positive or no negative row.
    """
    positives = int(np.count_nonzero(targets))
    negatives = len(targets) - positives
    if positives == 0 or negatives == 0:
        return None
    _, codes, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # Rows of equal score share the mean of their ranks
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    rank_sum = float(ranks[codes][targets].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def evaluate_margins(targets: Floats, margins: Floats) -> Evaluation:
    """Two classes: targets 0 or 1 (n,), margins = log odds (n,); accuracy at probability 1/2."""
    _check_rows(len(targets))
    positive = targets > 0
    return Evaluation(
        samples=len(targets),
        logloss=float(log_losses(margins, targets).mean()),
        accuracy=float(((margins > 0) == positive).mean()),
        auc=auc(positive, margins),
    )


def evaluate_scores(targets: NDArray[np.int64], scores: Floats) -> Evaluation:
    """Many classes: class numbers (n,), scores (n, classes)."""
    _check_rows(len(targets))
    two = scores.shape[1] == 2
    return Evaluation(
        samples=len(targets),
        logloss=float(cross_entropies(scores, targets).mean()),
        accuracy=float((scores.argmax(axis=1) == targets).mean()),
        auc=auc(targets == 1, scores[:, 1] - scores[:, 0]) if two else None,
    )


def evaluate_values(targets: Floats, values: Floats) -> RegressionEvaluation:
    """Numbers: targets (n,), predicted values (n,)."""
    _check_rows(len(targets))
    errors = values - targets
    square = float(np.mean(errors * errors))
    variance = float(np.var(targets))
    return RegressionEvaluation(
        samples=len(targets),
        rmse=float(np.sqrt(square)),
        mae=float(np.abs(errors).mean()),
        r2=1.0 - square / variance if variance > 0 else None,
    )


def _check_rows(rows: int) -> None:
    if rows == 0:
        raise BadInput("nothing to evaluate: the data set has no rows")
