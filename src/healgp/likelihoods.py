"""From latent functions to what is observed: one class for each likelihood.

Each knows its number of latent functions, the expectation of log p(y | f) under independent
Gaussians f_c ~ N(mean_c, var_c) with its derivatives in mean, var and the likelihood's own
parameter, and what it predicts from such Gaussians. `mean` and `var` are [n, C].

Gaussian, Poisson and the softmax's bound are closed forms; the others are Gauss–Hermite sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import gammaln, logsumexp, ndtr, ndtri, pdtr, softmax

from healgp.metrics import log_density
from healgp.quadrature import gauss_hermite, largest, log_probit, normal_points, tilts

Array = np.ndarray

#: Nodes of the Gauss–Hermite sums in training, and in prediction, which is done once.
NODES, PREDICTION_NODES = 20, 64

#: The smallest probability that a logarithm is taken of.
TINY = 1e-300

#: Numbers that an intermediate array may have; longer inputs are worked through in parts.
_PART = 2**22


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
        log_probit(2.0 * y - 1.0, mean[:, 0], np.sqrt(var[:, 0]), x, w, value, dmean, dvar)
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
        largest(y.astype(np.intp), mean, np.sqrt(var), x, w, p, dmean, dvar)
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
        tilts(np.ascontiguousarray(mean.T), np.ascontiguousarray(var.T), a, log_sum)
        a = a.T
        rows, y = np.arange(len(y)), y.astype(np.intp)
        value = mean[rows, y] - 0.5 * (a * a * var).sum(axis=1) - log_sum
        dmean = -a
        dmean[rows, y] += 1.0
        return Expectations(value, dmean, -0.5 * a * (1.0 - a))

    def probabilities(self, mean: Array, var: Array) -> Array:
        """P(y = c) [n, C], over points that stand for a standard normal distribution. Classes are
        taken in the order of their means, so that the answer does not depend on their numbers."""
        z = normal_points(self.n_classes)
        p, order = np.empty_like(mean), np.argsort(mean, axis=1, kind="stable")
        for part in _parts(len(mean), z.size):
            m = np.take_along_axis(mean[part], order[part], axis=1)
            s = np.sqrt(np.take_along_axis(var[part], order[part], axis=1))
            f = softmax(m[:, None, :] + s[:, None, :] * z, axis=2).mean(axis=1)
            np.put_along_axis(p[part], order[part], f, axis=1)
        return p
