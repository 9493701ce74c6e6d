"""One exact GP expert: log marginal likelihood with gradient, factor, latent moments.

Everything here is jitted, releases the GIL and works on a run of experts, with scratch memory that
the caller allocates once per thread. Rows are sorted by expert: expert j owns ``sizes[j]`` columns
of ``XT`` [D, N] from ``offsets[j]`` on, and the same entries of ``y``. Factors are found by their
addresses (see `healgp.experts.factors`).
"""

from __future__ import annotations

import numpy as np

from healgp.jit import jit
from healgp.kernels import (
    RATIONAL_QUADRATIC,
    profile,
    squared_distances,
    values,
)
from healgp.linalg import (
    JITTER,
    at_address,
    cholesky,
    extend,
    invert,
    multiply,
    solve,
    solve_back,
    solve_vector,
)

#: Rows of X* that one triangular solve takes at a time: wide enough for BLAS, narrow enough for L2.
ROWS = 256

#: Loops over rows are padded to a multiple of this, so that all of a loop is vectorised: what LLVM
#: leaves over after whole vectors is done one number at a time, and rows of a triangle are short.
PAD = 32

_JIT, _CONTRACT, _SUM = jit(), jit("contract"), jit("contract", "reassoc")


def scratch_sizes(m: int, D: int, shaped: bool) -> tuple[int, ...]:
    """What `objective` needs for experts of up to m rows: A [m, m], B and C [m, m + PAD] (C only
    for a kernel with a shape), Z [D, m + PAD], α [m], and two rows."""
    wide = m + PAD
    return m * m, m * wide, m * wide if shaped else 0, D * wide, m, wide, wide


@_JIT
def _padded(n):
    return (n + PAD - 1) // PAD * PAD


@_CONTRACT
def _scale(XT, start, m, lengthscales, Z):
    """Z[d, i] = X[start + i, d] / ℓ_d; the padding repeats the last row."""
    for d in range(XT.shape[0]):
        scale, row, source = 1.0 / lengthscales[d], Z[d], XT[d, start:]
        for i in range(m):
            row[i] = source[i] * scale
        row[m:] = row[m - 1]


@_CONTRACT
def _covariance(kernel, shape, signal, diagonal, Z, m, known, A, B, C, r2, phi, point):
    """Upper triangle of σ²φ + diagonal·I into A but for its first `known` columns; of φ′ and
    ∂φ/∂log shape into B and C unless B is empty."""
    D, width = Z.shape
    slopes = B.size > 0
    for i in range(m):
        for d in range(D):
            point[d] = Z[d, i]
        begin = max(i + 1, known)
        n = _padded(m - begin)
        squared_distances(Z, begin, n, point, r2)
        if slopes:
            profile(kernel, shape, r2, n, phi, B[i * width + i + 1 :], C[i * width + i + 1 :])
        else:
            values(kernel, shape, r2, n, phi)
        row = A[i * m + begin : i * m + m]
        for j in range(m - begin):
            row[j] = signal * phi[j]
        if i >= known:
            A[i * m + i] = signal + diagonal


@_JIT
def _factorize(kernel, shape, signal, noise, Z, m, A, B, C, r2, phi):
    """A = U with UᵀU = σ²φ + (σ_y² + jitter σ²)I. False on failure."""
    point = np.empty(Z.shape[0])
    for jitter in JITTER:
        diagonal = noise + jitter * signal
        _covariance(kernel, shape, signal, diagonal, Z, m, 0, A, B, C, r2, phi, point)
        if cholesky(A, m) and np.isfinite(A[m * m - 1]):
            return True
    return False


