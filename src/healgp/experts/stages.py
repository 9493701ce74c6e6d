"""The stages of a sparse expert's pass over a block of rows, each one jitted call without the GIL.

Few long calls, because threads that pass the GIL to and fro for every small product lose more than
they gain. Arrays are C-ordered; C counts latent functions, M inducing inputs, n rows.
"""

from __future__ import annotations

import numpy as np

from healgp.jit import jit
from healgp.kernels import profile, squared_distances, values
from healgp.linalg import cholesky, invert, invert_factor, multiply, multiply_triangle, square

_SUM = jit("contract", "reassoc")


@jit("contract")
def covariances(kernel, shape, signal, ZT, XT, K):
    """K [M, n] of scaled inputs ZT [D, M] and XT [D, n]."""
    D, n = XT.shape
    r2, point = np.empty(n), np.empty(D)
    for i in range(len(K)):
        row = K[i]
        for d in range(D):
            point[d] = ZT[d, i]
        squared_distances(XT, 0, n, point, r2)
        values(kernel, shape, r2, n, row)
        for j in range(n):
            row[j] *= signal


@jit("contract")
def covariances_and_slopes(kernel, shape, signal, ZT, XT, K, slope, tilt):
    """The same with σ²φ′ and σ² ∂φ/∂log shape."""
    D, n = XT.shape
    r2, point = np.empty(n), np.empty(D)
    for i in range(len(K)):
        row, s, t = K[i], slope[i], tilt[min(i, len(tilt) - 1)]
        for d in range(D):
            point[d] = ZT[d, i]
        squared_distances(XT, 0, n, point, r2)
        profile(kernel, shape, r2, n, row, s, t)
        for j in range(n):
            row[j] *= signal
            s[j] *= signal
        if len(tilt) > 1:
            for j in range(n):
                t[j] *= signal


@jit("contract")
def frame(kernel, shape, signal, ZT, jitters, K, slope, tilt, R):
    """K = K_uu with its slopes and the first jitter (a multiple of the signal variance) that lets
    it be factorised, UᵀU, and R = U⁻¹. False if none does."""
    M = len(K)
    covariances_and_slopes(kernel, shape, signal, ZT, ZT, K, slope, tilt)
    flat = R.reshape(M * M)
    for jitter in jitters:
        for i in range(M):
            K[i, i] = (1.0 + jitter) * signal
        R[:] = K
        if cholesky(flat, M) and np.isfinite(R[M - 1, M - 1]):
            invert_factor(flat, M)
            for i in range(M):
                R[i, :i] = 0.0
            return True
    return False


@jit("contract")
def features(kernel, shape, signal, ZT, XT, R, V):
    """V = Rᵀ K(Z, X), R being the inverse of an upper factor."""
    covariances(kernel, shape, signal, ZT, XT, V)
    multiply_triangle(R, True, V)


@jit("contract")
def features_and_slopes(kernel, shape, signal, ZT, XT, R, K, V, slope, tilt):
    """The same with what the gradient needs."""
    covariances_and_slopes(kernel, shape, signal, ZT, XT, K, slope, tilt)
    V[:] = K
    multiply_triangle(R, True, V)


@jit("contract")
def statistics(V, weights, shifts, precision, shift):
    """Upper triangles of precision[c] = V diag(weights[c]) Vᵀ, and shift[c] = V shifts[c]."""
    (M, n), A = V.shape, np.empty(V.size)
    for c in range(len(precision)):
        roots = np.sqrt(weights[c])
        for i in range(M):
            row, source = A[i * n : i * n + n], V[i]
            for j in range(n):
                row[j] = source[j] * roots[j]
        square(A, M, n, precision[c].reshape(M * M))
    multiply(shifts, False, V, True, shift, 0.0)


@jit("contract")
def posterior(cov, shift, mean):
    """cov[c] ← S_c from S_c⁻¹ (its upper triangle), mean[c] = S_c shift[c]; returns
    Σ_c KL(N(mean_c, S_c) ‖ N(0, I)), NaN if a precision is not positive definite."""
    M, total = cov.shape[1], 0.0
    for c in range(len(cov)):
        S = cov[c]
        flat = S.reshape(M * M)
        if not cholesky(flat, M):
            return np.nan
        for i in range(M):
            total += np.log(S[i, i]) - 0.5
        invert(flat, M)
        for i in range(M):
            total += 0.5 * S[i, i]
            for j in range(i):
                S[i, j] = S[j, i]
        multiply(shift[c : c + 1], False, S, False, mean[c : c + 1], 0.0)
        for i in range(M):
            total += 0.5 * mean[c, i] ** 2
    return total


