"""The committee's rules: from moments [J, n] and weights [J, n] to one Gaussian per row.

Every rule is a weighted sum over experts of two terms, and a last step: that is what lets
predictions stream over experts. The functions below do both at once on whole arrays, for the
moments of any GP library:

>>> import numpy as np
>>> from healgp import aggregation
>>> mean, var = np.array([[1.0], [3.0]]), np.array([[1.0], [1.0]])
>>> [float(v[0]) for v in aggregation.poe(mean, var)]
[2.0, 0.5]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Moment = np.ndarray | float
Gaussian = tuple[Array, Array]

#: The least precision: weights that are all zero say nothing, which is a huge variance, not a NaN.
_LEAST_PRECISION = 1e-300


@dataclass(frozen=True)
class Rule:
    """`terms(mean, var, prior_mean, prior_var)` gives what is summed with the weights;
    `finish(sum_1, sum_2, prior_mean, prior_var)` makes mean and variance of the sums."""

    terms: Callable[[Array, Array, Moment, Moment], tuple[Array, Array]]
    finish: Callable[[Array, Array, Moment, Moment], Gaussian]
    subtracts_prior: bool = False
    needs_normalized: bool = False

    def __call__(
        self, mean: Array, var: Array, weights: Array, prior_mean: Moment, prior_var: Moment
    ) -> Gaussian:
        mean, var, weights = (np.asarray(a, dtype=float) for a in (mean, var, weights))
        var, weights = self.clip(var, weights, prior_var)
        first, second = self.terms(mean, var, prior_mean, prior_var)
        return self.finish(
            (weights * first).sum(axis=0), (weights * second).sum(axis=0), prior_mean, prior_var
        )

    def clip(self, var: Array, weights: Array, prior_var: Moment) -> tuple[Array, Array]:
        """Where the prior is subtracted, a variance above the prior's counts as the prior's and a
        negative weight as none: a precision never turns negative."""
        if self.subtracts_prior:
            return np.minimum(var, prior_var), np.maximum(weights, 0.0)
        return var, weights


def _product_terms(mean: Array, var: Array, prior_mean: Moment, prior_var: Moment) -> Gaussian:
    return mean / var, 1.0 / var


def _product_finish(first: Array, second: Array, prior_mean: Moment, prior_var: Moment) -> Gaussian:
    precision = np.maximum(second, _LEAST_PRECISION)
    return first / precision, 1.0 / precision


def _committee_terms(mean: Array, var: Array, prior_mean: Moment, prior_var: Moment) -> Gaussian:
    return mean / var - prior_mean / prior_var, 1.0 / var - 1.0 / prior_var


def _committee_finish(
    first: Array, second: Array, prior_mean: Moment, prior_var: Moment
) -> Gaussian:
    precision = second + 1.0 / prior_var
    return (first + prior_mean / prior_var) / precision, 1.0 / precision


def _barycenter_terms(mean: Array, var: Array, prior_mean: Moment, prior_var: Moment) -> Gaussian:
    return mean, var


def _barycenter_finish(
    first: Array, second: Array, prior_mean: Moment, prior_var: Moment
) -> Gaussian:
    return first, second


def _wasserstein_terms(mean: Array, var: Array, prior_mean: Moment, prior_var: Moment) -> Gaussian:
    return mean, np.sqrt(var)


def _wasserstein_finish(
    first: Array, second: Array, prior_mean: Moment, prior_var: Moment
) -> Gaussian:
    return first, second**2


_product = Rule(_product_terms, _product_finish)
_committee = Rule(_committee_terms, _committee_finish, subtracts_prior=True)
_barycenter = Rule(_barycenter_terms, _barycenter_finish, needs_normalized=True)
_wasserstein = Rule(_wasserstein_terms, _wasserstein_finish, needs_normalized=True)

#: The rule of each name. PoE and BCM differ from gPoE and rBCM by their weights, grBCM from rBCM by
#: its experts and by its prior, which is what the communication expert says.
RULES: dict[str, Rule] = {
    "poe": _product,
    "gpoe": _product,
    "bcm": _committee,
    "rbcm": _committee,
    "grbcm": _committee,
    "barycenter": _barycenter,
    "wasserstein": _wasserstein,
}


def poe(mean: Array, var: Array) -> Gaussian:
    """Product of experts: σ⁻² = Σ_j σ_j⁻², m = σ² Σ_j σ_j⁻² m_j."""
    return gpoe(mean, var, np.ones(np.shape(var)))


def gpoe(mean: Array, var: Array, weights: Array) -> Gaussian:
    """Generalised product of experts: σ⁻² = Σ_j β_j σ_j⁻², m = σ² Σ_j β_j σ_j⁻² m_j.

    The weights are taken as they are: `weights.normalize` makes them add up to one.
    """
    return _product(mean, var, weights, 0.0, 1.0)


def bcm(mean: Array, var: Array, prior_var: Moment) -> Gaussian:
    """Bayesian committee machine: σ⁻² = Σ_j (σ_j⁻² − σ*⁻²) + σ*⁻², m = σ² Σ_j σ_j⁻² m_j."""
    return rbcm(mean, var, np.ones(np.shape(var)), prior_var)


def rbcm(mean: Array, var: Array, weights: Array, prior_var: Moment) -> Gaussian:
    """Robust BCM: σ⁻² = Σ_j β_j(σ_j⁻² − σ*⁻²) + σ*⁻², m = σ² Σ_j β_j σ_j⁻² m_j."""
    return _committee(mean, var, weights, 0.0, prior_var)


def grbcm(
    mean: Array, var: Array, weights: Array, communication_mean: Array, communication_var: Array
) -> Gaussian:
    """Generalised robust BCM (Liu et al. 2018): rBCM with the communication expert N(m_c, σ_c²) in
    the prior's place.

        σ⁻² = Σ_j β_j(σ₊ⱼ⁻² − σ_c⁻²) + σ_c⁻²
        m   = σ² [Σ_j β_j σ₊ⱼ⁻² m₊ⱼ − (Σ_j β_j − 1) σ_c⁻² m_c]

    `mean` and `var` are those of the experts that know the communication set beside their own
    rows. Liu's weights are `weights.entropy` against σ_c², and 1 for the first expert.
    """
    return _committee(mean, var, weights, communication_mean, communication_var)


def barycenter(mean: Array, var: Array, weights: Array) -> Gaussian:
    """The paper's barycenter: m = Σ_j β_j m_j, σ² = Σ_j β_j σ_j² (weights add up to one)."""
    return _barycenter(mean, var, weights, 0.0, 1.0)


def wasserstein(mean: Array, var: Array, weights: Array) -> Gaussian:
    """The 2-Wasserstein barycenter of one-dimensional Gaussians: m = Σ_j β_j m_j, σ = Σ_j β_j σ_j
    (weights add up to one)."""
    return _wasserstein(mean, var, weights, 0.0, 1.0)
