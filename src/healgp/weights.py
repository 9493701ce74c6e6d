"""How much each expert's word counts: β_j(x*) from the experts' moments, as pure functions.

Every function takes means and variances [J, n] of J experts at n rows, and the prior's variance,
and returns weights [J, n]. They work on the moments of any GP library:

>>> import numpy as np
>>> from healgp import weights
>>> var = np.array([[0.1, 1.0], [0.9, 1.0]])
>>> weights.softmax_variance(np.zeros((2, 2)), var, prior_var=1.0, temperature=10).round(3)
array([[1. , 0.5],
       [0. , 0.5]])
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Moment = np.ndarray | float

#: Weights that are all zero normalise to uniform; beside any other weight this is nothing.
TINY = 1e-200


def _float(array: Array) -> Array:
    return np.asarray(array, dtype=float)


def ones(mean: Array, var: Array, prior_var: Moment = 1.0) -> Array:
    """β_j = 1: the plain product of experts, and the Bayesian committee machine."""
    return np.ones_like(_float(var))


def uniform(mean: Array, var: Array, prior_var: Moment = 1.0) -> Array:
    """β_j = 1/J."""
    return np.full_like(_float(var), 1.0 / len(var))


def entropy(mean: Array, var: Array, prior_var: Moment = 1.0) -> Array:
    """β_j = ½(log σ*² − log σ_j²): the entropy gained from prior to posterior, not normalised."""
    return np.maximum(entropy_score(mean, var, prior_var), 0.0)


def variance_score(mean: Array, var: Array, prior_var: Moment, prior_mean: Moment = 0.0) -> Array:
    """−σ_j²."""
    return -_float(var)


def entropy_score(mean: Array, var: Array, prior_var: Moment, prior_mean: Moment = 0.0) -> Array:
    """½(log σ*² − log σ_j²); the paper's sign is turned, for it grows with confidence."""
    return 0.5 * (np.log(prior_var) - np.log(_float(var)))


def wasserstein_score(
    mean: Array, var: Array, prior_var: Moment, prior_mean: Moment = 0.0
) -> Array:
    """W₂²(N(m_j, σ_j²), N(m*, σ*²)) = (m_j − m*)² + (σ_j − σ*)²; the sign is turned likewise."""
    return (_float(mean) - prior_mean) ** 2 + (np.sqrt(var) - np.sqrt(prior_var)) ** 2


def softmax(score: Array, temperature: float) -> Array:
    """β_j = exp(T s_j) / Σ_k exp(T s_k), the largest score subtracted first (the paper's tempered
    softmax, s = −ψ). T multiplies the score: larger is sparser."""
    logits = temperature * score
    weights = np.exp(logits - logits.max(axis=0))
    return weights / weights.sum(axis=0)


def softmax_variance(
    mean: Array, var: Array, prior_var: Moment = 1.0, temperature: float = 100.0
) -> Array:
    """β_j ∝ exp(−T σ_j²), the paper's proposal."""
    return softmax(variance_score(mean, var, prior_var), temperature)


def softmax_entropy(
    mean: Array, var: Array, prior_var: Moment = 1.0, temperature: float = 100.0
) -> Array:
    """β_j ∝ exp(T/2 (log σ*² − log σ_j²)) = (σ*²/σ_j²)^(T/2)."""
    return softmax(entropy_score(mean, var, prior_var), temperature)


def softmax_wasserstein(
    mean: Array, var: Array, prior_var: Moment = 1.0, temperature: float = 100.0
) -> Array:
    """β_j ∝ exp(T W₂²(N(m_j, σ_j²), N(0, σ*²)))."""
    return softmax(wasserstein_score(mean, var, prior_var), temperature)


def normalize(weights: Array) -> Array:
    """β_j / Σ_k β_k; uniform where all are zero."""
    weights = np.maximum(weights, TINY)
    return weights / weights.sum(axis=0)


#: Weightings that are what they are.
RAW: dict[str, Callable[..., Array]] = {"ones": ones, "uniform": uniform, "entropy": entropy}

#: Weightings that are a softmax of a score.
SCORES: dict[str, Callable[..., Array]] = {
    "softmax_variance": variance_score,
    "softmax_entropy": entropy_score,
    "softmax_wasserstein": wasserstein_score,
}

WEIGHTINGS = (*RAW, *SCORES)