@_SUM
def latent(q_mean, q_cov, V, signal, mean, var, T):
    """mean[c] = Vᵀ m_c and var[c] = σ² − diag(VᵀV) + diag(Vᵀ S_c V) [C, n]; T[c] = S_c V, of which
    fewer than C are kept if there is room for fewer: the last is then overwritten."""
    (M, n), left = V.shape, np.full(V.shape[1], signal)
    for i in range(M):
        a = V[i]
        for j in range(n):
            left[j] -= a[j] * a[j]
    multiply(q_mean, False, V, False, mean, 0.0)
    for c in range(len(var)):
        t, total = T[min(c, len(T) - 1)], var[c]
        multiply(q_cov[c], False, V, False, t, 0.0)
        total[:] = left
        for i in range(M):
            a, b = V[i], t[i]
            for j in range(n):
                total[j] += a[j] * b[j]
        for j in range(n):
            total[j] = max(total[j], 1e-10 * signal)


@_SUM
def _by_covariances(q_mean, V, T, by_mean, by_var, R, by_K, product):
    """With G = ∂ELBO/∂V = Σ_c m_c by_mean[c]ᵀ + 2 (T_c − V) diag(by_var[c]): by_K = R G [M, n] and
    product = G Vᵀ."""
    (M, n), G, total = V.shape, by_K, np.zeros(V.shape[1])
    for c in range(len(T)):
        for j in range(n):
            total[j] -= 2.0 * by_var[c, j]
    for i in range(M):
        v, row = V[i], G[i]
        for j in range(n):
            row[j] = v[j] * total[j]
        for c in range(len(T)):
            m, g, t, w = q_mean[c, i], by_mean[c], T[c, i], by_var[c]
            for j in range(n):
                row[j] += m * g[j] + 2.0 * t[j] * w[j]
    multiply(G, False, V, True, product, 0.0)
    multiply_triangle(R, False, G)


@jit("contract")
def _by_inducing(R, product):
    """∂ELBO/∂K_uu = −½ R (L + Lᵀ) Rᵀ [M, M], L being the lower triangle of `product` with half its
    diagonal: nothing else of (∂ELBO/∂V) Vᵀ matters for K_uu = UᵀU."""
    M = len(R)
    inner, out = np.empty((M, M)), np.empty((M, M))
    for i in range(M):
        for j in range(i + 1):
            inner[i, j] = inner[j, i] = -0.5 * product[i, j]
    multiply_triangle(R, False, inner)
    multiply(inner, False, R, True, out, 0.0)
    return out


@_SUM
def _through_kernel(G, K, slope, tilt, ZT, XT, lengthscales, inducing):
    """From G = ∂ELBO/∂K, which is overwritten, to log ℓ [D] and Z [M, D] in units of ℓ: with
    H = G ∘ σ²φ′ they get −2 Σ_ij H_ij (z_id − x_jd)² and 2 Σ_j H_ij (z_id − x_jd). Returns what
    log σ² and log shape get. Inputs are centred first, else squares would lose digits."""
    (M, n), D = G.shape, len(ZT)
    Z, X = np.empty(ZT.shape), np.empty(XT.shape)
    for d in range(D):
        centre = ZT[d].mean()
        for i in range(M):
            Z[d, i] = ZT[d, i] - centre
        for j in range(n):
            X[d, j] = XT[d, j] - centre
    rows, columns, first = np.zeros(M), np.zeros(n), np.empty((M, D))
    by_signal, by_shape = 0.0, 0.0
    for i in range(M):
        g, k, s = G[i], K[i], slope[i]
        if len(tilt) > 1:
            t = tilt[i]
            for j in range(n):
                by_shape += g[j] * t[j]
        total = 0.0
        for j in range(n):
            by_signal += g[j] * k[j]
            g[j] *= s[j]
            total += g[j]
            columns[j] += g[j]
        rows[i] = total
    multiply(G, False, X, True, first, 0.0)
    for d in range(D):
        x, total = X[d], 0.0
        for j in range(n):
            total += columns[j] * x[j] * x[j]
        for i in range(M):
            apart = Z[d, i] * rows[i] - first[i, d]
            total += Z[d, i] * (apart - first[i, d])
            inducing[i, d] = 2.0 * apart
        lengthscales[d] = -2.0 * total
    return by_signal, by_shape


@_SUM
def through_rows(
    q_mean, V, T, by_mean, by_var, R, ZT, XT, K, slope, tilt, by_K, product, lengthscales, inducing
):
    """What a block of rows adds to the gradient by way of K(Z, X); `product` is left for
    K(Z, Z)."""
    _by_covariances(q_mean, V, T, by_mean, by_var, R, by_K, product)
    return _through_kernel(by_K, K, slope, tilt, ZT, XT, lengthscales, inducing)


@_SUM
def through_inducing(R, product, ZT, K, slope, tilt, lengthscales, inducing):
    """What all rows together add by way of K(Z, Z), in which Z stands twice."""
    by_K = _by_inducing(R, product)
    sums = _through_kernel(by_K, K, slope, tilt, ZT, ZT, lengthscales, inducing)
    inducing *= 2.0
    return sums
