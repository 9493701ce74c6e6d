"""Cholesky, triangular solves and inverses for many small matrices, from jitted code.

A matrix is m × m, flat and in C order, and only its upper triangle is used: K = UᵀU. Everything is
split in halves until blocks of a few dozen rows are left (by loops: a recursion does not survive
Numba's cache). The halves meet in matrix products, which BLAS does at full speed; the small blocks
are loops over contiguous rows, which LLVM vectorises.
LAPACK's own routines spend most of their time in a triangular solve that reaches a third of that
speed or less (`make bench` measures it).

BLAS and LAPACK come with SciPy. Their addresses are registered under symbol names of our own, so
that jitted code that calls them can be cached on disk. They read C-ordered memory as the transpose:
our upper triangle is their lower one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from scipy.linalg import cython_blas, cython_lapack

from healgp.jit import jit

#: Jitter is tried in these steps, as a multiple of the signal variance, until Cholesky succeeds.
JITTER = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)

#: Blocks of up to this many rows are done by loops.
_SMALL = 32

_DOUBLE = types.CPointer(types.float64)
_INT = types.CPointer(types.int32)
_CHAR = types.CPointer(types.uint8)


def _external(module: Any, name: str, *arguments: Any) -> types.ExternalFunction:
    capsule = module.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    symbol = f"healgp_{name}"
    llvmlite.binding.add_symbol(symbol, address)
    return types.ExternalFunction(symbol, types.void(*arguments))


_dgemm = _external(
    cython_blas, "dgemm",
    _CHAR, _CHAR, _INT, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _INT, _DOUBLE, _DOUBLE, _INT,
)  # fmt: skip
_dsyrk = _external(
    cython_blas, "dsyrk",
    _CHAR, _CHAR, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _DOUBLE, _INT,
)  # fmt: skip
_dtrmm = _external(
    cython_blas, "dtrmm",
    _CHAR, _CHAR, _CHAR, _CHAR, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _INT,
)  # fmt: skip
_dlauum = _external(cython_lapack, "dlauum", _CHAR, _INT, _DOUBLE, _INT, _INT)


@intrinsic
def _ref(context, value):
    """The address of a copy of a number on the stack: Fortran takes everything by reference."""

    def generate(context, builder, signature, arguments):
        return cgutils.alloca_once_value(builder, arguments[0])

    return types.CPointer(value)(value), generate


@intrinsic
def _at(context, array, index):
    """The address of array[index] of a flat array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.gep(data, [builder.sext(arguments[1], ir.IntType(64))])

    return _DOUBLE(array, types.int64), generate


