"""Independent optimisers: loops over single numbers, written from the papers, in float64.

Each class is one row's state; `step(g)` moves `w`. Nothing is shared with the product.
"""

from __future__ import annotations

import math
from typing import Protocol

from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Optimiser, Sum


class Row(Protocol):
    w: list[float]

    def step(self, g: list[float]) -> None: ...


class SumRow:
    def __init__(self, w: list[float]) -> None:
        self.w = w

    def step(self, g: list[float]) -> None:
        self.w = [w + x for w, x in zip(self.w, g, strict=True)]


class SgdRow:
    """torch.optim.SGD: momentum without dampening; buf starts as the first gradient."""

    def __init__(self, w: list[float], lr: float, momentum: float, *, nesterov: bool) -> None:
        self.w, self.lr, self.momentum, self.nesterov = w, lr, momentum, nesterov
        self.velocity: list[float] | None = None

    def step(self, g: list[float]) -> None:
        if self.velocity is None:
            self.velocity = list(g)
        else:
            self.velocity = [self.momentum * v + x for v, x in zip(self.velocity, g, strict=True)]
        direction = self.velocity
        if self.nesterov:
            direction = [x + self.momentum * v for x, v in zip(g, self.velocity, strict=True)]
        self.w = [w - self.lr * d for w, d in zip(self.w, direction, strict=True)]


class AdagradRow:
    """Duchi et al. 2011, diagonal; the epsilon outside of the root as in torch."""

    def __init__(self, w: list[float], lr: float, epsilon: float, initial: float) -> None:
        self.w, self.lr, self.epsilon = w, lr, epsilon
        self.sums = [initial] * len(w)

    def step(self, g: list[float]) -> None:
        for i, x in enumerate(g):
            self.sums[i] += x * x
            self.w[i] -= self.lr / (math.sqrt(self.sums[i]) + self.epsilon) * x


class AdamRow:
    """Kingma and Ba 2015, algorithm 1."""

    def __init__(self, w: list[float], adam: Adam) -> None:
        self.w, self.adam, self.t = w, adam, 0
        self.m, self.v = [0.0] * len(w), [0.0] * len(w)

    def step(self, g: list[float]) -> None:
        self.t += 1
        b1, b2 = self.adam.beta1, self.adam.beta2
        for i, x in enumerate(g):
            self.m[i] = b1 * self.m[i] + (1 - b1) * x
            self.v[i] = b2 * self.v[i] + (1 - b2) * x**2
            m_hat = self.m[i] / (1 - b1**self.t)
            v_hat = self.v[i] / (1 - b2**self.t)
            self.w[i] -= self.adam.lr * m_hat / (math.sqrt(v_hat) + self.adam.epsilon)


class FtrlRow:
    """McMahan et al. 2013, algorithm 1."""

    def __init__(self, w: list[float], ftrl: FTRL) -> None:
        self.w, self.ftrl = w, ftrl
        self.z, self.n = [0.0] * len(w), [0.0] * len(w)

    def step(self, g: list[float]) -> None:
        f = self.ftrl
        for i, x in enumerate(g):
            sigma = (math.sqrt(self.n[i] + x**2) - math.sqrt(self.n[i])) / f.alpha
            self.z[i] += x - sigma * self.w[i]
            self.n[i] += x**2
            if abs(self.z[i]) <= f.l1:
                self.w[i] = 0.0
            else:
                rate = (f.beta + math.sqrt(self.n[i])) / f.alpha + f.l2
                self.w[i] = -(self.z[i] - math.copysign(f.l1, self.z[i])) / rate


def row(optimiser: Optimiser, w: list[float]) -> Row:
    if isinstance(optimiser, Sum):
        return SumRow(w)
    if isinstance(optimiser, SGD):
        return SgdRow(w, optimiser.lr, 0.0, nesterov=False)
    if isinstance(optimiser, Momentum):
        return SgdRow(w, optimiser.lr, optimiser.momentum, nesterov=optimiser.nesterov)
    if isinstance(optimiser, Adagrad):
        return AdagradRow(w, optimiser.lr, optimiser.epsilon, optimiser.initial_accumulator)
    if isinstance(optimiser, Adam):
        return AdamRow(w, optimiser)
    assert isinstance(optimiser, FTRL)
    return FtrlRow(w, optimiser)
