"""Vectors of eight float32 numbers as values inside compiled functions: sums of a loop stay in vector registers.

Numba vectorises only innermost loops, asks before each of them whether its arrays overlap, and keeps partial sums of
arrays in memory. With these values a loop over components works on eight rows at a time without either. LLVM, which
comes with Numba, translates them for any processor.

    x = spread(bias)
    for c in range(k):
        x += spread(u[c]) * load(rows, c * LANES)

Places in arrays are numbers into the flat memory of C-contiguous arrays, and are not checked.

Numba's cache on disk knows changes of the file of a kernel, not of this one: remove it after a change here.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES = 8
FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning
VECTOR = ir.VectorType(ir.FloatType(), LANES)


class Lanes(types.Type):
    """Numba's type of a vector."""

    def __init__(self):
        super().__init__(name=f"lanes{LANES}")


lanes = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """A vector is one LLVM value."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, VECTOR)


def _pointer(context, builder, kind, array, place):
    """The address of the vector at a place of a flat array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), VECTOR.as_pointer())


def _shuffle(builder, a, b, order):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), LANES), order))


@intrinsic
def load(typing_context, array, place):
    """The numbers array[place : place + 8]."""

    def emit(context, builder, signature, arguments):
        return builder.load(_pointer(context, builder, signature.args[0], *arguments), align=4)

    return lanes(array, types.intp), emit


@intrinsic
def store(typing_context, array, place, value):
    """Write array[place : place + 8]."""

    def emit(context, builder, signature, arguments):
        builder.store(arguments[2], _pointer(context, builder, signature.args[0], *arguments[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), emit


@intrinsic
def prefetch(typing_context, array, place):
    """Begin to load what is at array[place], and do not wait for it."""

    def emit(context, builder, signature, arguments):
        integer, address = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [address, integer, integer, integer])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        pointer = builder.bitcast(_pointer(context, builder, signature.args[0], *arguments), address)
        builder.call(function, [pointer, *(ir.Constant(integer, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


@intrinsic
def spread(typing_context, number):
    """A vector with a number in all places."""

    def emit(context, builder, signature, arguments):
        one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), arguments[0], ir.Constant(ir.IntType(32), 0))
        return _shuffle(builder, one, one, [0] * LANES)

    return lanes(types.float32), emit


def _reduction(combine):
    """Make an intrinsic that combines all numbers of a vector."""

    @intrinsic
    def reduce(typing_context, value):
        def emit(context, builder, signature, arguments):
            (value,) = arguments
            for half in (4, 2, 1):
                other = _shuffle(builder, value, value, [(i + half) % LANES for i in range(LANES)])
                value = combine(builder, value, other)
            return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

        return types.float32(lanes), emit

    return reduce


total = _reduction(lambda builder, a, b: builder.fadd(a, b))  # the sum of a vector's numbers
largest = _reduction(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), b, a))


@intrinsic
def where_less(typing_context, a, b, yes, no):
    """By place, `yes` where a < b, and `no` elsewhere, also where one of them is NaN."""

    def emit(context, builder, signature, arguments):
        a, b, yes, no = arguments
        return builder.select(builder.fcmp_ordered("<", a, b), yes, no)

    return lanes(lanes, lanes, lanes, lanes), emit


@intrinsic
def signed(typing_context, size, sign):
    """By place, `size`, which must not be negative, with the sign of `sign`."""

    def emit(context, builder, signature, arguments):
        integers = ir.VectorType(ir.IntType(32), LANES)
        size, sign = (builder.bitcast(value, integers) for value in arguments)
        bit = builder.and_(sign, ir.Constant(integers, [1 << 31] * LANES))
        return builder.bitcast(builder.or_(size, bit), VECTOR)

    return lanes(lanes, lanes), emit


@intrinsic
def transpose(typing_context, source, begin, step, target, to, target_step):
    """target[to + j target_step + i] = source[begin + i step + j] for i, j < 8."""

    def emit(context, builder, signature, arguments):
        source, begin, step, target, to, target_step = arguments

        def at(kind, array, first, stride, i):
            place = builder.add(first, builder.mul(stride, ir.Constant(stride.type, i)))
            return _pointer(context, builder, kind, array, place)

        rows = [builder.load(at(signature.args[0], source, begin, step, i), align=4) for i in range(LANES)]
        # Exchange single numbers of neighbouring rows, then pairs of rows two apart, then halves of rows four apart.
        for width in (1, 2, 4):
            low = [i if not i & width else LANES + i - width for i in range(LANES)]
            high = [i + width if not i & width else LANES + i for i in range(LANES)]
            done = list(rows)
            for i in (i for i in range(LANES) if not i & width):
                done[i] = _shuffle(builder, rows[i], rows[i + width], low)
                done[i + width] = _shuffle(builder, rows[i], rows[i + width], high)
            rows = done
        for i, row in enumerate(rows):
            builder.store(row, at(signature.args[3], target, to, target_step, i), align=4)
        return context.get_dummy_value()

    place = types.intp
    return types.void(source, place, place, target, place, place), emit


def _arithmetic(name):
    """Make an intrinsic of two vectors from the name of LLVM's instruction."""

    @intrinsic
    def instruction(typing_context, a, b):
        def emit(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments, flags=tuple(sorted(FAST)))

        return lanes(lanes, lanes), emit

    return instruction


_add, _subtract, _multiply, _divide = (_arithmetic(name) for name in ("fadd", "fsub", "fmul", "fdiv"))


def _operator(symbol, instruction):
    """Let an operator of Python work on two vectors, or on a vector and a number."""

    @overload(symbol)
    def operate(a, b):
        if isinstance(a, Lanes) and isinstance(b, Lanes):
            return lambda a, b: instruction(a, b)
        if isinstance(a, Lanes) and b == types.float32:
            return lambda a, b: instruction(a, spread(b))
        if isinstance(b, Lanes) and a == types.float32:
            return lambda a, b: instruction(spread(a), b)
        return None


for _symbol, _instruction in (
    (operator.add, _add), (operator.sub, _subtract), (operator.mul, _multiply), (operator.truediv, _divide),
    (operator.iadd, _add), (operator.isub, _subtract), (operator.imul, _multiply),
):  # fmt: skip
    _operator(_symbol, _instruction)
