"""From latent functions to what is observed: one class for each likelihood.

Each knows its number of latent functions, the expectation of log p(y | f) under independent
Gaussians f_c ~ N(mean_c, var_c) with its derivatives in mean, var and the likelihood's own
parameter, and what it predicts from such Gaussians. `mean` and `var` are [n, C].

Gaussian, Poisson and the softmax's bound are closed forms; the others are Gauss–Hermite sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import erfcx, gammaln, logsumexp, ndtr, ndtri, pdtr, softmax
from scipy.stats import norm, qmc

from healgp.jit import jit
from healgp.kernels import exp, log
from healgp.metrics import log_density

Array = np.ndarray

#: Nodes of the Gauss–Hermite sums in training, and in prediction, which is done once.
NODES, PREDICTION_NODES = 20, 64

#: Points of the softmax's quasi-Monte Carlo sum in prediction.
POINTS = 256

#: The smallest probability that a logarithm is taken of.
TINY = 1e-300

#: Numbers that an intermediate array may have; longer inputs are worked through in parts.
_PART = 2**22


@cache
def gauss_hermite(n: int) -> tuple[Array, Array]:
    """Nodes x and weights w with Σ w g(x) ≈ E[g(z)], z ~ N(0, 1)."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    return x, w / w.sum()


@dataclass(frozen=True)
class Expectations:
    """E[log p(y | f)] of each row and its derivatives."""

    value: Array  # [n]
    mean: Array  # [n, C], ∂/∂mean
    var: Array  # [n, C], ∂/∂var
    parameter: float = 0.0  # of the sum over rows, by the likelihood's own parameter


@dataclass(frozen=True)
class Likelihood:
    """What all likelihoods share. `parameter` is trained with the kernel where there is one."""

    parameter: float | None = None

    @property
    def n_latent(self) -> int:
        return 1

    def with_parameter(self, value: float) -> Self:
        return replace(self, parameter=float(value))

    def expectations(self, y: Array, mean: Array, var: Array) -> Expectations:
        raise NotImplementedError

    def log_density(self, y: Array, mean: Array, var: Array) -> Array:
        """log p(y) [n], f being integrated out."""
        raise NotImplementedError

    def first_sites(self, y: Array) -> tuple[Array, Array]:
        """Weight and shift [n, C] to start from: silent, unless there is a better guess."""
        return np.zeros((len(y), self.n_latent)), np.zeros((len(y), self.n_latent))

    def exact_sites(self, y: Array) -> tuple[Array, Array] | None:
        """Weight and shift [n, 1] with p(y | f) ∝ exp(shift·f − ½ weight·f²), where it has that
        form."""
        return None


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y = f + noise; the parameter is log σ_y²."""

    parameter: float = 0.0

    def expectations(self, y: Array, mean: Array, var: Array) -> Expectations:
        noise = np.exp(self.parameter)
        residual = y[:, None] - mean
        square = (residual**2 + var) / noise
        return Expectations(
            -0.5 * (np.log(2.0 * np.pi * noise) + square[:, 0]),
            residual / noise,
            np.full_like(var, -0.5 / noise),
            float(0.5 * (square - 1.0).sum()),
        )

    def log_density(self, y: Array, mean: Array, var: Array) -> Array:
        std = np.sqrt(var[:, 0] + np.exp(self.parameter))
        return log_density(y, mean[:, 0], std)

    def exact_sites(self, y: Array) -> tuple[Array, Array]:
        weight = np.full((len(y), 1), np.exp(-self.parameter))
        return weight, weight * y[:, None]


@dataclass(frozen=True)
class Poisson(Likelihood):
    """y ~ Poisson(exp(c + f)); the parameter is c, the log of a mean."""

    parameter: float = 0.0

    def expectations(self, y: Array, mean: Array, var: Array) -> Expectations:
        rate = self.rate(mean, var)  # cut off where the ELBO is near −∞, and a step refused
        slope = y[:, None] - rate
        return Expectations(
            (y[:, None] * (self.parameter + mean) - rate)[:, 0] - gammaln(y + 1.0),
            slope,
            -0.5 * rate,
            float(slope.sum()),
        )

    def first_sites(self, y: Array) -> tuple[Array, Array]:
        # as if log(½ + y) had been seen, with the variance that it has for large counts
        weight = y[:, None] + 0.5
        return weight, weight * (np.log(weight) - self.parameter)

    def rate(self, mean: Array, var: Array) -> Array:
        """E[exp(c + f)], the mean of y."""
        return _exp(self.parameter + mean + 0.5 * var)

    def variance(self, mean: Array, var: Array) -> Array:
        """Variance of y: E[λ] + var[λ], λ being log-normal."""
        rate = self.rate(mean, var)
        return rate + rate * _exp(self.parameter + mean + 1.5 * var) * -np.expm1(-var)

    def log_density(self, y: Array, mean: Array, var: Array) -> Array:
        """log p(y) of each row, f being integrated out."""
        out = np.empty(len(y))
        for part in _parts(len(y), PREDICTION_NODES):
            logs, w = self._log_rates(mean[part], var[part])
            counts = y[part, None]
            terms = counts * logs - _exp(logs) - gammaln(counts + 1.0)
            out[part] = logsumexp(terms, axis=1, b=w)
        return out

    def cdf(self, y: Array, mean: Array, var: Array) -> Array:
        """P(count ≤ y) of each row, f being integrated out; 0 for y below 0."""
        out = np.zeros(len(y))
        known = np.flatnonzero(y >= 0)
        for part in _parts(len(known), PREDICTION_NODES):
            rows = known[part]
            logs, w = self._log_rates(mean[rows], var[rows])
            out[rows] = pdtr(y[rows, None], _exp(logs)) @ w
        return np.minimum(out, 1.0)

    def quantile(self, probability: float, mean: Array, var: Array) -> Array:
        """The smallest count k with P(y ≤ k) ≥ probability, by bisection; of counts beyond a
        million that of the rate, which is within a thousandth."""
        out = np.exp(np.minimum(self.parameter + mean + np.sqrt(var) * ndtri(probability), 300.0))
        small = np.flatnonzero(out < 1e6)
        for part in _parts(len(small), PREDICTION_NODES):
            rows = small[part]
            logs, w = self._log_rates(mean[rows], var[rows])
            rates = np.exp(np.minimum(logs, 25.0))
            low, high = np.full(len(rows), -1.0), 2.0 * np.ceil(out[rows]) + 40.0
            left = np.arange(len(rows))
            # the upper bound may be too low when the rate is uncertain
            while len(left := left[pdtr(high[left, None], rates[left]) @ w < probability]):
                low[left], high[left] = high[left], 4.0 * high[left]
            left = np.arange(len(rows))
            while len(left := left[high[left] - low[left] > 1.0]):
                middle = np.floor(0.5 * (low[left] + high[left]))
                enough = pdtr(middle[:, None], rates[left]) @ w >= probability
                high[left] = np.where(enough, middle, high[left])
                low[left] = np.where(enough, low[left], middle)
            out[rows] = high
        return np.floor(out)

    def _log_rates(self, mean: Array, var: Array) -> tuple[Array, Array]:
        """Logarithms of rates [n, nodes] and the rates' weights."""
        x, w = gauss_hermite(PREDICTION_NODES)
        return self.parameter + mean[:, None] + np.sqrt(var)[:, None] * x, w


