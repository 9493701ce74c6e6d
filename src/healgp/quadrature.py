"""Expectations under Gaussians that have no closed form, as sums: over Gauss–Hermite nodes, and
over points that stand for a normal distribution; and the softmax's bound, whose best tilts are
found by Newton's method. What training asks for at every step is compiled."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import erfcx
from scipy.stats import norm, qmc

from healgp.jit import jit
from healgp.kernels import exp, log

Array = np.ndarray

#: Points of the softmax's quasi-Monte Carlo sum in prediction.
POINTS = 256

#: Rows of the softmax's bound that are solved side by side, so that LLVM vectorises over them.
_SIDE = 16


@cache
def gauss_hermite(n: int) -> tuple[Array, Array]:
    """Nodes x and weights w with Σ w g(x) ≈ E[g(z)], z ~ N(0, 1)."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    return x, w / w.sum()


def _tail_polynomial() -> tuple[float, ...]:
    """Coefficients, the highest first, of Φ(−z) e^{z²/2} for z ≥ 0 in u = (z − 3)/(z + 3), within
    1e-12: a Chebyshev interpolant. Numba would call the C library's erfc one number at a time; this
    is plain arithmetic that LLVM vectorises."""

    def function(u: Array) -> Array:
        return 0.5 * erfcx(3.0 * (1.0 + u) / (1.0 - u) * np.sqrt(0.5))

    interpolant = Chebyshev.interpolate(function, 21, domain=(-1.0, 0.999))
    return tuple(float(c) for c in interpolant.convert(kind=Polynomial).coef[::-1])


_TAIL = _tail_polynomial()
_ROOT_2_PI = 0.3989422804014327


@jit("contract", inline=True)
def _scaled_tail(z):
    """Φ(−z) e^{z²/2} for z ≥ 0."""
    u, c = (z - 3.0) / (z + 3.0), _TAIL  # written out: a loop here would not be vectorised around
    p = (((c[0] * u + c[1]) * u + c[2]) * u + c[3]) * u + c[4]
    p = ((((p * u + c[5]) * u + c[6]) * u + c[7]) * u + c[8]) * u + c[9]
    p = ((((p * u + c[10]) * u + c[11]) * u + c[12]) * u + c[13]) * u + c[14]
    p = ((((p * u + c[15]) * u + c[16]) * u + c[17]) * u + c[18]) * u + c[19]
    return (p * u + c[20]) * u + c[21]


@jit("contract")
def log_probit(sign, mean, std, x, w, value, dmean, dvar):
    """E[log Φ(±f)] [n] and its derivatives [n, 1] in mean and variance."""
    Q = len(x)
    logs, slopes = np.empty(Q), np.empty(Q)
    for i in range(len(mean)):
        m, s = sign[i] * mean[i], sign[i] * std[i]
        for q in range(Q):
            t = m + s * x[q]
            z = abs(t)
            e, tail = exp(-0.5 * z * z), _scaled_tail(z)
            if z > 1e3:
                tail = _ROOT_2_PI / z * (1.0 - 1.0 / (z * z))
            inner = 1.0 - e * tail
            positive = t > 0.0
            # log Φ(t), where t is far below zero from its scaled tail
            logs[q] = log(inner if positive else tail) - (0.0 if positive else 0.5 * t * t)
            slopes[q] = _ROOT_2_PI * (e / inner if positive else 1.0 / tail)  # N(t)/Φ(t)
        total, by_mean, by_var = 0.0, 0.0, 0.0
        for q in range(Q):
            total += w[q] * logs[q]
            by_mean += w[q] * slopes[q]
            by_var += w[q] * slopes[q] * x[q]
        value[i] = total
        dmean[i, 0] = sign[i] * by_mean
        dvar[i, 0] = 0.5 * sign[i] * by_var / std[i]


