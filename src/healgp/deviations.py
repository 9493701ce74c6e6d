"""How far y falls from its predicted mean: as a Gaussian of the predicted deviation says, or as
training rows say, each left out of its own expert.

Experts assume Gaussian noise of one size. Where rows differ in that, most of them fall nearer than
predicted and some much further away, and intervals are wrong at every level. Student's t has the
shape of such a mixture; two numbers, found by maximum likelihood, say how narrow its core is and
how heavy its tails.

Training rows say this of places where there are data. Where the model is less sure than at any of
them, it is taken at its word for the variance that goes beyond theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import beta, gammaln, ndtr, ndtri, stdtr, stdtrit

from healgp import metrics

Array = np.ndarray

#: The gain in NLPD that makes up for deviations that are not the model's own, and in the log
#: likelihood of all rows that makes up for tails.
_GAIN, _EVIDENCE = 0.01, 5.0

#: Degrees of freedom that are compared (with one or fewer there would be no mean), and steps to the
#: core of each, which are more than it takes to the last digit; the narrowest core, beside the
#: median of |z|.
_FREEDOM, _STEPS, _NARROWEST = np.geomspace(1.1, 100.0, 80), 60, 1e-3

#: What a scale or a core may be, and degrees of freedom that are not infinite.
_RANGE, _MOST = (1e-100, 1e100), 1e6

#: The share of rows with smaller predicted deviations than that up to which rows say how it is.
_KNOWN = 0.99


@dataclass(frozen=True)
class Deviations:
    """What y's deviations are: the model's own times `scale` is the standard deviation s that is
    reported, and (y − m) / (core · s) has Student's t distribution with that many degrees of
    freedom, infinity being the Gaussian.

    That is so up to the deviation `known` of the model's own. A variance v beyond known² is taken
    for the sum of known², of which all this is true, and of v − known², which is the model's own
    and Gaussian: s² = scale² known² + v − known² (with a scale above 1 scale² v, to be on the safe
    side), and with κ = scale² known² / s² the core² is κ core² + 1 − κ, and freedom / κ are the
    degrees of freedom.
    """

    scale: float = 1.0
    core: float = 1.0
    freedom: float = np.inf
    known: float = np.inf

    def __post_init__(self) -> None:
        low, high = _RANGE
        if not (low < self.scale < high and low < self.core < high):
            raise ValueError(
                "scale and core of deviations must be above 0, and not beyond all size"
            )
        if not (self.gaussian or 1.0 < self.freedom < _MOST):
            raise ValueError("degrees of freedom must be above 1, and below 10⁶ or infinite")
        if not self.known > 0.0:
            raise ValueError("the deviation that is known must be above 0")

    @property
    def gaussian(self) -> bool:
        return self.freedom == np.inf

    def within(self, std: Array) -> Deviations:
        """The same as found on rows of the model's own deviations `std`: it holds up to those."""
        return self if self == GAUSSIAN else replace(self, known=float(np.quantile(std, _KNOWN)))

    def times(self, unit: float) -> Deviations:
        """The same for y in another unit."""
        return replace(self, known=unit * self.known)

    def reported(self, std: Array) -> Array:
        """The standard deviation s of y from the model's own."""
        if self.scale >= 1.0:
            return self.scale * std
        ratio = np.minimum(self.known / std, 1.0)
        return std * np.sqrt(1.0 - ratio**2 * (1.0 - self.scale**2))

    def _shape(self, std: Array) -> tuple[Array, Array]:
        """Core and degrees of freedom of rows with deviations s."""
        share = np.minimum(self.scale * self.known / np.asarray(std, dtype=float), 1.0) ** 2  # κ
        with np.errstate(divide="ignore"):
            nu = np.minimum(self.freedom / share, _MOST)
        return np.sqrt(1.0 - share * (1.0 - self.core**2)), nu

    def log_density(self, y: Array, mean: Array, std: Array) -> Array:
        """log p(y) of each row."""
        core, nu = self._shape(std)
        if self.gaussian:
            return metrics.log_density(y, mean, core * std)
        y, mean, std = metrics.aligned(y, mean, std)
        return _log_t((y - mean) / std, core, nu) - np.log(std)

    def position(self, y: Array, mean: Array, std: Array) -> Array:
        """P(Y ≤ y) of each row."""
        core, nu = self._shape(std)
        z = (y - mean) / (core * std)
        return ndtr(z) if self.gaussian else stdtr(nu, z)

    def quantile(self, p: Array | float, std: Array) -> Array:
        """Where the share p of the distribution lies below, in deviations s from the mean, of rows
        with these s."""
        core, nu = self._shape(std)
        return core * (ndtri(p) if self.gaussian else stdtrit(nu, p))

    def crps(self, y: Array, mean: Array, std: Array) -> float:
        """Continuous ranked probability score, the mean over rows; with z = (y − m)/(core · s) and
        ν degrees of freedom, core · s times
        z(2F(z) − 1) + 2f(z)(ν + z²)/(ν − 1) − 2√ν B(½, ν − ½) / ((ν − 1) B(½, ν/2)²)."""
        core, nu = self._shape(std)
        s = core * std
        if self.gaussian:
            return metrics.crps(y, mean, s)
        y, mean, s = metrics.aligned(y, mean, s)
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
    least = (_NARROWEST * (np.median(np.abs(z)) or 1.0)) ** 2
    for _ in range(_STEPS):
        core2 = np.mean((nu + 1.0) * z**2 / (nu + z**2 / core2), axis=1, keepdims=True)
        core2 = np.maximum(core2, least)  # rows that are met exactly would end it at 0
    core = np.sqrt(core2)
    likelihoods = _log_t(z, core, nu).mean(axis=1)
    best = int(np.argmax(likelihoods))
    gain = likelihoods[best] + 0.5 * (1.0 + np.log(2.0 * np.pi))  # on the best Gaussian
    if gain < max(_GAIN, _EVIDENCE / len(z)):
        return Deviations(scale)
    return Deviations(scale, float(core[best, 0]) * float(s) / scale, float(_FREEDOM[best]))