def _exp(x: Array) -> Array:
    """eˣ, at most e³⁰⁰: its square is still a number."""
    return np.exp(np.minimum(x, 300.0))


def _parts(n: int, width: int) -> list[slice]:
    """n rows in parts, for intermediate arrays of `width` numbers per row."""
    rows = max(_PART // width, 1)
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


@dataclass(frozen=True)
class Classification(Likelihood):
    """Classes are numbered from 0."""

    n_classes: int = 2

    def probabilities(self, mean: Array, var: Array) -> Array:
        """P(y = c) [n, n_classes], f being integrated out."""
        raise NotImplementedError

    def log_density(self, y: Array, mean: Array, var: Array) -> Array:
        """log p(y) of each row."""
        p = self.probabilities(mean, var)
        return np.log(np.maximum(p[np.arange(len(y)), y.astype(np.intp)], TINY))


@dataclass(frozen=True)
class Bernoulli(Classification):
    """P(y = 1 | f) = Φ(f), y being 0 or 1."""

    def expectations(self, y: Array, mean: Array, var: Array) -> Expectations:
        value, (dmean, dvar) = np.empty(len(y)), np.empty((2, *mean.shape))
        x, w = gauss_hermite(NODES)
        _log_probit(2.0 * y - 1.0, mean[:, 0], np.sqrt(var[:, 0]), x, w, value, dmean, dvar)
        return Expectations(value, dmean, dvar)

    def probabilities(self, mean: Array, var: Array) -> Array:
        """P(y = 0) and P(y = 1) [n, 2]: E[Φ(f)] = Φ(mean / √(1 + var))."""
        z = mean[:, 0] / np.sqrt(1.0 + var[:, 0])
        return np.stack([ndtr(-z), ndtr(z)], axis=1)


@dataclass(frozen=True)
class RobustMax(Classification):
    """y is the class with the largest f_c with probability 1 − ε, else any other alike."""

    epsilon: float = 1e-3

    @property
    def n_latent(self) -> int:
        return self.n_classes

    def expectations(self, y: Array, mean: Array, var: Array) -> Expectations:
        p, (dmean, dvar) = np.empty(len(y)), np.empty((2, *mean.shape))
        x, w = gauss_hermite(NODES)
        _largest(y.astype(np.intp), mean, np.sqrt(var), x, w, p, dmean, dvar)
        right, wrong = np.log1p(-self.epsilon), np.log(self.epsilon / (self.n_classes - 1))
        gain = right - wrong
        return Expectations(wrong + gain * p, gain * dmean, gain * dvar)

    def probabilities(self, mean: Array, var: Array) -> Array:
        """P(y = c) [n, C]."""
        n, C = mean.shape
        p, std = np.empty((n, C)), np.sqrt(var)
        if C == 2:
            z = (mean[:, 0] - mean[:, 1]) / np.sqrt(var.sum(axis=1))
            p = np.stack([ndtr(z), ndtr(-z)], axis=1)
            return (1.0 - self.epsilon) * p + self.epsilon * (1.0 - p)
        for part in _parts(n, PREDICTION_NODES * C):
            for c in range(C):
                p[part, c] = _probability_of_largest(c, mean[part], std[part])
        p /= p.sum(axis=1, keepdims=True)
        return (1.0 - self.epsilon) * p + self.epsilon / (C - 1) * (1.0 - p)


def _probability_of_largest(c: int, mean: Array, std: Array) -> Array:
    """P(f_c is the largest) [n] = ∫ N(f | m_c, s_c²) Π_{k≠c} Φ((f − m_k)/s_k) df."""
    x, w = gauss_hermite(PREDICTION_NODES)
    f = mean[:, [c]] + std[:, [c]] * x
    others = np.arange(mean.shape[1]) != c
    t = (f[:, :, None] - mean[:, None, others]) / std[:, None, others]
    return ndtr(t).prod(axis=2) @ w


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
def _log_probit(sign, mean, std, x, w, value, dmean, dvar):
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
def _largest(y, mean, std, x, w, p, dmean, dvar):
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


@dataclass(frozen=True)
class Softmax(Classification):
    """P(y = c | f) = exp f_c / Σ_k exp f_k.

    Training uses the tilted bound of Knowles and Minka (2011),

        E[log Σ exp f_k] ≤ ½ Σ a_k² v_k + log Σ exp(m_k + (1 − 2a_k) v_k / 2),

    at the a that make it tightest, a = softmax(m + (1 − 2a) v / 2). There its derivative by v_k is
    ½ a_k (1 − a_k), and that by m_k is a_k.
    """

    @property
    def n_latent(self) -> int:
        return self.n_classes

    def expectations(self, y: Array, mean: Array, var: Array) -> Expectations:
        a, log_sum = np.empty(mean.shape[::-1]), np.empty(len(mean))
        _tilts(np.ascontiguousarray(mean.T), np.ascontiguousarray(var.T), a, log_sum)
        a = a.T
        rows, y = np.arange(len(y)), y.astype(np.intp)
        value = mean[rows, y] - 0.5 * (a * a * var).sum(axis=1) - log_sum
        dmean = -a
        dmean[rows, y] += 1.0
        return Expectations(value, dmean, -0.5 * a * (1.0 - a))

    def probabilities(self, mean: Array, var: Array) -> Array:
        """P(y = c) [n, C], over points that stand for a standard normal distribution. Classes are
        taken in the order of their means, so that the answer does not depend on their numbers."""
        z = _normal_points(self.n_classes)
        p, order = np.empty_like(mean), np.argsort(mean, axis=1, kind="stable")
        for part in _parts(len(mean), z.size):
            m = np.take_along_axis(mean[part], order[part], axis=1)
            s = np.sqrt(np.take_along_axis(var[part], order[part], axis=1))
            f = softmax(m[:, None, :] + s[:, None, :] * z, axis=2).mean(axis=1)
            np.put_along_axis(p[part], order[part], f, axis=1)
        return p


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


#: Rows that are solved side by side, so that LLVM vectorises over them.
_SIDE = 16


@jit("contract")
def _tilts(mean, var, a, log_sum):
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
def _normal_points(C: int) -> Array:
    """About POINTS points [·, C] that stand for a standard normal distribution: some of a Sobol
    sequence, their mirror images, and all of them with the columns moved round, so that no column
    is better off than another."""
    n = 2 ** max(int(np.ceil(np.log2(POINTS / (2 * C)))), 2)
    half = norm.ppf(np.clip(qmc.Sobol(C, seed=0).random(n), 1e-9, 1.0 - 1e-9))
    points = np.concatenate([half, -half])
    return np.concatenate([np.roll(points, k, axis=1) for k in range(C)])
