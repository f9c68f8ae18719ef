"""A worker whose tables are numpy arrays in this process: enough to run a model without a cluster.

The optimisers are written here once more, plainly, from their papers.
"""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.tables.initialisers import Normal, Uniform, Zeros
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Sum


def step(optimiser, w, state, g):
    """One optimiser step on float64 arrays, in place; `state` is a dict of arrays like `w`."""
    if isinstance(optimiser, Sum):
        w += g
    elif isinstance(optimiser, SGD):
        w -= optimiser.lr * g
    elif isinstance(optimiser, Adagrad):
        state["a"] += g * g
        w -= optimiser.lr * g / (np.sqrt(state["a"]) + optimiser.epsilon)
    elif isinstance(optimiser, FTRL):
        n, z = state["n"], state["z"]
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / optimiser.alpha
        z += g - sigma * w
        n += g * g
        shrunk = z - np.sign(z) * optimiser.l1
        rate = (optimiser.beta + np.sqrt(n)) / optimiser.alpha + optimiser.l2
        w[...] = np.where(np.abs(z) <= optimiser.l1, 0.0, -shrunk / rate)
    else:
        raise AssertionError(f"the local worker has no {optimiser}")


def fresh_state(shape):
    return {name: np.zeros(shape) for name in ("a", "n", "z")}


class Done:
    def __init__(self, value):
        self._value = value

    def result(self):
        return self._value


class LocalTable:
    def __init__(self, dim, optimiser, initialiser=None):
        self._dim = dim
        self._optimiser = optimiser
        self._initialiser = initialiser
        self._rows = {}
        self.keys_pushed = []

    def _initial(self, key):
        if isinstance(self._initialiser, Normal):
            return np.random.default_rng(key).normal(0, self._initialiser.stddev, self._dim)
        return np.zeros(self._dim)

    def pull(self, keys):
        rows = [
            self._rows[int(k)][0] if int(k) in self._rows else self._initial(int(k)) for k in keys
        ]
        return np.array(rows, np.float32).reshape(len(keys), self._dim)

    def push(self, keys, grads):
        assert keys.dtype == np.uint64
        assert grads.dtype == np.float32
        assert grads.shape == (len(keys), self._dim)
        self.keys_pushed.append(keys)
        for key, grad in zip(keys.tolist(), grads.astype(np.float64), strict=True):
            if key not in self._rows:
                self._rows[key] = (self._initial(key), fresh_state(self._dim))
            step(self._optimiser, *self._rows[key], grad)

    def pull_async(self, keys):
        return Done(self.pull(keys))

    def push_async(self, keys, grads):
        return Done(self.push(keys, grads))


class LocalDenseTable:
    def __init__(self, name, shape, optimiser, initialiser):
        self.values = np.zeros(shape)
        if isinstance(initialiser, Uniform):
            seed = list(name.encode())
            self.values = np.random.default_rng(seed).uniform(
                initialiser.low, initialiser.high, shape
            )
        self._optimiser = optimiser
        self._state = fresh_state(shape)

    def pull(self):
        return self.values.astype(np.float32)

    def push(self, grad):
        assert grad.dtype == np.float32
        assert grad.shape == self.values.shape
        step(self._optimiser, self.values, self._state, grad.astype(np.float64))


class LocalWorker:
    """Rank 0 of 1; with `tables` of another worker it continues that one's model."""

    rank, of = 0, 1

    def __init__(self):
        self.clock = 0
        self.cursors = []
        self.tables = {}

    def batches(self, dataset, *, batch_size, epochs=1, schedule="static", data_shards=None):
        for batch in dataset.batches(self.rank, self.of, batch_size, epochs):
            yield batch
            self.cursors.append(batch.cursor)
            self.clock += 1

    def sparse_table(self, name, *, dim, optimiser, dtype="float32", initialiser=None):
        return self.tables.setdefault(name, LocalTable(dim, optimiser, initialiser))

    def dense_table(self, name, *, shape, optimiser, dtype="float32", initialiser=None):
        made = LocalDenseTable(name, shape, optimiser, initialiser or Zeros())
        return self.tables.setdefault(name, made)


@pytest.fixture
def worker():
    return LocalWorker()
