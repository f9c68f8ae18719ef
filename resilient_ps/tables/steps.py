"""The optimisers' formulas, and one step over a run of values. Called by the kernels.

The formulas compute with `lanes.py`'s vectors and are written in the order in which numpy would
evaluate the text in `optimisers.py`; nothing is fused or reordered, so that a server's result is
reproducible byte for byte.

All arrays come as addresses. A run of n values has its first at `values[at]`. Its gradient begins
at `grads[grad_at]`, its slots of state at `state[first]` and `state[second]`; `h` are the
optimiser's hyperparameters in the table's dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from resilient_ps.tables.compiled import Int, part
from resilient_ps.tables.lanes import (
    lane_count,
    load,
    load_some,
    root,
    shrink,
    spread,
    store,
    store_some,
)
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Sum

SUM, SGD_, MOMENTUM, ADAGRAD, ADAM, FTRL_ = (
    kind.kind for kind in (Sum, SGD, Momentum, Adagrad, Adam, FTRL)
)


@part
def momentum(w: Any, b: Any, g: Any, lr: Any, mu: Any) -> Any:
    b = mu * b + g
    return w - lr * b, b


@part
def nesterov(w: Any, b: Any, g: Any, lr: Any, mu: Any) -> Any:
    b = mu * b + g
    return w - lr * (g + mu * b), b


@part
def adagrad(w: Any, a: Any, g: Any, lr: Any, epsilon: Any) -> Any:
    a = a + g * g
    return w - lr * g / (root(a) + epsilon), a


@part
def adam(w: Any, m: Any, v: Any, g: Any, h: Any) -> Any:
    rate, epsilon, beta1, beta2, rest1, rest2, root_of_correction = h
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return w - rate * m / (root(v) / root_of_correction + epsilon), m, v


@part
def ftrl(w: Any, z: Any, n: Any, g: Any, h: Any) -> Any:
    alpha, beta, l1, l2, zero, _, _ = h
    square = g * g
    root_of_n = root(n)
    n = n + square
    new_root = root(n)
    z = z + (g - (new_root - root_of_n) / alpha * w)
    return zero - shrink(z, l1) / ((beta + new_root) / alpha + l2), z, n


@part
def power(base: float, exponent: Int) -> float:
    """`base ** exponent` by squaring: the same bytes on every machine, unlike a libm's."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@part
def step_sum(values: Any, at: Int, grads: Any, grad_at: Int, n: Int) -> None:
    lanes = lane_count(values)
    i = 0
    while i + lanes <= n:
        store(values, at + i, load(values, at + i) + load(grads, grad_at + i))
        i += lanes
    if i < n:
        rest = n - i
        total = load_some(values, at + i, rest) + load_some(grads, grad_at + i, rest)
        store_some(values, at + i, rest, total)


@part
def step_sgd(values: Any, at: Int, grads: Any, grad_at: Int, n: Int, h: Any) -> None:
    lanes = lane_count(values)
    lr = spread(values, h[0])
    i = 0
    while i + lanes <= n:
        store(values, at + i, load(values, at + i) - lr * load(grads, grad_at + i))
        i += lanes
    if i < n:
        rest = n - i
        w = load_some(values, at + i, rest) - lr * load_some(grads, grad_at + i, rest)
        store_some(values, at + i, rest, w)


def _step_with_one_slot(formula: Any) -> Any:
    @part
    def step(
        values: Any, at: Int, state: Any, first: Int, grads: Any, grad_at: Int, n: Int, h: Any
    ) -> None:
        lanes = lane_count(values)
        a = spread(values, h[0])
        b = spread(values, h[1])
        i = 0
        while i + lanes <= n:
            w, s = load(values, at + i), load(state, first + i)
            w, s = formula(w, s, load(grads, grad_at + i), a, b)
            store(values, at + i, w)
            store(state, first + i, s)
            i += lanes
        if i < n:
            rest = n - i
            w, s = load_some(values, at + i, rest), load_some(state, first + i, rest)
            w, s = formula(w, s, load_some(grads, grad_at + i, rest), a, b)
            store_some(values, at + i, rest, w)
            store_some(state, first + i, rest, s)

    return step