@_JIT
def _extend(kernel, shape, signal, noise, Z, m, known, source, packed, A, r2, phi):
    """The same from the factor of the first `known` rows, which is at the address `source`. False
    if that was made with jitter, or more rows need it."""
    if packed:
        _unpack(at_address(source, known * (known + 1) // 2), known, A, m)
    else:
        old = at_address(source, known * known)
        for i in range(known):
            A[i * m + i : i * m + known] = old[i * known + i : i * known + known]
    diagonal = signal + noise
    if abs(A[0] * A[0] - diagonal) > 1e-14 * diagonal:
        return False
    point = np.empty(Z.shape[0])
    _covariance(kernel, shape, signal, noise, Z, m, known, A, A[:0], A[:0], r2, phi, point)
    return extend(A, known, m) and np.isfinite(A[m * m - 1])


@_SUM
def _gradient(kernel, Z, m, A, B, C, alpha, out, s):
    """out[d] = Σ_{i<j} W_ij φ′_ij (z_id − z_jd)² with W = ααᵀ − K⁻¹; then Σ_{i<j} W_ij times
    ∂φ_ij/∂log shape; then tr W. A holds K⁻¹, B holds φ′ and C ∂φ/∂log shape."""
    D, width = Z.shape
    out[:] = 0.0
    for i in range(m):
        n = m - i - 1
        inverse, slope = A[i * m + i + 1 : i * m + m], B[i * width + i + 1 :]
        a, others = alpha[i], alpha[i + 1 :]
        if kernel == RATIONAL_QUADRATIC:
            total, tilt = 0.0, C[i * width + i + 1 :]
            for j in range(n):
                total += (a * others[j] - inverse[j]) * tilt[j]
            out[D] += total
        for j in range(n):
            s[j] = (a * others[j] - inverse[j]) * slope[j]
        padded = _padded(n)
        s[n:padded] = 0.0
        for d in range(D):
            z, row, total = Z[d, i], Z[d, i + 1 :], 0.0
            for j in range(padded):
                delta = row[j] - z
                total += s[j] * (delta * delta)
            out[d] += total
        out[D + 1] += a * a - A[i * m + i]


@_JIT
def objective(
    kernel, shape, signal, noise, lengthscales, XT, y, offsets, sizes, experts,
    A, B, C, Zflat, alpha, r2, phi, out,
):  # fmt: skip
    """Log marginal likelihood of each expert in `experts` and its gradient, into out[expert].

    out[j] = (log p, ∂/∂log ℓ_1 … ∂/∂log ℓ_D, ∂/∂log σ², ∂/∂log σ_y², ∂/∂log shape), NaN on failure.
    With K = σ²φ + σ_y²I and α = K⁻¹y (Rasmussen & Williams 2006, equations 2.30 and 5.9):

        log p = −½ yᵀα − Σ log U_ii − m/2 log 2π,    ∂ log p/∂θ = ½ tr((ααᵀ − K⁻¹) ∂K/∂θ).
    """
    D = XT.shape[0]
    sums = np.empty(D + 2)
    for j in experts:
        start, m = offsets[j], sizes[j]
        Z = Zflat[: D * (m + PAD)].reshape(D, m + PAD)
        _scale(XT, start, m, lengthscales, Z)
        if not _factorize(kernel, shape, signal, noise, Z, m, A, B, C, r2, phi):
            out[j] = np.nan
            continue
        log_det, quadratic = 0.0, 0.0
        for i in range(m):
            log_det += np.log(A[i * m + i])
            alpha[i] = y[start + i]
        solve_vector(A, m, alpha)
        for i in range(m):
            quadratic += alpha[i] * y[start + i]
        invert(A, m)
        _gradient(kernel, Z, m, A, B, C, alpha, sums, r2)
        trace = sums[D + 1]
        out[j, 0] = -0.5 * quadratic - log_det - 0.5 * m * np.log(2.0 * np.pi)
        for d in range(D):
            out[j, 1 + d] = -2.0 * signal * sums[d]
        # without a second pass: tr(W K) = yᵀα − m, and all of K but the noise grows with σ²
        out[j, D + 1] = 0.5 * (quadratic - m - noise * trace)
        out[j, D + 2] = 0.5 * noise * trace
        out[j, D + 3] = signal * sums[D]


@_JIT
def pack(U, m, out):
    """The upper triangle of U [m, m], row after row."""
    place = 0
    for i in range(m):
        n = m - i
        out[place : place + n] = U[i * m + i : i * m + m]
        place += n


@_JIT
def _unpack(packed, m, U, width):
    """Into the first m rows and columns of U, whose rows have `width` numbers."""
    place = 0
    for i in range(m):
        n = m - i
        U[i * width + i : i * width + m] = packed[place : place + n]
        place += n


@_JIT
def factorize(
    kernel, shape, signal, noise, lengthscales, XT, y, offsets, sizes, experts,
    A, Zflat, r2, phi, alpha, factors, packed, known, sources, sources_packed, log_likelihood,
):  # fmt: skip
    """α = K⁻¹y of each expert into alpha, its log marginal likelihood (NaN on failure), and its
    factor U to its address, if it has one (factors[j] > 0), whole or packed. Where the factor of
    its first known[j] rows is at an address (sources[j] > 0), it starts from that."""
    D = XT.shape[0]
    for j in experts:
        start, m = offsets[j], sizes[j]
        Z = Zflat[: D * (m + PAD)].reshape(D, m + PAD)
        _scale(XT, start, m, lengthscales, Z)
        U = A
        if factors[j] > 0 and not packed:
            U = at_address(factors[j], m * m)
        done = sources[j] > 0 and _extend(
            kernel, shape, signal, noise, Z, m, known[j], sources[j], sources_packed, U, r2, phi
        )
        if not done and not _factorize(
            kernel, shape, signal, noise, Z, m, U, A[:0], A[:0], r2, phi
        ):
            log_likelihood[j] = np.nan
            continue
        a = alpha[start : start + m]
        a[:] = y[start : start + m]
        solve_vector(U, m, a)
        value = -0.5 * m * np.log(2.0 * np.pi)
        for i in range(m):
            value -= 0.5 * a[i] * y[start + i] + np.log(U[i * m + i])
        log_likelihood[j] = value
        if factors[j] > 0 and packed:
            pack(U, m, at_address(factors[j], m * (m + 1) // 2))


@_CONTRACT
def _moments(kernel, shape, signal, Z, m, alpha, U, new, n, V, r2, mean, var):
    """Mean k*ᵀα before the solve, variance σ² − |U⁻ᵀk*|² after it, at n scaled rows `new` [D, ·]; V
    holds their k*, one row per row of the expert."""
    D = Z.shape[0]
    point = np.empty(D)
    mean[:] = 0.0
    for i in range(m):
        for d in range(D):
            point[d] = Z[d, i]
        k, a = V[i * n : i * n + n], signal * alpha[i]
        squared_distances(new, 0, n, point, r2)
        values(kernel, shape, r2, n, k)
        for q in range(n):
            mean[q] += a * k[q]
    solve(U, m, V, n)
    var[:] = 0.0
    for i in range(m):
        v = V[i * n : i * n + n]
        for q in range(n):
            var[q] += v[q] * v[q]
    for q in range(n):  # V was solved with φ, not with σ²φ
        var[q] = max(signal - signal * signal * var[q], 1e-12 * signal)


@_JIT
def _prepared(
    kernel, shape, signal, noise, lengthscales, XT, start, m, factor, packed, A, Zflat, r2, phi
):
    """The scaled rows Z of the expert that starts at `start`, and its factor U: the one that is
    kept at the address `factor`, unpacked into A, or made again in A."""
    D = XT.shape[0]
    Z = Zflat[: D * (m + PAD)].reshape(D, m + PAD)
    _scale(XT, start, m, lengthscales, Z)
    if factor > 0 and not packed:
        return Z, at_address(factor, m * m)
    if factor > 0:
        _unpack(at_address(factor, m * (m + 1) // 2), m, A, m)
    else:
        _factorize(kernel, shape, signal, noise, Z, m, A, A[:0], A[:0], r2, phi)
    return Z, A[: m * m]


@_JIT
def moments(
    kernel, shape, signal, noise, lengthscales, XT, offsets, sizes, alpha, factors, packed,
    experts, begins, ends, new, A, Zflat, scaled, V, r2, phi, mean, var,
):  # fmt: skip
    """Latent mean and variance of some experts, expert i of them at the columns begins[i]:ends[i]
    of `new` [D, n], one after another into mean and var. Factors that are not kept are made again
    in A.

        E[f*] = k*ᵀ(K + σ_y²I)⁻¹y,    var[f*] = σ² − k*ᵀ(K + σ_y²I)⁻¹k*
    """
    D, at = new.shape[0], 0
    for i in range(len(experts)):
        j = experts[i]
        start, m = offsets[j], sizes[j]
        Z, U = _prepared(
            kernel, shape, signal, noise, lengthscales, XT, start, m, factors[j], packed, A,
            Zflat, r2, phi,
        )  # fmt: skip
        for begin in range(begins[i], ends[i], ROWS):
            rows = min(ROWS, ends[i] - begin)
            block = scaled[: D * rows].reshape(D, rows)
            _scale(new, begin, rows, lengthscales, block)
            _moments(
                kernel, shape, signal, Z, m, alpha[start : start + m], U, block, rows, V, r2,
                mean[at : at + rows], var[at : at + rows],
            )  # fmt: skip
            at += rows


@_JIT
def leave_one_out(
    kernel, shape, signal, noise, lengthscales, XT, y, offsets, sizes, alpha, factors, packed,
    expert, rows, A, Zflat, V, r2, phi, mean, var, out,
):  # fmt: skip
    """Latent mean and variance of one expert at some of its own rows, each without that row
    (Rasmussen & Williams 2006, equations 5.10 to 5.12; K with noise):

        E[f_i] = y_i − [K⁻¹y]_i / [K⁻¹]_ii,    var[f_i] = 1 / [K⁻¹]_ii − σ_y²

    The mean is a linear combination of the other rows' y, with −[K⁻¹]_ki / [K⁻¹]_ii, which goes
    into out [n, m] unless that is empty.
    """
    start, m = offsets[expert], sizes[expert]
    _, U = _prepared(
        kernel, shape, signal, noise, lengthscales, XT, start, m, factors[expert], packed, A,
        Zflat, r2, phi,
    )  # fmt: skip
    for begin in range(0, len(rows), ROWS):
        n = min(ROWS, len(rows) - begin)
        V[: m * n] = 0.0
        for q in range(n):
            V[(rows[begin + q] - start) * n + q] = 1.0
        solve(U, m, V, n)
        solve_back(U, m, V, n)
        for q in range(n):
            i = rows[begin + q]
            inverse = V[(i - start) * n + q]
            mean[begin + q] = y[i] - alpha[i] / inverse
            var[begin + q] = max(1.0 / inverse - noise, 1e-12 * signal)
            if out.size > 0:
                for k in range(m):
                    out[begin + q, k] = -V[k * n + q] / inverse
                out[begin + q, i - start] = 0.0


@_CONTRACT
def coefficients(
    kernel, shape, signal, noise, lengthscales, XT, offsets, sizes, factors, packed,
    expert, new, A, Zflat, scaled, V, r2, phi, out,
):  # fmt: skip
    """(K + σ_y²I)⁻¹k* of one expert at the rows `new` [D, n], into out [n, m]: what its latent mean
    is a linear combination of y with."""
    D, n = new.shape
    start, m = offsets[expert], sizes[expert]
    Z, U = _prepared(
        kernel, shape, signal, noise, lengthscales, XT, start, m, factors[expert], packed, A,
        Zflat, r2, phi,
    )  # fmt: skip
    point = np.empty(D)
    for begin in range(0, n, ROWS):
        rows = min(ROWS, n - begin)
        block = scaled[: D * rows].reshape(D, rows)
        _scale(new, begin, rows, lengthscales, block)
        for i in range(m):
            for d in range(D):
                point[d] = Z[d, i]
            k = V[i * rows : i * rows + rows]
            squared_distances(block, 0, rows, point, r2)
            values(kernel, shape, r2, rows, k)
            for q in range(rows):
                k[q] *= signal
        solve(U, m, V, rows)
        solve_back(U, m, V, rows)
        for q in range(rows):
            for i in range(m):
                out[begin + q, i] = V[i * rows + q]


@_CONTRACT
def covariance_of_means(
    kernel, shape, signal, lengthscales, XT, first, n_first, second, n_second, a, b, out
):
    """aᵀ K b for each row of a [n, n_first] and b [n, n_second], K being the covariance between the
    rows of XT from `first` and from `second` on: how the latent means of two experts vary
    together."""
    D = XT.shape[0]
    wide = n_second + PAD
    Z, W = np.empty((D, wide)), np.empty((len(a), n_first))
    K, point, r2, phi = np.empty((n_first, n_second)), np.empty(D), np.empty(wide), np.empty(wide)
    _scale(XT, second, n_second, lengthscales, Z)
    padded = _padded(n_second)
    for i in range(n_first):
        for d in range(D):
            point[d] = XT[d, first + i] / lengthscales[d]
        squared_distances(Z, 0, padded, point, r2)
        values(kernel, shape, r2, padded, phi)
        row = K[i]
        for j in range(n_second):
            row[j] = signal * phi[j]
    multiply(b, False, K, True, W, 0.0)
    for q in range(len(a)):
        total, left, right = 0.0, a[q], W[q]
        for i in range(n_first):
            total += left[i] * right[i]
        out[q] = total
