"""The optimisers' formulas, and one step over a run of values. Called by the kernels.

The formulas are written in the order in which numpy would evaluate the text in `optimisers.py`;
nothing is fused or reordered, so that a server's result is reproducible byte for byte.

`h[i]` is an optimiser's i-th hyperparameter in the table's dtype, in every element of a vector.
Adam's rates change with the row's count of steps: `set_adam_rates` puts them where `h` finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from resilient_ps.tables.compiled import part
from resilient_ps.tables.lanes import Vector, emitted, for_vectors
from resilient_ps.tables.parameters import FORMULA_NAMES, NUMBERS, Int

Slots = tuple[Vector, ...]

ADAM_RATE, ADAM_ROOT = 6, 7  # where `set_adam_rates` writes, beyond Adam's own hyperparameters


class Hyperparameters:
    """Vectors of the hyperparameters, loaded as a formula asks for them."""

    def __init__(self, builder: Any, base: Any, count: int) -> None:
        self._builder, self._base, self._count = builder, base, count

    def __getitem__(self, i: int) -> Vector:
        pointer = self._builder.gep(self._base, [ir.Constant(ir.IntType(64), i)])
        return Vector.repeat(self._builder, self._builder.load(pointer), self._count)


def add(h: Hyperparameters, w: Vector, g: Vector) -> Slots:
    return (w + g,)


def sgd(h: Hyperparameters, w: Vector, g: Vector) -> Slots:
    return (w - h[0] * g,)


def momentum(h: Hyperparameters, w: Vector, g: Vector, b: Vector) -> Slots:
    b = h[1] * b + g
    return w - h[0] * b, b


def nesterov(h: Hyperparameters, w: Vector, g: Vector, b: Vector) -> Slots:
    b = h[1] * b + g
    return w - h[0] * (g + h[1] * b), b


def adagrad(h: Hyperparameters, w: Vector, g: Vector, a: Vector) -> Slots:
    a = a + g * g
    return w - h[0] * g / (a.root() + h[1]), a


def adam(h: Hyperparameters, w: Vector, g: Vector, m: Vector, v: Vector) -> Slots:
    m = h[2] * m + h[4] * g
    v = h[3] * v + h[5] * g * g
    return w - h[ADAM_RATE] * m / (v.root() / h[ADAM_ROOT] + h[1]), m, v


def ftrl(h: Hyperparameters, w: Vector, g: Vector, z: Vector, n: Vector) -> Slots:
    alpha, beta, l1, l2 = h[0], h[1], h[2], h[3]
    old_root = n.root()
    n = n + g * g
    root = n.root()
    z = z + (g - (root - old_root) / alpha * w)
    return -(z.shrink(l1) / ((beta + root) / alpha + l2)), z, n


# In the order of their numbers, which kernels get; the last part of each is its count of slots.
FORMULAS: dict[str, tuple[Callable[..., Slots], int]] = {
    "sum": (add, 0),
    "sgd": (sgd, 0),
    "momentum": (momentum, 1),
    "nesterov": (nesterov, 1),
    "adagrad": (adagrad, 1),
    "adam": (adam, 2),
    "ftrl": (ftrl, 2),
}
assert tuple(FORMULAS) == FORMULA_NAMES


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
def set_adam_rates(state: Any, steps_at: Int, hyper: Any, h: Any) -> None:
    """Count a step at `state[steps_at]`, and correct the rates in `h` for it, in float64."""
    state[steps_at] += 1
    steps = int(state[steps_at])
    h[ADAM_RATE] = hyper[0] / (1.0 - power(hyper[2], steps))
    h[ADAM_ROOT] = np.sqrt(1.0 - power(hyper[3], steps))


@emitted
def step(
    typing_context: Any, number: Any, values: Any, at: Any, state: Any, first: Any, second: Any,
    grads: Any, grad_at: Any, n: Any, h: Any,
) -> Any:  # fmt: skip
    """One step of formula `number` on the n values from `values[at]` on.

    The gradient is from `grads[grad_at]` on, the slots of state from `state[first]` and
    `state[second]` on; `h` are the hyperparameters in the table's dtype. All arrays are addresses.
    Integers can only be summed.
    """
    floats = isinstance(values.dtype, types.Float)
    formulas = FORMULAS if floats else {"sum": FORMULAS["sum"]}

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        done = builder.append_basic_block("done")
        switch = builder.switch(arguments[0], done)
        for name, (formula, slots) in formulas.items():
            block = builder.append_basic_block(name)
            switch.add_case(ir.Constant(ir.IntType(64), NUMBERS[name]), block)
            builder.position_at_end(block)
            _emit_step(builder, formula, slots, arguments[1:])
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    index = types.intp
    return (
        types.void(index, values, index, state, index, index, grads, index, index, h),
        generate,
    )


def _emit_step(
    builder: Any, formula: Callable[..., Slots], slots: int, arguments: list[Any]
) -> None:
    values, at, state, first, second, grads, grad_at, n, h = arguments

    def body(i: Any, count: int) -> None:
        targets = [(values, at), (state, first), (state, second)][: 1 + slots]
        places = [(base, builder.add(start, i)) for base, start in targets]
        w, *old = (Vector.load(builder, base, index, count) for base, index in places)
        g = Vector.load(builder, grads, builder.add(grad_at, i), count)
        new = formula(Hyperparameters(builder, h, count), w, g, *old)
        for vector, (base, index) in zip(new, places, strict=True):
            vector.store(base, index)

    for_vectors(builder, values.type.pointee, n, body)


@emitted
def add_run(typing_context: Any, total: Any, at: Any, grads: Any, grad_at: Any, n: Any) -> Any:
    """`total[at : at + n] += grads[grad_at : grad_at + n]`, of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, start, *gradient_and_n = arguments
        unused = [base, start, start]
        _emit_step(builder, add, 0, [base, start, *unused, *gradient_and_n, base])
        return context.get_dummy_value()

    return types.void(total, types.intp, grads, types.intp, types.intp), generate


@emitted
def copy_run(typing_context: Any, source: Any, source_at: Any, out: Any, at: Any, n: Any) -> Any:
    """`out[at : at + n] = source[source_at : source_at + n]`, of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, start, target, target_start, length = arguments

        def body(i: Any, count: int) -> None:
            vector = Vector.load(builder, base, builder.add(start, i), count)
            vector.store(target, builder.add(target_start, i))

        for_vectors(builder, base.type.pointee, length, body)
        return context.get_dummy_value()

    return types.void(source, types.intp, out, types.intp, types.intp), generate