def _step_with_two_slots(formula: Any) -> Any:
    @part
    def step(
        values: Any, at: Int, state: Any, first: Int, second: Int,
        grads: Any, grad_at: Int, n: Int, h: Any,
    ) -> None:  # fmt: skip
        lanes = lane_count(values)
        i = 0
        while i + lanes <= n:
            w, s, t = load(values, at + i), load(state, first + i), load(state, second + i)
            w, s, t = formula(w, s, t, load(grads, grad_at + i), h)
            store(values, at + i, w)
            store(state, first + i, s)
            store(state, second + i, t)
            i += lanes
        if i < n:
            rest = n - i
            w = load_some(values, at + i, rest)
            s, t = load_some(state, first + i, rest), load_some(state, second + i, rest)
            w, s, t = formula(w, s, t, load_some(grads, grad_at + i, rest), h)
            store_some(values, at + i, rest, w)
            store_some(state, first + i, rest, s)
            store_some(state, second + i, rest, t)

    return step


step_momentum = _step_with_one_slot(momentum)
step_nesterov = _step_with_one_slot(nesterov)
step_adagrad = _step_with_one_slot(adagrad)
step_with_ftrl = _step_with_two_slots(ftrl)
step_with_adam = _step_with_two_slots(adam)


@part
def spread_seven(values: Any, h: Any, first: Any, last: Any) -> Any:
    return (
        spread(values, first),
        spread(values, h[1]),
        spread(values, h[2]),
        spread(values, h[3]),
        spread(values, h[4]),
        spread(values, h[5]),
        spread(values, last),
    )


@part
def step_ftrl(
    values: Any, at: Int, state: Any, first: Int, second: Int,
    grads: Any, grad_at: Int, n: Int, h: Any,
) -> None:  # fmt: skip
    lanes = spread_seven(values, h, h[0], h[6])
    step_with_ftrl(values, at, state, first, second, grads, grad_at, n, lanes)


@part
def step_adam(
    values: Any, at: Int, state: Any, first: Int, second: Int, steps_at: Int,
    grads: Any, grad_at: Int, n: Int, h: Any, hyper: Any,
) -> None:  # fmt: skip
    state[steps_at] += 1
    steps = int(state[steps_at])
    rate = hyper[0] / (1.0 - power(hyper[2], steps))
    root_of_correction = np.sqrt(1.0 - power(hyper[3], steps))
    lanes = spread_seven(values, h, rate, root_of_correction)
    step_with_adam(values, at, state, first, second, grads, grad_at, n, lanes)


def step(
    kind: int, values: Any, at: int, state: Any, first: int, second: int, steps_at: int,
    grads: Any, grad_at: int, n: int, h: Any, hyper: Any,
) -> None:  # fmt: skip
    """One step of the optimiser `kind`; for kernels only. Integers can only be summed.

    The count of steps is at `state[steps_at]`; `hyper` are the hyperparameters in float64.
    """
    raise NotImplementedError("only in compiled code")


@overload(
    step, strict=False, jit_options={"forceinline": True, "nogil": True, "error_model": "numpy"}
)
def _step(
    kind: Any, values: Any, at: Any, state: Any, first: Any, second: Any, steps_at: Any,
    grads: Any, grad_at: Any, n: Any, h: Any, hyper: Any,
) -> Any:  # fmt: skip
    return _step_of_integers if isinstance(values.dtype, types.Integer) else _step_of_floats


def _step_of_integers(
    kind: Any, values: Any, at: Any, state: Any, first: Any, second: Any, steps_at: Any,
    grads: Any, grad_at: Any, n: Any, h: Any, hyper: Any,
) -> None:  # fmt: skip
    step_sum(values, at, grads, grad_at, n)


def _step_of_floats(
    kind: Any, values: Any, at: Any, state: Any, first: Any, second: Any, steps_at: Any,
    grads: Any, grad_at: Any, n: Any, h: Any, hyper: Any,
) -> None:  # fmt: skip
    if kind == ADAGRAD:
        step_adagrad(values, at, state, first, grads, grad_at, n, h)
    elif kind == SGD_:
        step_sgd(values, at, grads, grad_at, n, h)
    elif kind == FTRL_:
        step_ftrl(values, at, state, first, second, grads, grad_at, n, h)
    elif kind == ADAM:
        step_adam(values, at, state, first, second, steps_at, grads, grad_at, n, h, hyper)
    elif kind == SUM:
        step_sum(values, at, grads, grad_at, n)
    elif hyper[2] == 0.0:
        step_momentum(values, at, state, first, grads, grad_at, n, h)
    else:
        step_nesterov(values, at, state, first, grads, grad_at, n, h)