@intrinsic
def _pointer(context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return _DOUBLE(types.int64), generate


_L, _R, _N, _T = (np.uint8(ord(c)) for c in "LRNT")
_JIT = jit("contract")


@_JIT
def at_address(address, n):
    """The n numbers in memory from an address on, which their owner must keep alive."""
    return carray(_pointer(address), (n,))


@_JIT
def _subtract_product(m, n, k, A, a, lda, B, b, ldb, C, c, ldc):
    """C[m × n] −= Aᵀ B with A [k × m], B [k × n]; each begins at an offset in its flat array."""
    _dgemm(
        _ref(_N), _ref(_T), _ref(np.int32(n)), _ref(np.int32(m)), _ref(np.int32(k)), _ref(-1.0),
        _at(B, b), _ref(np.int32(ldb)), _at(A, a), _ref(np.int32(lda)), _ref(1.0),
        _at(C, c), _ref(np.int32(ldc)),
    )  # fmt: skip


@_JIT
def _subtract_square(n, k, A, a, C, c, ld):
    """Upper triangle of C[n × n] −= AᵀA with A [k × n]."""
    _dsyrk(
        _ref(_L), _ref(_N), _ref(np.int32(n)), _ref(np.int32(k)), _ref(-1.0),
        _at(A, a), _ref(np.int32(ld)), _ref(1.0), _at(C, c), _ref(np.int32(ld)),
    )  # fmt: skip


@_JIT
def square(A, m, n, C):
    """Upper triangle of C[m × m] ← A Aᵀ with A [m × n]."""
    _dsyrk(
        _ref(_L), _ref(_T), _ref(np.int32(m)), _ref(np.int32(n)), _ref(1.0),
        _at(A, 0), _ref(np.int32(n)), _ref(0.0), _at(C, 0), _ref(np.int32(m)),
    )  # fmt: skip


@_JIT
def multiply(A, A_turned, B, B_turned, C, keep):
    """C ← A B + keep · C for C-ordered matrices, A or B transposed if turned."""
    (m, n), k = C.shape, A.shape[0] if A_turned else A.shape[1]
    _dgemm(
        _ref(_T if B_turned else _N), _ref(_T if A_turned else _N),
        _ref(np.int32(n)), _ref(np.int32(m)), _ref(np.int32(k)), _ref(1.0),
        _at(B.reshape(B.size), 0), _ref(np.int32(B.shape[1])),
        _at(A.reshape(A.size), 0), _ref(np.int32(A.shape[1])), _ref(keep),
        _at(C.reshape(C.size), 0), _ref(np.int32(n)),
    )  # fmt: skip


@_JIT
def _multiply_triangle(left, turned, rows, columns, scale, U, u, ldu, B, b, ldb):
    """B[rows × columns] ← scale · U B (left) or scale · B U, U (upper) being transposed if turned;
    each begins at an offset in its flat array."""
    _dtrmm(
        _ref(_R if left else _L), _ref(_L), _ref(_T if turned else _N), _ref(_N),
        _ref(np.int32(columns)), _ref(np.int32(rows)), _ref(scale),
        _at(U, u), _ref(np.int32(ldu)), _at(B, b), _ref(np.int32(ldb)),
    )  # fmt: skip


@_JIT
def multiply_triangle(U, turned, B):
    """B ← U B, or UᵀB if turned, for C-ordered U [m × m], upper, and B [m × n]."""
    m, n = B.shape
    _multiply_triangle(True, turned, m, n, 1.0, U.reshape(m * m), 0, m, B.reshape(m * n), 0, n)


@_JIT
def _block(n):
    """The size of the small blocks for n rows, so that their number is a power of two."""
    parts = 1
    while n > _SMALL * parts:
        parts *= 2
    return (n + parts - 1) // parts


@_JIT
def _completed(start, n, small):
    """Splitting n rows in halves, again and again down to small blocks: the small block at `start`
    completes the first half of some part. Where that half starts, and the rows of the second."""
    block = start // small + 1
    half = (block & -block) * small
    end = block * small
    return end - half, min(half, n - end)


@_JIT
def _solve_small(U, u, ldu, n, B, b, ldb, columns):
    """B ← U⁻ᵀ B, one row of B after another, four subtracted at a time."""
    for i in range(n):
        row = B[b + i * ldb : b + i * ldb + columns]
        k = 0
        while k + 4 <= i:
            p = b + k * ldb
            c0, c1 = U[u + k * ldu + i], U[u + (k + 1) * ldu + i]
            c2, c3 = U[u + (k + 2) * ldu + i], U[u + (k + 3) * ldu + i]
            r0, r1 = B[p : p + columns], B[p + ldb : p + ldb + columns]
            r2 = B[p + 2 * ldb : p + 2 * ldb + columns]
            r3 = B[p + 3 * ldb : p + 3 * ldb + columns]
            for q in range(columns):
                row[q] -= (c0 * r0[q] + c1 * r1[q]) + (c2 * r2[q] + c3 * r3[q])
            k += 4
        while k < i:
            c, r = U[u + k * ldu + i], B[b + k * ldb : b + k * ldb + columns]
            for q in range(columns):
                row[q] -= c * r[q]
            k += 1
        scale = 1.0 / U[u + i * ldu + i]
        for q in range(columns):
            row[q] *= scale


@_JIT
def _solve(U, u, ldu, n, B, b, ldb, columns):
    """B ← U⁻ᵀ B. What a recursion over halves would do, in its order: after every small block the
    one half that it completes is subtracted from the half beside it."""
    small = _block(n)
    for start in range(0, n, small):
        end = min(start + small, n)
        _solve_small(U, u + start * (ldu + 1), ldu, end - start, B, b + start * ldb, ldb, columns)
        first, rest = _completed(start, n, small)
        if rest > 0:
            _subtract_product(
                rest, columns, end - first, U, u + first * ldu + end, ldu, B, b + first * ldb, ldb,
                B, b + end * ldb, ldb,
            )  # fmt: skip


@_JIT
def solve(U, m, B, columns):
    """B [m × columns] ← U⁻ᵀ B."""
    _solve(U, 0, m, m, B, 0, columns, columns)


@_JIT
def _solve_back_small(U, u, ldu, n, B, b, ldb, columns):
    """B ← U⁻¹ B, the last row first."""
    for i in range(n - 1, -1, -1):
        row = B[b + i * ldb : b + i * ldb + columns]
        for k in range(i + 1, n):
            c, below = U[u + i * ldu + k], B[b + k * ldb : b + k * ldb + columns]
            for q in range(columns):
                row[q] -= c * below[q]
        scale = 1.0 / U[u + i * ldu + i]
        for q in range(columns):
            row[q] *= scale


@_JIT
def solve_back(U, m, B, columns):
    """B [m × columns] ← U⁻¹ B: from the last block of rows on, each is subtracted from all rows
    above it."""
    small = _SMALL
    for start in range((m - 1) // small * small, -1, -small):
        end = min(start + small, m)
        first = start * (m + 1)
        _solve_back_small(U, first, m, end - start, B, start * columns, columns, columns)
        if start > 0:
            _dgemm(
                _ref(_N), _ref(_N), _ref(np.int32(columns)), _ref(np.int32(start)),
                _ref(np.int32(end - start)), _ref(-1.0), _at(B, start * columns),
                _ref(np.int32(columns)), _at(U, start), _ref(np.int32(m)), _ref(1.0),
                _at(B, 0), _ref(np.int32(columns)),
            )  # fmt: skip


@_JIT
def _cholesky_small(A, a, ld, n):
    for k in range(n):
        top = A[a + k * (ld + 1) : a + k * ld + n]
        if not top[0] > 0.0:
            return False
        scale = 1.0 / np.sqrt(top[0])
        for j in range(n - k):
            top[j] *= scale
        for i in range(1, n - k):
            c, right, row = top[i], top[i:], A[a + (k + i) * (ld + 1) : a + (k + i) * ld + n]
            for j in range(n - k - i):
                row[j] -= c * right[j]
    return True


@_JIT
def _cholesky(A, a, ld, n):
    small = _block(n)
    for start in range(0, n, small):
        end = min(start + small, n)
        if not _cholesky_small(A, a + start * (ld + 1), ld, end - start):
            return False
        first, rest = _completed(start, n, small)
        if rest > 0:
            corner = a + first * ld + end
            _solve(A, a + first * (ld + 1), ld, end - first, A, corner, ld, rest)
            _subtract_square(rest, end - first, A, corner, A, a + end * (ld + 1), ld)
    return True


@_JIT
def cholesky(A, m):
    """K = UᵀU in place. False if K is not positive definite, or not finite."""
    return _cholesky(A, 0, m, m)


@_JIT
def extend(A, known, m):
    """The same where the first `known` rows and columns hold their factor U₁₁ already, the others
    K: U₁₂ ← U₁₁⁻ᵀK₁₂ and U₂₂ᵀU₂₂ = K₂₂ − U₁₂ᵀU₁₂, which takes known²·(m − known) operations."""
    rest, corner = m - known, known * (m + 1)
    _solve(A, 0, m, known, A, known, m, rest)
    _subtract_square(rest, known, A, known, A, corner, m)
    return _cholesky(A, corner, m, rest)


@_JIT
def _invert_small(A, a, ld, n, old):
    for i in range(n - 1, -1, -1):
        # row i of U⁻¹ is (eᵢ − Σ_k U_ik (row k of U⁻¹)) / U_ii, k being the rows below it
        row = A[a + i * (ld + 1) : a + i * ld + n]
        scale = 1.0 / row[0]
        for j in range(n - i):
            old[j] = scale * row[j]
            row[j] = 0.0
        row[0] = scale
        for k in range(1, n - i):
            c, right = old[k], row[k:]
            below = A[a + (i + k) * (ld + 1) : a + (i + k) * ld + n]
            for j in range(n - i - k):
                right[j] -= c * below[j]


@_JIT
def invert_factor(A, m):
    """U ← U⁻¹ in place: small blocks before the halves that they make up,
    U₁₂ ← −U₁₁⁻¹ U₁₂ U₂₂⁻¹."""
    old = np.empty(_SMALL)
    small = _block(m)
    for start in range(0, m, small):
        _invert_small(A, start * (m + 1), m, min(small, m - start), old)
    half = small
    while half < m:
        for start in range(0, m - half, 2 * half):
            middle = start + half
            rest = min(half, m - middle)
            corner = start * m + middle
            first, second = start * (m + 1), middle * (m + 1)
            _multiply_triangle(True, False, half, rest, -1.0, A, first, m, A, corner, m)
            _multiply_triangle(False, False, half, rest, 1.0, A, second, m, A, corner, m)
        half *= 2


@_JIT
def invert(A, m):
    """K⁻¹ = U⁻¹U⁻ᵀ (upper triangle) from the factor U, in place."""
    invert_factor(A, m)
    _dlauum(_ref(_L), _ref(np.int32(m)), _at(A, 0), _ref(np.int32(m)), _ref(np.int32(0)))


@jit("contract", "reassoc")
def solve_vector(U, m, b):
    """b ← K⁻¹ b = U⁻¹ U⁻ᵀ b."""
    for i in range(m):
        row, below = U[i * m + i + 1 : i * m + m], b[i + 1 :]
        value = b[i] / U[i * m + i]
        b[i] = value
        for j in range(m - i - 1):
            below[j] -= value * row[j]
    for i in range(m - 1, -1, -1):
        row, below, total = U[i * m + i + 1 : i * m + m], b[i + 1 :], 0.0
        for j in range(m - i - 1):
            total += row[j] * below[j]
        b[i] = (b[i] - total) / U[i * m + i]
