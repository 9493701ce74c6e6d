"""Covariances of an aggregate between rows: for sums, differences and draws of several predictions.

The rules define marginals only. With Σ_j an expert's covariance at the rows, K the prior's and B_j
the diagonal matrix of its weights over the rows, the joint covariance is

    Σ⁻¹ = Σ_j B_j^½ Σ_j⁻¹ B_j^½                         products of experts,
    Σ⁻¹ = Σ_j B_j^½ (Σ_j⁻¹ − K⁻¹) B_j^½ + K⁻¹           committee machines (K of the communication
                                                        expert for grBCM),
    Σ = Σ_j B_j^½ Σ_j B_j^½                             the paper's barycenter,
    Σ = Σ_j B_j^½ (Σ^½ Σ_j Σ^½)^½ B_j^½                 the Wasserstein barycenter, a fixed point,

which is exact for one row, and for weights that do not vary over the rows. That weights which do
are split as square roots to either side is a choice: it keeps Σ symmetric and positive. Then rows
and columns are scaled so that the diagonal is exactly the rule's marginal variance. The nested rule
is linear in y, so its covariance is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations_with_replacement

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.nested import combination, most_confident

Array = np.ndarray

#: Rows at most: matrices of this size squared are held, and inverted for every expert.
LARGEST = 5000

#: Added to the diagonal of covariances before they are inverted, as a multiple of the largest
#: variance that comes out: latent values at rows that are near one another are nearly the same
#: number. Less would leave the inverse's inverse without digits.
_JITTER = 1e-9

#: The least of it, as a multiple of the prior's variance: posteriors are differences from the
#: prior, and have its rounding however small they are.
_ROUNDING, _RAISES = 1e-13, 10

#: Experts are left out of a barycenter whose share of the weight is nowhere more than this.
_NEGLIGIBLE = 1e-12

#: The fixed point has been found when Σ moves by less than this, relatively.
_TOLERANCE, _STEPS = 1e-9, 200


def covariance(
    rule: str, covariances: Callable[[Array], Iterable[Array]], weights: Array, prior: Array,
    signal: float, var: Array,
) -> Array:  # fmt: skip
    """Σ [n, n] from the covariances of the experts that are asked for, in turn (and again: J of
    them at a time would not fit), their weights [J, n], the prior covariance, the variance of the
    latent function's own prior, and the rule's marginal variance [n]."""
    share = _NEGLIGIBLE if rule in ("barycenter", "wasserstein") else 0.0
    heard = np.flatnonzero((weights > share * weights.sum(axis=0)).any(axis=1))
    weights, parts = weights[heard], partial(covariances, heard)
    if len(weights) == 1 and (weights == 1.0).all():
        (S,) = parts()  # the expert's own, whose diagonal is `var` but for rounding
        np.fill_diagonal(S, var)
        return S
    roots = np.sqrt(np.maximum(weights, 0.0))
    if rule == "barycenter":
        total = _sum(roots, parts())
    elif rule == "wasserstein":
        total = wasserstein(parts, roots)
    else:
        subtracted = prior if rule in ("bcm", "rbcm", "grbcm") else None
        jitter = max(_JITTER * var.max(), _ROUNDING * signal)
        total = _product(parts, roots, subtracted, jitter)
    return scaled(total, var)


def _product(
    parts: Callable[[], Iterable[Array]], roots: Array, prior: Array | None, jitter: float
) -> Array:
    """(Σ_j B_j^½ (Σ_j⁻¹ − K⁻¹) B_j^½ + K⁻¹)⁻¹, or without K, with tenfold the jitter until all can
    be inverted: it is the same for all, for less of it in K than in Σ_j would subtract more than
    the expert knows."""
    for _ in range(_RAISES):
        try:
            subtract = 0.0 if prior is None else _inverse(prior, jitter)
            precision = np.zeros((roots.shape[1], roots.shape[1]))
            for r, S in zip(roots, parts(), strict=True):
                precision += _framed(r, _inverse(S, jitter) - subtract)
            return _inverse_of_precision(precision + subtract)
        except np.linalg.LinAlgError as error:
            failed, jitter = error, 10.0 * jitter
    raise failed


def scaled(S: Array, var: Array) -> Array:
    """Rows and columns of S scaled so that its diagonal is `var`."""
    factor = np.sqrt(var / np.diag(S))
    S = 0.5 * (S + S.T) * np.outer(factor, factor)
    np.fill_diagonal(S, var)
    return S


def wasserstein(parts: Callable[[], Iterable[Array]], roots: Array) -> Array:
    """The fixed point Σ = Σ_j B_j^½ (Σ^½ Σ_j Σ^½)^½ B_j^½, by the iteration of Álvarez-Esteban,
    del Barrio, Cuesta-Albertos and Matrán (2016)."""
    S = _sum(roots, parts())
    for _ in range(_STEPS):
        root, inverse = _root(S)
        middle = _sum(roots, (_root(root @ part @ root)[0] for part in parts()))
        new = inverse @ middle @ middle @ inverse
        if np.abs(new - S).max() <= _TOLERANCE * np.abs(S).max():
            return new
        S = new
    return S


def _root(S: Array) -> tuple[Array, Array]:
    """The symmetric root of a covariance and its inverse."""
    values, vectors = np.linalg.eigh(0.5 * (S + S.T))
    values = np.maximum(values, _JITTER * values[-1])
    return (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T


def _sum(roots: Array, parts: Iterable[Array]) -> Array:
    """Σ_j B_j^½ Σ_j B_j^½."""
    total = np.zeros((roots.shape[1], roots.shape[1]))
    for r, part in zip(roots, parts, strict=True):
        total += _framed(r, part)
    return total


def _framed(factor: Array, S: Array) -> Array:
    return factor[:, None] * S * factor


def _inverse(S: Array, jitter: float) -> Array:
    n = len(S)
    factor = cho_factor(S + jitter * np.eye(n), lower=True)
    return cho_solve(factor, np.eye(n))


def _inverse_of_precision(P: Array) -> Array:
    """With weights that vary, what is subtracted may leave a direction without precision; there the
    rule knows nothing, and the smallest precision that rounding allows is taken."""
    values, vectors = np.linalg.eigh(0.5 * (P + P.T))
    return (vectors / np.maximum(values, 1e-12 * values[-1])) @ vectors.T


def nested_covariance(
    committee: Committee, new: Array, n_nearest: int, engine: LocalEngine
) -> tuple[Array, Array]:
    """Mean [n] and covariance [n, n] of the nested rule: with C_e the coefficients that rows give
    to the y of expert e, K − Σ C_e k_e − (Σ C_e k_e)ᵀ + Σ_ee′ C_e (K_ee′ + noise) C_e′ᵀ."""
    k = min(n_nearest, committee.n_experts)
    chosen, means, variances = most_confident(committee, new, k, engine)

    def combined(committee: Committee, numbers: Array, engine: LocalEngine) -> tuple[Array, Array]:
        weights = combination(new, chosen, variances, committee, numbers, engine)
        S = committee.prior_covariance(new)
        own = []  # the rows at which each expert was chosen, and C_e there
        for e, number in zip(np.unique(chosen), numbers.tolist(), strict=True):
            at = (chosen == e).T
            rows = np.flatnonzero(at.any(axis=1))
            share = (weights * at).sum(axis=1)[rows]
            C = share[:, None] * committee.coefficients(new, rows, number, engine)
            own.append((rows, C))
            product = C @ committee.cross_covariance(new, number)
            S[rows] -= product
            S[:, rows] -= product.T

        def pair(ends: tuple[int, int]) -> tuple[int, int, Array]:
            a, b = ends
            K = committee.covariance_between(int(numbers[a]), int(numbers[b]))
            return a, b, own[a][1] @ K @ own[b][1].T

        for a, b, part in engine.map(pair, combinations_with_replacement(range(len(own)), 2)):
            S[np.ix_(own[a][0], own[b][0])] += part
            if a != b:
                S[np.ix_(own[b][0], own[a][0])] += part.T
        return (weights * means.T).sum(axis=1), 0.5 * (S + S.T)

    return committee.together(np.unique(chosen), combined, engine)()
