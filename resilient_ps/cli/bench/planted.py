"""Data with a planted model behind them, for benches: synthetic, repeatable, and learnable."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data import ArrayDataset, SparseArrayDataset

_FRACTION_OF_KEYS = 1.5  # keys are drawn as u ** this: small ones come more often


def sparse_rows(rows: int, keys: int, per_row: int, seed: int) -> SparseArrayDataset:
    """Rows of `per_row` features of value 1 among `keys`, labels drawn from a logistic model.

    The model's weights depend on `keys` alone, so that rows of two seeds are of the same problem.
    """
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    weights = np.random.Generator(np.random.PCG64(keys)).standard_normal(keys)
    numbers = (rng.random((rows, per_row)) ** _FRACTION_OF_KEYS * keys).astype(np.int64)
    labels = _drawn(weights[numbers].sum(axis=1), rng)
    offsets = per_row * np.arange(rows + 1, dtype=np.int64)
    return SparseArrayDataset(labels, offsets, numbers.reshape(-1).astype(np.uint64))


def dense_two_classes(rows: int, width: int, seed: int) -> ArrayDataset:
    """Rows of `width` standard normal numbers, labels 0 and 1 drawn from a logistic model."""
    rng = np.random.Generator(np.random.PCG64([seed, 2]))
    features = rng.standard_normal((rows, width), np.float32)
    weights = rng.standard_normal(width, np.float32) * np.float32(4.0 / np.sqrt(width))
    return ArrayDataset(features, _drawn(features @ weights, rng))


def dense_classes(rows: int, width: int, classes: int, seed: int) -> ArrayDataset:
    """Rows between 0 and 1, as grey values of pictures are, of `classes` classes.

    A class is a mixture of four patterns under much noise: a linear model is right often, a network
    with a hidden layer more often.
    """
    rng = np.random.Generator(np.random.PCG64([seed, 3]))
    patterns = rng.random((4 * classes, width), np.float32)
    chosen = rng.integers(0, len(patterns), rows)
    features = rng.random((rows, width), np.float32)
    features += patterns[chosen] * np.float32(0.35)
    features /= np.float32(1.35)
    return ArrayDataset(features, (chosen % classes).astype(np.float32))


def _drawn(margins: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.float32]:
    """Labels 0 or 1 of these log odds."""
    chances = 1.0 / (1.0 + np.exp(-margins))
    return np.asarray(rng.random(len(margins)) < chances, np.float32)
