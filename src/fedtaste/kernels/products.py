"""Products of matrices whose parts stay in registers, for any strides of the left matrix. Compiled by Numba.

`block` computes some rows and columns of a product: its sums are vectors in registers, and each step adds one column of
the left matrix times one row of the right one. Vectors have sixteen numbers where the processor has registers for that
(AVX-512), and eight elsewhere. torch's library uses eight on some processors that have sixteen; there these products
take half of its time.

Numba's cache on disk knows changes of the file of a kernel, not of the files that it imports: remove it after a change
here, as for kernels/lanes.py.
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F = np.float32
# The processor's features for which Numba compiles.
FEATURES = getattr(config, "CPU_FEATURES", None) or llvmlite.binding.get_host_cpu_features().flatten()
WIDE = 16 if "+avx512f" in FEATURES.split(",") else 8  # numbers in a vector
ROWS = WIDE // 2  # of a block; with two vectors in each they fill half of the registers
COLUMNS = 2 * WIDE  # of a block of `product`
CHUNK = 128  # steps of a long sum that are done for all blocks, so that they read the matrices from the cache
FAST = ("contract", "reassoc", "nsz")


def block_of(rows, vectors):
    """A function for blocks of this many rows and of vectors x WIDE columns."""
    vector = ir.VectorType(ir.FloatType(), WIDE)

    @intrinsic
    def block(typing_context, a, a_at, a_row, a_step, b, b_at, b_step, count, out, out_at, out_row, add):
        """out[out_at + i out_row + j] = (add x the same) + sum over n < count of
        a[a_at + i a_row + n a_step] b[b_at + n b_step + j]. Places are numbers into the memory of the arrays."""

        def emit(context, builder, signature, arguments):
            a, a_at, a_row, a_step, b, b_at, b_step, count, out, out_at, out_row, add = arguments
            kinds, place = signature.args, count.type

            def data(kind, array):
                return context.make_array(kind)(context, builder, array).data

            def at(pointer, *steps):
                for step in steps:
                    pointer = builder.gep(pointer, [step])
                return pointer

            def times(number, stride):
                return builder.mul(ir.Constant(place, number), stride)

            left, right, target = at(data(kinds[0], a), a_at), at(data(kinds[4], b), b_at), data(kinds[8], out)
            places = [
                (i, j, builder.bitcast(
                    at(target, out_at, times(i, out_row), ir.Constant(place, j * WIDE)), vector.as_pointer()
                ))
                for i in range(rows) for j in range(vectors)
            ]  # fmt: skip
            sums = {(i, j): cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for i, j, _ in places}
            with builder.if_then(add):
                for i, j, pointer in places:
                    builder.store(builder.load(pointer, align=4), sums[i, j])
            with cgutils.for_range(builder, count) as loop:
                row = at(right, builder.mul(loop.index, b_step))
                columns = [
                    builder.load(builder.bitcast(at(row, ir.Constant(place, j * WIDE)), vector.as_pointer()), align=4)
                    for j in range(vectors)
                ]
                first = at(left, builder.mul(loop.index, a_step))
                for i in range(rows):
                    number = builder.load(at(first, times(i, a_row)), align=4)
                    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
                    one = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), WIDE), [0] * WIDE))
                    for j in range(vectors):
                        product = builder.fmul(one, columns[j], flags=FAST)
                        builder.store(builder.fadd(builder.load(sums[i, j]), product, flags=FAST), sums[i, j])
            for i, j, pointer in places:
                builder.store(builder.load(sums[i, j]), pointer, align=4)
            return context.get_dummy_value()

        size = types.intp
        return types.void(a, size, size, size, b, size, size, size, out, size, size, types.boolean), emit

    return block


_rows8, _rows4, _rows2, _row = (block_of(rows, 2) for rows in (8, 4, 2, 1))


@njit(nogil=True, error_model="numpy")
def _columns(a, a_at, a_row, a_step, b, b_at, b_step, count, rows, out, out_at, out_row, add):
    """All rows of COLUMNS columns."""
    i = 0
    if ROWS == 8:
        while i + 8 <= rows:
            _rows8(a, a_at + i * a_row, a_row, a_step, b, b_at, b_step, count, out, out_at + i * out_row, out_row, add)
            i += 8
    while i + 4 <= rows:
        _rows4(a, a_at + i * a_row, a_row, a_step, b, b_at, b_step, count, out, out_at + i * out_row, out_row, add)
        i += 4
    if i + 2 <= rows:
        _rows2(a, a_at + i * a_row, a_row, a_step, b, b_at, b_step, count, out, out_at + i * out_row, out_row, add)
        i += 2
    if i < rows:
        _row(a, a_at + i * a_row, a_row, a_step, b, b_at, b_step, count, out, out_at + i * out_row, out_row, add)


@njit(cache=True, nogil=True, error_model="numpy")
def product(a, b, out, add):
    """out [m, n] = a [m, k] b [k, n], or out + a b. `b` and `out` have contiguous rows, and `a` any strides."""
    rows, steps, columns = a.shape[0], a.shape[1], b.shape[1]
    a_row, a_step, b_step, out_row = a.strides[0] // 4, a.strides[1] // 4, b.strides[0] // 4, out.strides[0] // 4
    whole = columns // COLUMNS * COLUMNS
    rest = columns - whole
    right = np.zeros((min(CHUNK, steps) if rest else 0, COLUMNS), F)  # the last columns and their sums
    sums = np.zeros((rows if rest else 0, COLUMNS), F)
    for first in range(0, max(steps, 1), CHUNK):
        count, more = min(CHUNK, steps - first), add or first > 0
        a_at, b_at = first * a_step, first * b_step
        for j in range(0, whole, COLUMNS):
            _columns(a, a_at, a_row, a_step, b, b_at + j, b_step, count, rows, out, j, out_row, more)
        if rest:
            for n in range(count):
                right[n, :rest] = b[first + n, whole:]
            _columns(a, a_at, a_row, a_step, right, 0, COLUMNS, count, rows, sums, 0, COLUMNS, first > 0)
    for i in range(len(sums)):
        for j in range(rest):
            out[i, whole + j] = sums[i, j] + (out[i, whole + j] if add else F(0))
