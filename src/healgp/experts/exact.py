"""One exact GP expert: log marginal likelihood with gradient, factor, latent moments.

Everything here is jitted, releases the GIL and works on a run of experts, with scratch memory that
the caller allocates once per thread. Rows are sorted by expert: expert j owns the columns
``offsets[j]:offsets[j + 1]`` of ``XT`` [D, N] and the same entries of ``y``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from healgp.kernels import (
    RATIONAL_QUADRATIC,
    profile,
    rational_quadratic_tilt,
    squared_distances,
    values,
)
from healgp.linalg import JITTER, potrf, potri, potrs, solve_lower

#: Rows of X* that one triangular solve takes at a time: wide enough for BLAS, narrow enough for L2.
ROWS = 256

_JIT = njit(nogil=True, cache=True, error_model="numpy")
_CONTRACT = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
# Sums may be reordered, so that they vectorise; the order is still the same in every run.
_SUM = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"})


def scratch_sizes(m: int, D: int) -> tuple[int, ...]:
    """What `objective` needs for experts of up to m rows: A, B (m × m), Z (D × m), α, a row."""
    return m * m, m * m, D * m, m, m


@_CONTRACT
def _scale(XT, start, m, lengthscales, Z):
    """Z[d, i] = X[start + i, d] / ℓ_d."""
    for d in range(XT.shape[0]):
        scale = 1.0 / lengthscales[d]
        for i in range(m):
            Z[d, i] = XT[d, start + i] * scale


@_CONTRACT
def _covariance(kernel, shape, signal, diagonal, Z, m, A, B, r2, point):
    """Lower triangle of σ²φ + diagonal·I into A; of φ′ into B unless B is empty."""
    D = Z.shape[0]
    slopes = B.size > 0
    for i in range(m):
        for d in range(D):
            point[d] = Z[d, i]
        squared_distances(Z, i, point, r2)
        row = A[i * m : i * m + i]
        if slopes:
            profile(kernel, shape, r2, i, row, B[i * m : i * m + i])
            for j in range(i):
                row[j] *= signal
        else:
            values(kernel, shape, r2, i)
            for j in range(i):
                row[j] = signal * r2[j]
        A[i * m + i] = signal + diagonal


@_JIT
def _factorize(kernel, shape, signal, noise, Z, m, A, B, r2):
    """A = L with LLᵀ = σ²φ + (σ_y² + jitter)I. Returns the diagonal added, or NaN on failure."""
    point = np.empty(Z.shape[0])
    for jitter in JITTER:
        diagonal = noise + jitter * signal
        _covariance(kernel, shape, signal, diagonal, Z, m, A, B, r2, point)
        if potrf(A, m) and np.isfinite(A[m * m - 1]):
            return diagonal
    return np.nan


@_SUM
def _gradient(kernel, shape, Z, m, A, B, alpha, out, s):
    """out[d] = Σ_{j<i} W_ij φ′_ij (z_id − z_jd)² with W = ααᵀ − K⁻¹; then Σ_{j<i} W_ij times
    ∂φ_ij/∂log shape; then tr W. A holds K⁻¹ and B holds φ′."""
    D = Z.shape[0]
    out[:] = 0.0
    for i in range(m):
        inverse, slope = A[i * m : i * m + i], B[i * m : i * m + i]
        a = alpha[i]
        if kernel == RATIONAL_QUADRATIC:
            tilt = 0.0
            for j in range(i):
                tilt += (a * alpha[j] - inverse[j]) * rational_quadratic_tilt(slope[j], shape)
            out[D] += tilt
        for j in range(i):
            s[j] = (a * alpha[j] - inverse[j]) * slope[j]
        for d in range(D):
            z, row, total = Z[d, i], Z[d], 0.0
            for j in range(i):
                delta = row[j] - z
                total += s[j] * (delta * delta)
            out[d] += total
        out[D + 1] += a * a - A[i * m + i]


@_JIT
def objective(
    kernel, shape, signal, noise, lengthscales, XT, y, offsets, experts,
    A, B, Zflat, alpha, r2, out,
):  # fmt: skip
    """Log marginal likelihood of each expert in `experts` and its gradient, into out[expert].

    out[j] = (log p, ∂/∂log ℓ_1 … ∂/∂log ℓ_D, ∂/∂log σ², ∂/∂log σ_y², ∂/∂log shape), NaN on failure.
    With K = σ²φ + σ_y²I and α = K⁻¹y (Rasmussen & Williams 2006, equations 2.30 and 5.9):

        log p = −½ yᵀα − Σ log L_ii − m/2 log 2π,    ∂ log p/∂θ = ½ tr((ααᵀ − K⁻¹) ∂K/∂θ).
    """
    D = XT.shape[0]
    sums = np.empty(D + 2)
    for j in experts:
        start = offsets[j]
        m = offsets[j + 1] - start
        Z = Zflat[: D * m].reshape(D, m)
        _scale(XT, start, m, lengthscales, Z)
        diagonal = _factorize(kernel, shape, signal, noise, Z, m, A, B, r2)
        if np.isnan(diagonal):
            out[j] = np.nan
            continue
        log_det, quadratic = 0.0, 0.0
        for i in range(m):
            log_det += np.log(A[i * m + i])
            alpha[i] = y[start + i]
        potrs(A, m, alpha)
        for i in range(m):
            quadratic += alpha[i] * y[start + i]
        potri(A, m)
        _gradient(kernel, shape, Z, m, A, B, alpha, sums, r2)
        trace = sums[D + 1]
        out[j, 0] = -0.5 * quadratic - log_det - 0.5 * m * np.log(2.0 * np.pi)
        for d in range(D):
            out[j, 1 + d] = -2.0 * signal * sums[d]
        # ½ tr(W σ²φ) without a second pass: tr(W K) = yᵀα − m, and K = σ²φ + diagonal·I
        out[j, D + 1] = 0.5 * (quadratic - m - diagonal * trace)
        out[j, D + 2] = 0.5 * noise * trace
        out[j, D + 3] = signal * sums[D]


@_JIT
def factorize(
    kernel, shape, signal, noise, lengthscales, XT, y, offsets, experts,
    A, Zflat, r2, alpha, factors, factor_offsets, log_likelihood,
):  # fmt: skip
    """α = K⁻¹y of each expert into alpha, its log marginal likelihood (NaN on failure), and its
    factor L into factors where there is room for it (factor_offsets[j] ≥ 0)."""
    D = XT.shape[0]
    for j in experts:
        start = offsets[j]
        m = offsets[j + 1] - start
        Z = Zflat[: D * m].reshape(D, m)
        _scale(XT, start, m, lengthscales, Z)
        L = A
        if factor_offsets[j] >= 0:
            L = factors[factor_offsets[j] : factor_offsets[j] + m * m]
        if np.isnan(_factorize(kernel, shape, signal, noise, Z, m, L, A[:0], r2)):
            log_likelihood[j] = np.nan
            continue
        a = alpha[start : start + m]
        a[:] = y[start : start + m]
        potrs(L, m, a)
        value = -0.5 * m * np.log(2.0 * np.pi)
        for i in range(m):
            value -= 0.5 * a[i] * y[start + i] + np.log(L[i * m + i])
        log_likelihood[j] = value


@_SUM
def _moments(V, m, rows, signal, alpha, L, mean, var):
    """Mean kᵀα before the solve, variance σ² − |L⁻¹k|² after it; V holds one k per row."""
    for q in range(rows):
        k, total = V[q * m : q * m + m], 0.0
        for i in range(m):
            total += k[i] * alpha[i]
        mean[q] = total
    solve_lower(L, m, V, rows)
    for q in range(rows):
        v, total = V[q * m : q * m + m], 0.0
        for i in range(m):
            total += v[i] * v[i]
        var[q] = max(signal - total, 1e-12 * signal)


@_JIT
def moments(
    kernel, shape, signal, noise, lengthscales, XT, offsets, alpha, factors, factor_offsets,
    first, last, new, A, Zflat, V, r2, mean, var,
):  # fmt: skip
    """Latent mean and variance of the experts first … last − 1 at the rows `new` [n, D], into mean
    and var [last − first, n]. Factors that are not kept are made again in A.

        E[f*] = k*ᵀ(K + σ_y²I)⁻¹y,    var[f*] = σ² − k*ᵀ(K + σ_y²I)⁻¹k*
    """
    n, D = new.shape
    point = np.empty(D)
    for j in range(first, last):
        start = offsets[j]
        m = offsets[j + 1] - start
        Z = Zflat[: D * m].reshape(D, m)
        _scale(XT, start, m, lengthscales, Z)
        if factor_offsets[j] >= 0:
            L = factors[factor_offsets[j] : factor_offsets[j] + m * m]
        else:
            L = A
            _factorize(kernel, shape, signal, noise, Z, m, L, A[:0], r2)
        for begin in range(0, n, ROWS):
            rows = min(ROWS, n - begin)
            for q in range(rows):
                for d in range(D):
                    point[d] = new[begin + q, d] / lengthscales[d]
                k = V[q * m : q * m + m]
                squared_distances(Z, m, point, k)
                values(kernel, shape, k, m)
                for i in range(m):
                    k[i] *= signal
            _moments(
                V, m, rows, signal, alpha[start : start + m], L,
                mean[j - first, begin : begin + rows], var[j - first, begin : begin + rows],
            )  # fmt: skip
