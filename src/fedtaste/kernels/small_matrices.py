"""Gram matrices and Cholesky solves of small symmetric systems, held in vector registers. Parts of other kernels.

A system of size p is stored in an array [size + 1, size + LANES], size = padded(p): the upper half of a symmetric
matrix, and the right-hand side as its last row. The padding has zeros, and ones on the diagonal, so that it does not
change the solution. Rows that are gathered for a Gram matrix have the same width.

Numba cannot keep a block of sums in registers, and BLAS copies these small matrices before it multiplies them and has
threads of its own. So the innermost loops are written as LLVM vectors by llvmlite, which comes with Numba: `_tile` is a
matrix product of a few rows and columns, the same one for Gram matrices (rows gathered from a table) and for Cholesky's
method (rows of the factor that are finished). All is in single or double precision, as the arrays are.

Numba's cache on disk knows changes of the file of a kernel, not of this one: remove it after a change here.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # rows have a multiple of so many numbers
REGISTER = 32  # bytes of a vector
ROWS = 4  # rows of a tile: 4 x 3 vectors of sums, 3 vectors and a number are the 16 registers of AVX2
FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered to fill vector registers; NaN and infinity keep meaning


class _Emitter:
    """What the intrinsics have in common: addresses, loads and stores of vectors in a matrix [., width]."""

    def __init__(self, context, builder, array_type, array):
        self.builder = builder
        matrix = context.make_array(array_type)(context, builder, array)
        self.data, self.width = matrix.data, cgutils.unpack_tuple(builder, matrix.shape)[1]
        self.number = context.get_value_type(array_type.dtype)
        self.lanes = REGISTER * 8 // array_type.dtype.bitwidth
        self.vector = ir.VectorType(self.number, self.lanes)
        self.align = array_type.dtype.bitwidth // 8

    def address(self, row, column):
        at = self.builder.add(self.builder.mul(row, self.width), column)
        return self.builder.gep(self.data, [at])

    def step(self, pointer, number):
        return self.builder.gep(pointer, [ir.Constant(ir.IntType(64), number)])

    def as_vector(self, pointer):
        return self.builder.bitcast(pointer, self.vector.as_pointer())

    def load(self, pointer, vectors):
        return [
            self.builder.load(self.as_vector(self.step(pointer, v * self.lanes)), align=self.align)
            for v in range(vectors)
        ]

    def store(self, values, pointer):
        for v, value in enumerate(values):
            self.builder.store(value, self.as_vector(self.step(pointer, v * self.lanes)), align=self.align)

    def spread(self, number):
        """A vector with `number` in all places."""
        zero = ir.Constant(ir.IntType(32), 0)
        one = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), number, zero)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(one, one, mask)

    def add_product(self, a, b, c):
        """a b + c"""
        name = f"llvm.fmuladd.v{self.lanes}f{self.align * 8}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c])


def _tile(rows, vectors, sign):
    """Make an intrinsic: out[i + a, j + b] += sign * sum_{r < n} x[r, i + a] x[r, j + b], for `rows` a and as many b as
    `vectors` hold."""

    @intrinsic
    def tile(typing_context, out, x, n, i, j):
        def code(context, builder, signature, args):
            target = _Emitter(context, builder, signature.args[0], args[0])
            source = _Emitter(context, builder, signature.args[1], args[1])
            n, i, j = args[2:]
            one = ir.Constant(n.type, 1)
            places = [target.address(builder.add(i, ir.Constant(i.type, a)), j) for a in range(rows)]
            begin = [value for place in places for value in target.load(place, vectors)]
            zero = ir.Constant(n.type, 0)
            left, right = source.address(zero, i), source.address(zero, j)
            before = builder.basic_block
            loop, after = builder.append_basic_block("rows"), builder.append_basic_block("done")
            builder.cbranch(builder.icmp_signed(">", n, zero), loop, after)
            builder.position_at_end(loop)
            at = builder.phi(n.type)
            sums = [builder.phi(source.vector) for _ in begin]
            here = builder.mul(at, source.width)
            columns = source.load(builder.gep(right, [here]), vectors)
            mine = builder.gep(left, [here])
            new = []
            for a in range(rows):
                number = builder.load(source.step(mine, a))
                factor = source.spread(number if sign > 0 else builder.fneg(number))
                new += [source.add_product(factor, columns[v], sums[a * vectors + v]) for v in range(vectors)]
            following = builder.add(at, one)
            builder.cbranch(builder.icmp_signed("<", following, n), loop, after)
            end = builder.basic_block
            at.add_incoming(zero, before)
            at.add_incoming(following, end)
            for phi, first, value in zip(sums, begin, new, strict=True):
                phi.add_incoming(first, before)
                phi.add_incoming(value, end)
            builder.position_at_end(after)
            results = []
            for first, value in zip(begin, new, strict=True):
                result = builder.phi(source.vector)
                result.add_incoming(first, before)
                result.add_incoming(value, end)
                results.append(result)
            for a in range(rows):
                target.store(results[a * vectors : (a + 1) * vectors], places[a])
            return context.get_dummy_value()

        return types.void(out, x, types.int64, types.int64, types.int64), code

    return tile


_add_4x3, _add_4x2, _add_4x1, _add_8x1 = (_tile(*shape, 1) for shape in ((4, 3), (4, 2), (4, 1), (8, 1)))
_add_1x8, _add_1x4, _add_1x2, _add_1x1 = (_tile(1, vectors, 1) for vectors in (8, 4, 2, 1))
_subtract_4x3, _subtract_4x2 = (_tile(4, vectors, -1) for vectors in (3, 2))


@intrinsic
def _divide_rows(typing_context, matrix, i, begin, end, factor, inverse):
    """Rows i to i + 3, from column `begin` to `end`: row a = (row a - sum_{b < a} factor[b, a] row b) * inverse[a].

    `factor` has the six numbers of a triangle, by columns."""

    def code(context, builder, signature, args):
        target = _Emitter(context, builder, signature.args[0], args[0])
        i, begin, end = args[1:4]
        factors = [target.spread(builder.fneg(x)) for x in cgutils.unpack_tuple(builder, args[4])]
        inverses = [target.spread(x) for x in cgutils.unpack_tuple(builder, args[5])]
        places = [target.address(builder.add(i, ir.Constant(i.type, a)), ir.Constant(i.type, 0)) for a in range(ROWS)]
        step = ir.Constant(i.type, target.lanes)
        with cgutils.for_range_slice(builder, begin, end, step, intp=i.type) as (at, _):
            done = []
            for a in range(ROWS):
                place = builder.gep(places[a], [at])
                (row,) = target.load(place, 1)
                for b in range(a):
                    row = target.add_product(factors[a * (a - 1) // 2 + b], done[b], row)
                done.append(builder.fmul(row, inverses[a]))
                target.store(done[-1:], place)
        return context.get_dummy_value()

    number = matrix.dtype
    integers = (types.int64,) * 3
    return types.void(matrix, *integers, types.UniTuple(number, 6), types.UniTuple(number, ROWS)), code


@intrinsic
def _row_products(typing_context, matrix, i, begin, end, other):
    """For rows i to i + 3: sum over columns from `begin` to `end` of matrix[row, column] * matrix[other, column]."""

    def code(context, builder, signature, args):
        source = _Emitter(context, builder, signature.args[0], args[0])
        i, begin, end, other = args[1:5]
        zero = ir.Constant(i.type, 0)
        places = [source.address(builder.add(i, ir.Constant(i.type, a)), zero) for a in range(ROWS)]
        right = source.address(other, zero)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(source.vector, None)) for _ in range(ROWS)]
        step = ir.Constant(i.type, source.lanes)
        with cgutils.for_range_slice(builder, begin, end, step, intp=i.type) as (at, _):
            (factor,) = source.load(builder.gep(right, [at]), 1)
            for a in range(ROWS):
                (row,) = source.load(builder.gep(places[a], [at]), 1)
                builder.store(source.add_product(row, factor, builder.load(sums[a])), sums[a])
        name = f"llvm.vector.reduce.fadd.v{source.lanes}f{source.align * 8}"
        kind = ir.FunctionType(source.number, [source.number, source.vector])
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        start = ir.Constant(source.number, 0.0)
        totals = [builder.call(reduce, [start, builder.load(x)], fastmath=("reassoc",)) for x in sums]
        return context.make_tuple(builder, signature.return_type, totals)

    return types.UniTuple(matrix.dtype, ROWS)(matrix, *(types.int64,) * 4), code


@intrinsic
def prefetch(typing_context, matrix, row):
    """Ask for a row of a matrix to be brought into the cache."""

    def code(context, builder, signature, args):
        source = _Emitter(context, builder, signature.args[0], args[0])
        byte = ir.IntType(8).as_pointer()
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, integer, integer, integer])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        begin = source.address(args[1], ir.Constant(args[1].type, 0))
        line = ir.Constant(args[1].type, 64 // source.align)
        with cgutils.for_range_slice(builder, ir.Constant(line.type, 0), source.width, line, intp=line.type) as (at, _):
            place = builder.bitcast(builder.gep(begin, [at]), byte)
            builder.call(call, [place, integer(0), integer(3), integer(1)])
        return context.get_dummy_value()

    return types.void(matrix, types.int64), code


@njit(cache=True, nogil=True)
def padded(p):
    """The least multiple of LANES that is at least p."""
    return (p + LANES - 1) // LANES * LANES


@njit(cache=True, nogil=True, error_model="numpy")
def add_gram(system, rows, n):
    """Add the Gram matrix of rows[:n] to the upper half of `system`, and the sum of target x row to its last row. The
    targets are the column `size` of the rows."""
    size = system.shape[0] - 1
    lanes = REGISTER // system.itemsize
    for i in range(0, size, ROWS):
        j = i // lanes * lanes
        left = (size - j) // lanes  # vectors up to the last column
        if left == 1:
            if size - i == 2 * ROWS:
                _add_8x1(system, rows, n, i, j)
            else:
                _add_4x1(system, rows, n, i, j)
            break
        while left > 0:
            if left == 2 or left == 4:
                _add_4x2(system, rows, n, i, j)
                left, j = left - 2, j + 2 * lanes
            else:
                _add_4x3(system, rows, n, i, j)
                left, j = left - 3, j + 3 * lanes
    j, left = 0, size // lanes
    while left > 0:
        if left >= 8:
            _add_1x8(system, rows, n, size, j)
            left, j = left - 8, j + 8 * lanes
        elif left >= 4:
            _add_1x4(system, rows, n, size, j)
            left, j = left - 4, j + 4 * lanes
        elif left >= 2:
            _add_1x2(system, rows, n, size, j)
            left, j = left - 2, j + 2 * lanes
        else:
            _add_1x1(system, rows, n, size, j)
            left -= 1


@njit(cache=True, nogil=True, error_model="numpy")
def solve(system):
    """Overwrite the right-hand side (the last row) with the solution, and the matrix with its Cholesky factor. False,
    and the right-hand side as it was, if the matrix is not positive definite. What is below the diagonal is not read,
    but must be finite, since it is multiplied by 0."""
    size = system.shape[0] - 1
    lanes = REGISTER // system.itemsize
    end = size + lanes  # the right-hand side is eliminated with the matrix
    for i in range(size):
        system[i, size] = system[size, i]
    for i in range(0, size, ROWS):
        begin = i // lanes * lanes
        j, left = begin, (end - begin) // lanes  # 2 vectors at least
        while left > 0:
            if left == 2 or left == 4:
                _subtract_4x2(system, system, i, i, j)
                left, j = left - 2, j + 2 * lanes
            else:
                _subtract_4x3(system, system, i, i, j)
                left, j = left - 3, j + 3 * lanes
        r0, r1, r2, r3 = system[i], system[i + 1], system[i + 2], system[i + 3]
        one = system.dtype.type(1.0)
        d0 = one / np.sqrt(r0[i])
        u01, u02, u03 = r0[i + 1] * d0, r0[i + 2] * d0, r0[i + 3] * d0
        s1 = r1[i + 1] - u01 * u01
        d1 = one / np.sqrt(s1)
        u12, u13 = (r1[i + 2] - u01 * u02) * d1, (r1[i + 3] - u01 * u03) * d1
        s2 = r2[i + 2] - u02 * u02 - u12 * u12
        d2 = one / np.sqrt(s2)
        u23 = (r2[i + 3] - u02 * u03 - u12 * u13) * d2
        s3 = r3[i + 3] - u03 * u03 - u13 * u13 - u23 * u23
        d3 = one / np.sqrt(s3)
        if not (r0[i] > 0 and s1 > 0 and s2 > 0 and s3 > 0):
            return False
        _divide_rows(system, i, begin, end, (u01, u02, u12, u03, u13, u23), (d0, d1, d2, d3))
        r0[size + 1], r1[size + 1], r2[size + 1], r3[size + 1] = d0, d1, d2, d3  # beside the right-hand side
    x = system[size]
    x[:size] = 0.0
    for i in range(size - ROWS, -1, -ROWS):
        r0, r1, r2, r3 = system[i], system[i + 1], system[i + 2], system[i + 3]
        s0, s1, s2, s3 = _row_products(system, i, (i + ROWS) // lanes * lanes, size, size)
        x3 = (r3[size] - s3) * r3[size + 1]
        x2 = (r2[size] - s2 - r2[i + 3] * x3) * r2[size + 1]
        x1 = (r1[size] - s1 - r1[i + 3] * x3 - r1[i + 2] * x2) * r1[size + 1]
        x0 = (r0[size] - s0 - r0[i + 3] * x3 - r0[i + 2] * x2 - r0[i + 1] * x1) * r0[size + 1]
        x[i], x[i + 1], x[i + 2], x[i + 3] = x0, x1, x2, x3
    return True
