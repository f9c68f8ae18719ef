"""Initial values in compiled code: see `initialisers` for what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilient_ps.tables.compiled import part
from resilient_ps.tables.parameters import Int

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MEAN_OF_SUM = 12 * 32767.5


@part
def mix(x: Any) -> Any:
    """`hashing.mix64` for kernels: uint64 -> uint64."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@part
def sum_of_four(x: Any) -> Int:
    low = np.uint64(0xFFFF)
    total = (x & low) + ((x >> np.uint64(16)) & low)
    return np.int64(total + ((x >> np.uint64(32)) & low) + (x >> np.uint64(48)))


@part
def fill_row(
    out: Any, at: Int, dim: Int, key: Any, seed: Any, kind: Int, a: float, b: float
) -> None:
    """Write the initial values of the row `key` to `out[at : at + dim]` (`out`: an address)."""
    if kind <= 1:
        for column in range(at, at + dim):
            out[column] = a
        return
    state = mix(key ^ seed)
    for column in range(at, at + dim):
        state += _GOLDEN
        x = mix(state)
        if kind == 2:
            out[column] = a + b * (np.float64(x >> np.uint64(11)) * 2.0**-53)
            continue
        total = sum_of_four(x)
        for _ in range(2):
            state += _GOLDEN
            total += sum_of_four(mix(state))
        out[column] = a * ((np.float64(total) - _MEAN_OF_SUM) * 2.0**-16)
