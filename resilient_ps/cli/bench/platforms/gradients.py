"""The gradient of all problems in numpy, for platforms that have no models of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilient_ps.cli.bench.platforms.problems import Weights

Array = NDArray[np.float32]


def gradients(weights: Weights, x: Array, labels: Array) -> Weights:
    """Of the log loss, summed over the rows, in float32."""
    inputs = [x]
    for number, layer in enumerate(weights):
        linear = inputs[-1] @ layer[:-1] + layer[-1]
        last = number == len(weights) - 1
        inputs.append(linear if last else np.maximum(linear, np.float32(0)))
    slope = _slope(inputs[-1], labels)
    found: Weights = []
    for number in reversed(range(len(weights))):
        found.append(np.vstack([inputs[number].T @ slope, slope.sum(axis=0)]))
        if number:
            slope = (slope @ weights[number][:-1].T) * (inputs[number] > 0)
    return found[::-1]


def _slope(scores: Array, labels: Array) -> Array:
    """Predicted probabilities less the targets."""
    if scores.shape[1] == 1:
        return np.asarray(1 / (1 + np.exp(-scores)) - labels[:, None], np.float32)
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    slope = raised / raised.sum(axis=1, keepdims=True)
    slope[np.arange(len(labels)), labels.astype(np.int64)] -= 1
    return np.asarray(slope, np.float32)
