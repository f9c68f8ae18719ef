"""Losses and their gradients, in float64 for sums over a batch; plain functions of arrays."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput

Floats = NDArray[np.float64]
Reduction = Literal["mean", "sum"]


def sigmoid(margins: Floats) -> Floats:
    """1 / (1 + exp(-margin)), without overflow."""
    half = np.exp(-np.abs(margins))
    return np.where(margins >= 0, 1.0, half) / (1.0 + half)


def log_losses(margins: Floats, targets: Floats) -> Floats:
    """Logistic loss per row, from margins (log odds) and targets 0 or 1; never infinite."""
    return np.maximum(margins, 0.0) - margins * targets + np.log1p(np.exp(-np.abs(margins)))


def binary_targets(labels: NDArray[np.float32]) -> Floats:
    """Labels as targets: positive is 1, zero and negative are 0 (so 0/1 and -1/+1 both work).

    Raises `BadInput` where a label is missing (NaN).
    """
    if np.isnan(labels).any():
        raise BadInput("a row has no label: training and evaluation need one in every row")
    return (labels > 0).astype(np.float64)


def number_targets(labels: NDArray[np.float32]) -> Floats:
    """Labels as they are, in float64. Raises `BadInput` where a label is missing (NaN)."""
    if np.isnan(labels).any():
        raise BadInput("a row has no label: training and evaluation need one in every row")
    return labels.astype(np.float64)


def class_targets(labels: NDArray[np.float32], classes: int) -> NDArray[np.int64]:
    """Labels as class numbers 0 .. classes - 1; raises `BadInput` for any other."""
    with np.errstate(invalid="ignore"):
        numbers = labels.astype(np.int64)
    wrong = (numbers != labels) | (numbers < 0) | (numbers >= classes)
    if wrong.any():
        raise BadInput(f"label {labels[wrong][0]} is not a class number in 0 .. {classes - 1}")
    return numbers


def softmax(scores: Floats) -> Floats:
    """Rows of probabilities (n, classes) of rows of scores, without overflow."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def cross_entropies(scores: Floats, targets: NDArray[np.int64]) -> Floats:
    """Cross entropy per row of scores (n, classes) and class numbers (n,)."""
    highest = scores.max(axis=1)
    total = np.log(np.exp(scores - highest[:, None]).sum(axis=1)) + highest
    return np.asarray(total - scores[np.arange(len(targets)), targets])


def row_weight(rows: int, reduction: Reduction) -> float:
    """What one row counts in the gradient of a batch."""
    return 1.0 if reduction == "sum" else 1.0 / max(rows, 1)