@jit("contract")
def largest(y, mean, std, x, w, p, dmean, dvar):
    """P(f_y is the largest) [n] and its derivatives [n, C] in means and variances, at the nodes x
    with the weights w."""
    n, C = mean.shape
    Q = len(x)
    t, phi, density = np.empty((C, Q)), np.empty((C, Q)), np.empty((C, Q))
    product, total = np.empty(Q), np.empty(Q)
    for i in range(n):
        own = y[i]
        m, s = mean[i, own], std[i, own]
        for q in range(Q):
            product[q], total[q] = w[q], 0.0
        for k in range(C):
            if k == own:
                continue
            scale, tk, pk, dk = 1.0 / std[i, k], t[k], phi[k], density[k]
            offset, slope = (m - mean[i, k]) * scale, s * scale
            for q in range(Q):
                z = min(max(offset + slope * x[q], -37.0), 37.0)
                e = exp(-0.5 * z * z)
                tail = _scaled_tail(abs(z)) * e
                tk[q], dk[q] = z, e
                pk[q] = 1.0 - tail if z > 0.0 else tail
                product[q] *= pk[q]
        p[i] = 0.0
        for q in range(Q):
            p[i] += product[q]
        for k in range(C):
            if k == own:
                continue
            scale, by_mean, by_var = _ROOT_2_PI / std[i, k], 0.0, 0.0
            for q in range(Q):
                # the product with Φ(t_k) replaced by its slope
                slope = product[q] / max(phi[k, q], 1e-290) * density[k, q] * scale
                by_mean += slope
                by_var += slope * t[k, q]
                total[q] += slope
            dmean[i, k] = -by_mean
            dvar[i, k] = -0.5 * by_var / std[i, k]
        by_mean, by_var = 0.0, 0.0
        for q in range(Q):
            by_mean += total[q]
            by_var += total[q] * x[q]
        dmean[i, own] = by_mean
        dvar[i, own] = 0.5 * by_var / s


@jit("contract", inline=True)
def _closer(w, y):
    """A step from w towards the ω > 0 with ω + log ω = y, which is Wright's function of y (Fritsch,
    Shafer and Crowley 1973): the error of w comes to its fourth power."""
    r = y - w - log(w)
    t = (1.0 + w) * (1.0 + w + r / 1.5)
    return w * (1.0 + r / (1.0 + w) * (t - 0.5 * r) / (t - r))


@jit("contract", inline=True)
def _omega(y):
    """Wright's function, to all digits."""
    w = exp(min(y, 0.0)) if y < -2.0 else (exp((y - 1.0) / 1.5) if y < 1.0 else y - log(y))
    return _closer(_closer(w, y), y)


@jit("contract")
def tilts(mean, var, a, log_sum):
    """a = softmax(m + (½ − a) v) [C, n] and the log of the sum under it [n].

    With that logarithm as L, log a_k + v_k a_k = m_k + v_k/2 − L, so v_k a_k = ω(log v_k + m_k +
    v_k/2 − L); and Σ a_k falls with L and is convex, so that Newton's method, begun where one a_k
    alone is 1, finds the L where it is 1 without overshooting.
    """
    C, n = mean.shape
    c, w, share = np.empty((C, _SIDE)), np.empty((C, _SIDE)), np.empty((C, _SIDE))
    L, total, slope = np.empty(_SIDE), np.empty(_SIDE), np.empty(_SIDE)
    for start in range(0, n, _SIDE):
        last = min(_SIDE, n - start) - 1
        L[:] = -np.inf
        for k in range(C):
            for i in range(_SIDE):
                j = start + min(i, last)  # the last row stands in where there are no more
                m, v = mean[k, j], var[k, j]
                w[k, i], c[k, i] = v, m + 0.5 * v
                L[i] = max(L[i], m - 0.5 * v)
            for i in range(_SIDE):
                share[k, i] = 1.0 / w[k, i]
                c[k, i] += log(w[k, i])
        largest = np.inf
        for _ in range(50):
            total[:], slope[:] = 0.0, 0.0
            for k in range(C):
                if largest > 0.1:
                    for i in range(_SIDE):
                        w[k, i] = _omega(max(c[k, i] - L[i], -600.0))
                else:
                    for i in range(_SIDE):
                        w[k, i] = _closer(w[k, i], max(c[k, i] - L[i], -600.0))
                for i in range(_SIDE):
                    total[i] += w[k, i] * share[k, i]
                    slope[i] += w[k, i] * share[k, i] / (1.0 + w[k, i])
            largest, off = 0.0, 0.0
            for i in range(_SIDE):
                off = max(off, abs(total[i] - 1.0))
                slope[i] = (total[i] - 1.0) / slope[i]
                largest = max(largest, abs(slope[i]))
            if off <= 1e-10:
                break
            for i in range(_SIDE):
                L[i] += slope[i]
        for k in range(C):
            for i in range(last + 1):
                a[k, start + i] = w[k, i] * share[k, i] / total[i]
        for i in range(last + 1):
            log_sum[start + i] = L[i]


@cache
def normal_points(C: int) -> Array:
    """About POINTS points [·, C] that stand for a standard normal distribution: some of a Sobol
    sequence, their mirror images, and all of them with the columns moved round, so that no column
    is better off than another."""
    n = 2 ** max(int(np.ceil(np.log2(POINTS / (2 * C)))), 2)
    half = norm.ppf(np.clip(qmc.Sobol(C, seed=0).random(n), 1e-9, 1.0 - 1e-9))
    points = np.concatenate([half, -half])
    return np.concatenate([np.roll(points, k, axis=1) for k in range(C)])
