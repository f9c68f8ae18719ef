"""Addresses, 64-byte SIMD lanes and prefetch for numba kernels.

Kernels take arrays and hand addresses to the functions that they call: numba passes an array as
seven values and counts references to it, which costs more than the work on one row. An address
`p` (numba's CPointer) is read and written as `p[i]`.

LLVM's own vectoriser is fragile for the short loops over one row: with a constant length it falls
back to scalar square roots and divisions, with a variable one it tests for overlaps at each row.
So kernels load, compute and store whole vectors of 64 bytes themselves: `load(p, i)` gives the
elements `i .. i + lane_count(p) - 1`, on which `+ - * /`, `root` and `shrink` work element by
element; `load_some` and `store_some` do the shorter rest of a row under a mask. LLVM splits the
vectors on machines with shorter registers.

All operations are the IEEE ones of the element type, never fused: they give the same bytes as
numpy's. Nothing checks bounds: the caller has to.
"""

# mypy: disallow-untyped-calls=False
# (much of numba's inner interface has no types)

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing import templates
from numba.extending import intrinsic, lower_builtin, models, register_model

LANE_BYTES = 64
NARROW_BYTES = 16
_WORD = ir.IntType(32)


class Lanes(types.Type):
    """The numba type of one vector of `count` elements of `dtype`."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype = dtype
        self.count = count
        super().__init__(name=f"Lanes({dtype}, {count})")


class NarrowPointer(types.CPointer):
    """The numba type of an address whose vectors have `NARROW_BYTES` bytes."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(dtype)
        self.name = f"Narrow({dtype})"


register_model(NarrowPointer)(models.PointerModel)


def lanes_of(address: Any) -> Lanes:
    """The type of the vectors at addresses of this type."""
    if isinstance(address, NarrowPointer):
        return Lanes(address.dtype, NARROW_BYTES * 8 // int(address.dtype.bitwidth))
    return Lanes(address.dtype, LANE_BYTES * 8 // int(address.dtype.bitwidth))


def _vector_type(lanes: Any) -> ir.VectorType:
    bits = lanes.dtype.bitwidth
    if not isinstance(lanes.dtype, types.Float):
        return ir.VectorType(ir.IntType(bits), lanes.count)
    return ir.VectorType(ir.FloatType() if bits == 32 else ir.DoubleType(), lanes.count)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, _vector_type(lanes))


def emitted(typed: Callable[..., Any]) -> Any:
    """A function whose calls in kernels become the LLVM code that `typed` gives for their types."""
    return intrinsic(typed)


def _letter(lanes: Any) -> str:
    return "f" if isinstance(lanes.dtype, types.Float) else "i"


def _splat(builder: Any, vector: Any, value: Any) -> Any:
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_WORD, 0))
    zeros = ir.Constant(ir.VectorType(_WORD, vector.count), None)
    return builder.shuffle_vector(first, empty, zeros)


@emitted
def address(typing_context: Any, array: Any) -> Any:
    """Of the first element of `array`, which must be C-contiguous and outlive its use."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@emitted
def narrow(typing_context: Any, address: Any) -> Any:
    """The same address for vectors of 16 bytes: for runs of less than a wide vector, which under
    a mask would often lie across two cache lines.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]

    return NarrowPointer(address.dtype)(address), generate


def _vector_pointer(builder: Any, lanes: Any, arguments: Any) -> Any:
    """To the vector at element `arguments[1]` from the address `arguments[0]`."""
    element = builder.gep(arguments[0], [arguments[1]])
    return builder.bitcast(element, _vector_type(lanes).as_pointer())


@emitted
def lane_count(typing_context: Any, address: Any) -> Any:
    """Elements of `address` in one vector; a constant of the compiled kernel."""
    count = lanes_of(address).count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.intp, count)

    return types.intp(address), generate


def _align(lanes: Any) -> int:
    return int(lanes.dtype.bitwidth) // 8


@emitted
def load(typing_context: Any, address: Any, index: Any) -> Any:
    """The vector that begins at element `index`."""
    lanes = lanes_of(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_vector_pointer(builder, lanes, arguments), align=_align(lanes))

    return lanes(address, types.intp), generate


