"""How far y falls from its predicted mean: as a Gaussian of the predicted deviation says, or as
training rows say, each left out of its own expert.

Experts assume Gaussian noise of one size. Where rows differ in that, most of them fall nearer than
predicted and some much further away, and intervals are wrong at every level. Student's t has the
shape of such a mixture; two numbers, found by maximum likelihood, say how narrow its core is and
how heavy its tails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import beta, gammaln, ndtr, ndtri, stdtr, stdtrit

from healgp import metrics

Array = np.ndarray

#: The gain in NLPD that makes up for deviations that are not the model's own, and in the log
#: likelihood of all rows that makes up for tails.
_GAIN, _EVIDENCE = 0.01, 5.0

#: Degrees of freedom that are compared (with one or fewer there would be no mean), and steps to the
#: core of each, which are more than it takes to the last digit; the narrowest core, beside the root
#: mean square.
_FREEDOM, _STEPS, _NARROWEST = np.geomspace(1.1, 100.0, 80), 60, 1e-3

#: What a scale or a core may be, and degrees of freedom that are not infinite.
_RANGE, _MOST = (1e-100, 1e100), 1e6


@dataclass(frozen=True)
class Deviations:
    """What y's deviations are: the model's own times `scale` is the standard deviation s that is
    reported, and (y − m) / (core · s) has Student's t distribution with that many degrees of
    freedom, infinity being the Gaussian."""

    scale: float = 1.0
    core: float = 1.0
    freedom: float = np.inf

    def __post_init__(self) -> None:
        low, high = _RANGE
        if not (low < self.scale < high and low < self.core < high):
            raise ValueError(
                "scale and core of deviations must be above 0, and not beyond all size"
            )
        if not (self.gaussian or 1.0 < self.freedom < _MOST):
            raise ValueError("degrees of freedom must be above 1, and below 10⁶ or infinite")

    @property
    def gaussian(self) -> bool:
        return self.freedom == np.inf

    def log_density(self, y: Array, mean: Array, std: Array) -> Array:
        """log p(y) of each row."""
        if self.gaussian:
            return metrics.log_density(y, mean, self.core * std)
        y, mean, std = metrics.aligned(y, mean, std)
        return _log_t((y - mean) / std, self.core, self.freedom) - np.log(std)

    def position(self, y: Array, mean: Array, std: Array) -> Array:
        """P(Y ≤ y) of each row."""
        z = (y - mean) / (self.core * std)
        return ndtr(z) if self.gaussian else stdtr(self.freedom, z)

    def quantile(self, p: Array | float) -> Array | float:
        """Where the share p of the distribution lies below, in deviations s from the mean."""
        return self.core * (ndtri(p) if self.gaussian else stdtrit(self.freedom, p))

    def crps(self, y: Array, mean: Array, std: Array) -> float:
        """Continuous ranked probability score, the mean over rows; with z = (y − m)/(core · s) and
        ν degrees of freedom, core · s times
        z(2F(z) − 1) + 2f(z)(ν + z²)/(ν − 1) − 2√ν B(½, ν − ½) / ((ν − 1) B(½, ν/2)²)."""
        if self.gaussian:
            return metrics.crps(y, mean, self.core * std)
        y, mean, std = metrics.aligned(y, mean, std)
        nu, s = self.freedom, self.core * std
        z = (y - mean) / s
        # f(z)(ν + z²) as one exponential: z² alone may overflow
        product = np.exp(_log_t(z, 1.0, nu) + 2.0 * np.log(np.hypot(np.sqrt(nu), z)))
        spread = np.sqrt(nu) * beta(0.5, nu - 0.5) / beta(0.5, 0.5 * nu) ** 2
        parts = z * (2.0 * stdtr(nu, z) - 1.0) + 2.0 * (product - spread) / (nu - 1.0)
        return float(np.mean(s * parts))


#: The model's own.
GAUSSIAN = Deviations()


def _log_t(z: Array, core: Any, nu: Any) -> Array:
    """log p of z, `core` times Student's t."""
    constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(np.pi * nu)
    return constant - np.log(core) - (nu + 1.0) * np.log(np.hypot(1.0, z / (core * np.sqrt(nu))))


def found(z: Array) -> Deviations:
    """The deviations of rows whose y are z predicted deviations from their means.

    The standard deviation is multiplied by the root mean square of z where that gains enough and is
    not the doing of a few outliers (two standard errors from 1). Then Student's t is taken where it
    is clearly more likely than any Gaussian.
    """
    largest = float(np.max(np.abs(z), initial=0.0))
    if not _RANGE[0] < largest < _RANGE[1]:
        return GAUSSIAN
    z = z / largest  # so that no power of it overflows
    square = float(np.mean(z**2))
    s = largest * np.sqrt(square)
    enough = 0.5 * (s**2 - 1.0) - np.log(s) >= _GAIN
    error = float(np.std(z**2)) / np.sqrt(len(z)) / square  # of the mean square, as a share of it
    scale = float(s) if enough and abs(1.0 - s**-2) >= 2.0 * error else 1.0
    z = z / np.sqrt(square)

    # EM of the core of each t: rows far out count less, by (ν + 1) / (ν + z²/c²)
    nu, core2 = _FREEDOM[:, None], np.ones((len(_FREEDOM), 1))
    for _ in range(_STEPS):
        core2 = np.mean((nu + 1.0) * z**2 / (nu + z**2 / core2), axis=1, keepdims=True)
        core2 = np.maximum(core2, _NARROWEST**2)  # rows that are met exactly would end it at 0
    core = np.sqrt(core2)
    likelihoods = _log_t(z, core, nu).mean(axis=1)
    best = int(np.argmax(likelihoods))
    gain = likelihoods[best] + 0.5 * (1.0 + np.log(2.0 * np.pi))  # on the best Gaussian
    if gain < max(_GAIN, _EVIDENCE / len(z)):
        return Deviations(scale)
    return Deviations(scale, float(core[best, 0]) * float(s) / scale, float(_FREEDOM[best]))
