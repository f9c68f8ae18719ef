"""Emitting LLVM code for runs of values: addresses, vectors and prefetch for numba kernels.

Kernels take arrays and hand addresses to the functions that they call: numba passes an array as
seven values and counts references to it, which costs more than the work on one row. An address
`p` (numba's CPointer) is read and written as `p[i]`.

LLVM's own vectoriser is fragile for the short loops over one row: with a constant length it falls
back to scalar square roots and divisions, with a variable one it tests for overlaps at each row.
So the loops over a row are emitted here, as vectors of 64 bytes and then, for the rest, one each
of 32, 16, .. bytes as needed. What is computed with them is written as a formula of `Vector`s,
which runs while a kernel is compiled and takes numba no time.

All operations are the IEEE ones of the element type, never fused: they give the same bytes as
numpy's. Nothing checks bounds: the caller has to.
"""

# mypy: disallow-untyped-calls=False
# (much of numba's inner interface has no types)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

VECTOR_BYTES = 64
_WORD = ir.IntType(32)
_INDEX = ir.IntType(64)


def emitted(typed: Callable[..., Any]) -> Any:
    """A function whose calls in kernels become the LLVM code that `typed` gives for their types."""
    return intrinsic(typed)


@emitted
def address(typing_context: Any, array: Any) -> Any:
    """Of the first element of `array`, which must be C-contiguous and outlive its use."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


def _prefetcher(for_write: int) -> Any:
    def typed(typing_context: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte_pointer = ir.IntType(8).as_pointer()
            pointer = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), byte_pointer)
            keep_in_all_levels, data = 3, 1
            flags = [ir.Constant(_WORD, flag) for flag in (for_write, keep_in_all_levels, data)]
            call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *flags])
            return context.get_dummy_value()

        return types.void(address, types.intp), generate

    return emitted(typed)


prefetch_read = _prefetcher(0)  # (address, index): ask for the cache line of this element
prefetch_write = _prefetcher(1)  # (address, index): the same, to write it


def call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """A call of one of LLVM's own functions."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments)


class Vector:
    """Some neighbouring values in a register, while code for them is being emitted."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value
        self._is_float = not isinstance(value.type.element, ir.IntType)

    @staticmethod
    def load(builder: Any, base: Any, index: Any, count: int) -> Vector:
        """`count` elements from `base[index]` on."""
        element = base.type.pointee
        pointer = builder.bitcast(
            builder.gep(base, [index]), ir.VectorType(element, count).as_pointer()
        )
        return Vector(builder, builder.load(pointer, align=_bytes_of(element)))

    def store(self, base: Any, index: Any) -> None:
        """Write the elements to `base[index]` and after."""
        pointer = self.builder.bitcast(
            self.builder.gep(base, [index]), self.value.type.as_pointer()
        )
        self.builder.store(self.value, pointer, align=_bytes_of(base.type.pointee))

    @staticmethod
    def repeat(builder: Any, value: Any, count: int) -> Vector:
        """`count` times the number `value`."""
        empty = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
        first = builder.insert_element(empty, value, ir.Constant(_WORD, 0))
        zeros = ir.Constant(ir.VectorType(_WORD, count), None)
        return Vector(builder, builder.shuffle_vector(first, empty, zeros))

    def _with(self, value: Any) -> Vector:
        return Vector(self.builder, value)

    def __add__(self, other: Vector) -> Vector:
        operation = self.builder.fadd if self._is_float else self.builder.add
        return self._with(operation(self.value, other.value))

    def __sub__(self, other: Vector) -> Vector:
        return self._with(self.builder.fsub(self.value, other.value))

    def __mul__(self, other: Vector) -> Vector:
        return self._with(self.builder.fmul(self.value, other.value))

    def __truediv__(self, other: Vector) -> Vector:
        return self._with(self.builder.fdiv(self.value, other.value))

    def __neg__(self) -> Vector:
        """`0 - self`, so that the negative of 0 is 0."""
        zero = ir.Constant(self.value.type, None)
        return self._with(self.builder.fsub(zero, self.value))

    def root(self) -> Vector:
        """The correctly rounded square roots."""
        vector = self.value.type
        letters = f"v{vector.count}f{8 * _bytes_of(vector.element)}"
        return self._with(call(self.builder, f"llvm.sqrt.{letters}", vector, [self.value]))

    def shrink(self, by: Vector) -> Vector:
        """Each element moved towards 0 by that of `by` >= 0, at most to 0; NaN stays NaN."""
        builder, x = self.builder, self.value
        below = builder.fcmp_ordered("<", x, (-by).value)
        above = builder.fcmp_unordered(">", x, by.value)
        low = builder.select(below, (self + by).value, ir.Constant(x.type, None))
        return self._with(builder.select(above, (self - by).value, low))


def _bytes_of(element: Any) -> int:
    if isinstance(element, ir.IntType):
        return int(element.width) // 8
    return 4 if isinstance(element, ir.FloatType) else 8


def for_vectors(builder: Any, element: Any, n: Any, body: Callable[[Any, int], None]) -> None:
    """Emit `body(index, count)` for vectors that cover `0 .. n - 1` of elements of this type.

    A loop over the largest vectors, then at most one each of half, a quarter, .. of their size.
    """
    count = VECTOR_BYTES // _bytes_of(element)
    index = cgutils.alloca_once_value(builder, ir.Constant(_INDEX, 0))
    head, loop, rest = (builder.append_basic_block(name) for name in ("head", "loop", "rest"))
    builder.branch(head)
    builder.position_at_end(head)
    builder.cbranch(_fits(builder, index, count, n), loop, rest)
    builder.position_at_end(loop)
    _emit_one(builder, index, count, body)
    builder.branch(head)
    builder.position_at_end(rest)
    while count > 1:
        count //= 2
        with builder.if_then(_fits(builder, index, count, n)):
            _emit_one(builder, index, count, body)


def _fits(builder: Any, index: Any, count: int, n: Any) -> Any:
    end = builder.add(builder.load(index), ir.Constant(_INDEX, count))
    return builder.icmp_signed("<=", end, n)


def _emit_one(builder: Any, index: Any, count: int, body: Callable[[Any, int], None]) -> None:
    at = builder.load(index)
    body(at, count)
    builder.store(builder.add(at, ir.Constant(_INDEX, count)), index)