@emitted
def store(typing_context: Any, address: Any, index: Any, vector: Any) -> Any:
    """Write `vector` from element `index` on."""
    lanes = lanes_of(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _vector_pointer(builder, lanes, arguments)
        builder.store(arguments[2], pointer, align=_align(lanes))
        return context.get_dummy_value()

    return types.void(address, types.intp, lanes), generate


def _masked(operation: str, builder: Any, lanes: Any, arguments: Any) -> Any:
    """Call llvm.masked.load or .store: (address, index, count) or (.., value)."""
    vector, wide = _vector_type(lanes), ir.VectorType(ir.IntType(64), lanes.count)
    numbers = ir.Constant(wide, list(range(lanes.count)))
    mask = builder.icmp_signed("<", numbers, _splat(builder, wide, arguments[2]))
    pointer = _vector_pointer(builder, lanes, arguments)
    alignment = ir.Constant(_WORD, _align(lanes))
    if operation == "load":
        given, result = [pointer, alignment, mask, ir.Constant(vector, None)], vector
    else:
        given, result = [arguments[3], pointer, alignment, mask], ir.VoidType()
    element = f"{_letter(lanes)}{lanes.dtype.bitwidth}"
    name = f"llvm.masked.{operation}.v{lanes.count}{element}.p0"
    function_type = ir.FunctionType(result, [value.type for value in given])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, given)


@emitted
def load_some(typing_context: Any, address: Any, index: Any, count: Any) -> Any:
    """As `load`, but only the first `count` elements; the others are 0 and not touched."""
    lanes = lanes_of(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _masked("load", builder, lanes, arguments)

    return lanes(address, types.intp, types.intp), generate


@emitted
def store_some(typing_context: Any, address: Any, index: Any, count: Any, vector: Any) -> Any:
    """As `store`, but only the first `count` elements; the others are not touched."""
    lanes = lanes_of(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _masked("store", builder, lanes, arguments)
        return context.get_dummy_value()

    return types.void(address, types.intp, types.intp, lanes), generate


@emitted
def spread(typing_context: Any, address: Any, value: Any) -> Any:
    """A vector for `address` whose elements all are `value` (converted to its dtype)."""
    lanes = lanes_of(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, _vector_type(lanes), arguments[1])

    return lanes(address, lanes.dtype), generate


def _prefetcher(for_write: int) -> Any:
    def typed(typing_context: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.gep(arguments[0], [arguments[1]])
            byte_pointer = ir.IntType(8).as_pointer()
            function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, _WORD, _WORD, _WORD])
            function = cgutils.get_or_insert_function(
                builder.module, function_type, "llvm.prefetch.p0"
            )
            keep_in_all_levels, data = 3, 1
            flags = [ir.Constant(_WORD, flag) for flag in (for_write, keep_in_all_levels, data)]
            builder.call(function, [builder.bitcast(pointer, byte_pointer), *flags])
            return context.get_dummy_value()

        return types.void(address, types.intp), generate

    return emitted(typed)


prefetch_read = _prefetcher(0)  # (address, index): ask for the cache line of this element
prefetch_write = _prefetcher(1)  # (address, index): the same, to write it


def _add_operator(operation: Any, float_name: str, integer_name: str) -> None:
    # Registered directly: an `overload` would compile a function for each use of the operator.
    class OnLanes(templates.AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if isinstance(args[0], Lanes) and args[0] == args[1]:
                return templates.signature(args[0], *args)
            return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_float = isinstance(signature.return_type.dtype, types.Float)
        return getattr(builder, float_name if is_float else integer_name)(*arguments)

    templates.infer_global(operation)(OnLanes)
    lower_builtin(operation, Lanes, Lanes)(generate)


_add_operator(operator.add, "fadd", "add")
_add_operator(operator.sub, "fsub", "sub")
_add_operator(operator.mul, "fmul", "mul")
_add_operator(operator.truediv, "fdiv", "sdiv")


@emitted
def root(typing_context: Any, x: Any) -> Any:
    """The correctly rounded square roots of a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = _vector_type(x)
        name = f"llvm.sqrt.v{x.count}f{x.dtype.bitwidth}"
        function_type = ir.FunctionType(vector, [vector])
        function = cgutils.get_or_insert_function(builder.module, function_type, name)
        return builder.call(function, arguments)

    return x(x), generate


@emitted
def shrink(typing_context: Any, x: Any, by: Any) -> Any:
    """Move each element of `x` towards 0 by that of `by` >= 0, at most to 0; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_value, by_value = arguments
        zero = ir.Constant(_vector_type(x), None)
        below = builder.fadd(x_value, by_value)
        minus_by = builder.fsub(zero, by_value)
        low = builder.select(builder.fcmp_ordered("<", x_value, minus_by), below, zero)
        above = builder.fcmp_unordered(">", x_value, by_value)
        return builder.select(above, builder.fsub(x_value, by_value), low)

    return x(x, by), generate
