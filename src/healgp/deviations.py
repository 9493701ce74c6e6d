"""How far y falls from its predicted mean: as a Gaussian of the predicted deviation says, or as
training rows say, each left out of its own expert.

Experts assume Gaussian noise of one size. Where rows differ in that, most of them fall nearer than
predicted and some much further away, and intervals are wrong at every level. Student's t has the
shape of such a mixture; two numbers, found by maximum likelihood, say how narrow its core is and
how heavy its tails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import beta, gammaln, ndtr, ndtri, stdtr, stdtrit

from healgp import metrics

Array = np.ndarray

#: The gain in NLPD that makes up for deviations that are not the model's own, and in the log
#: likelihood of all rows that makes up for tails.
_GAIN, _EVIDENCE = 0.01, 5.0

#: Degrees of freedom, and factors of the core, that are looked through. With one degree or less
#: there would be no mean.
_FREEDOM, _CORE = (1.1, 200.0), (1e-3, 1e3)


@dataclass(frozen=True)
class Deviations:
    """What y's deviations are: the model's own times `scale` is the standard deviation s that is
    reported, and (y − m) / (core · s) has Student's t distribution with that many degrees of
    freedom, infinity being the Gaussian."""

    scale: float = 1.0
    core: float = 1.0
    freedom: float = np.inf

    def __post_init__(self) -> None:
        if not (0.0 < self.scale < np.inf and 0.0 < self.core < np.inf and self.freedom > 1.0):
            raise ValueError("scale and core must be above 0, and the degrees of freedom above 1")

    @property
    def gaussian(self) -> bool:
        return not np.isfinite(self.freedom)

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
        density = np.exp(_log_t(z, 1.0, nu))
        spread = 2.0 * np.sqrt(nu) / (nu - 1.0) * beta(0.5, nu - 0.5) / beta(0.5, 0.5 * nu) ** 2
        parts = z * (2.0 * stdtr(nu, z) - 1.0) + 2.0 * density * (nu + z**2) / (nu - 1.0) - spread
        return float(np.mean(s * parts))


#: The model's own.
GAUSSIAN = Deviations()


def _log_t(z: Array, core: float, nu: float) -> Array:
    """log p of z, `core` times Student's t."""
    constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(np.pi * nu)
    return constant - np.log(core) - 0.5 * (nu + 1.0) * np.log1p((z / core) ** 2 / nu)


def found(z: Array, with_scale: bool) -> Deviations:
    """The deviations of rows whose y are z predicted deviations from their means.

    `with_scale`, the standard deviation is multiplied by the root mean square of z where that gains
    enough and is not the doing of a few outliers (two standard errors from 1). Then Student's t is
    taken where it is clearly more likely than any Gaussian.
    """
    square = float(np.mean(z**2))
    if not 0.0 < square < np.inf:
        return GAUSSIAN
    s = np.sqrt(square)
    enough = 0.5 * (square - 1.0) - np.log(s) >= _GAIN
    beyond = abs(square - 1.0) >= 2.0 * float(np.std(z**2)) / np.sqrt(len(z))
    scale = float(s) if with_scale and enough and beyond else 1.0
    z = z / scale

    def loss(p: Array) -> float:
        return -float(_log_t(z, np.exp(p[0]), np.exp(p[1])).mean())

    start = np.log([np.clip(np.median(np.abs(z)) / ndtri(0.75), *_CORE), 4.0])
    fit = minimize(loss, start, method="L-BFGS-B", bounds=np.log([_CORE, _FREEDOM]))
    gain = np.log(s / scale) + 0.5 * (1.0 + np.log(2.0 * np.pi)) - fit.fun  # on the best Gaussian
    if gain < max(_GAIN, _EVIDENCE / len(z)):
        return Deviations(scale)
    core, freedom = np.exp(fit.x)
    return Deviations(scale, float(core), float(freedom))
