"""LAPACK and BLAS from jitted code, and the one place that adds jitter.

SciPy ships LAPACK with C entry points (``scipy.linalg.cython_lapack``). Their addresses are
registered under our own symbol names, so that jitted code that calls them can be cached on disk.

Matrices are C-ordered and only their lower triangle is used. LAPACK reads the same memory as the
upper triangle of a column-major matrix, hence ``U`` in every call below.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding
import numpy as np
from numba import njit, types
from scipy.linalg import cython_blas, cython_lapack

#: Jitter is tried in these steps, as a multiple of the signal variance, until Cholesky succeeds.
JITTER = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)

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


_dpotrf = _external(cython_lapack, "dpotrf", _CHAR, _INT, _DOUBLE, _INT, _INT)
_dpotri = _external(cython_lapack, "dpotri", _CHAR, _INT, _DOUBLE, _INT, _INT)
_dpotrs = _external(cython_lapack, "dpotrs", _CHAR, _INT, _INT, _DOUBLE, _INT, _DOUBLE, _INT, _INT)
_dtrsm = _external(
    cython_blas, "dtrsm",
    _CHAR, _CHAR, _CHAR, _CHAR, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _INT,
)  # fmt: skip

_U, _L, _T, _N = ord("U"), ord("L"), ord("T"), ord("N")


@njit(nogil=True, cache=True)
def potrf(A, m):
    """A = LLᵀ in place, A being m × m and flat. False if it is not positive definite."""
    n, info = np.array([m], np.int32), np.zeros(1, np.int32)
    uplo = np.array([_U], np.uint8)
    _dpotrf(uplo.ctypes, n.ctypes, A.ctypes, n.ctypes, info.ctypes)
    return info[0] == 0


@njit(nogil=True, cache=True)
def potri(A, m):
    """The inverse of LLᵀ from its factor L, in place (lower triangle)."""
    n, info = np.array([m], np.int32), np.zeros(1, np.int32)
    uplo = np.array([_U], np.uint8)
    _dpotri(uplo.ctypes, n.ctypes, A.ctypes, n.ctypes, info.ctypes)


@njit(nogil=True, cache=True)
def potrs(A, m, b):
    """b ← (LLᵀ)⁻¹ b."""
    n, info, one = np.array([m], np.int32), np.zeros(1, np.int32), np.ones(1, np.int32)
    uplo = np.array([_U], np.uint8)
    _dpotrs(uplo.ctypes, n.ctypes, one.ctypes, A.ctypes, n.ctypes, b.ctypes, n.ctypes, info.ctypes)


@njit(nogil=True, cache=True)
def solve_lower(A, m, B, rows):
    """Each of the first `rows` rows of B (m wide, contiguous) becomes L⁻¹ times it."""
    n, k, one = np.array([m], np.int32), np.array([rows], np.int32), np.ones(1)
    flags = np.array([_L, _U, _T, _N], np.uint8)
    _dtrsm(
        flags.ctypes, flags[1:].ctypes, flags[2:].ctypes, flags[3:].ctypes,
        n.ctypes, k.ctypes, one.ctypes, A.ctypes, n.ctypes, B.ctypes, n.ctypes,
    )  # fmt: skip
