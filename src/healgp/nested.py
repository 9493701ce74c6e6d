"""The best linear combination of experts, given how their predictions vary together (Rullière,
Durrande, Bachoc and Chevalier 2018), restricted to the experts that are most confident at a row.

With M the latent means of the chosen experts at x*, k their covariances with f(x*) and C those
among them, both under the prior and the noise,

    E[f*] = kᵀ C⁻¹ M,    var[f*] = σ² − kᵀ C⁻¹ k.

An expert's own entries are known from its variance, k_j = C_jj = σ² − σ_j². The others need the
covariance between the rows of two experts, which serves all x* at which both were chosen: so the
work goes over pairs of experts, and BLAS does it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.prediction import Prior
from healgp.routing import Guide, ask, in_brief

Array = np.ndarray

#: Rows of a block at most and at least, and numbers that the experts' coefficients there may have.
_ROWS, _LEAST_ROWS, _BLOCK = 4096, 64, 2**25

#: Correlations between experts' means have eigenvalues of at least this: experts that nearly repeat
#: one another make the system singular.
_LEAST = 1e-8


@dataclass(frozen=True)
class Route:
    """The most confident experts are looked for among the `asked` that are so in brief."""

    guide: Guide
    asked: int


def nested(
    committee: Committee, new: Array, n_nearest: int, engine: LocalEngine,
    route: Route | None = None, advance: Callable[[int], Any] = lambda rows: None,
) -> tuple[Array, Array]:  # fmt: skip
    """Latent mean and variance [n] at the rows `new` [n, D] from the n_nearest most confident
    experts at each, of all or of those that a route names."""
    k = min(n_nearest, committee.n_experts)
    size = int(np.clip(_BLOCK // (k * committee.sizes.max()), _LEAST_ROWS, _ROWS))
    # rows that are near one another have experts in common
    order = np.arange(len(new))
    if route is not None:
        order = route.guide.order(new)
    mean, var = np.empty((2, len(new)))
    waiting: deque[tuple[Array, Callable[[], tuple[Array, Array]]]] = deque()

    def finish() -> None:
        part, result = waiting.popleft()
        mean[part], var[part] = result()
        advance(len(part))

    for part in np.split(order, range(size, len(new), size)):
        there, rows = committee.at(part), new[part]
        chosen, means, variances = _chosen(there, rows, k, engine, route)
        system = partial(_combined, rows, chosen, means, variances)
        waiting.append((part, there.together(np.unique(chosen), system, engine)))
        if len(waiting) > committee.ahead:
            finish()
    while waiting:
        finish()
    return mean, var


def combination(
    new: Array, chosen: Array, means: Array, variances: Array, committee: Committee,
    numbers: Array, engine: LocalEngine,
) -> Array:  # fmt: skip
    """The coefficients C⁻¹k [n, k] of the chosen experts [k, n]."""
    C, own = _covariances(new, chosen, variances, committee, numbers, engine)
    inverse, vectors, right, scale = _solved(C, own)
    return np.einsum("nij,nj->ni", vectors, inverse * right) / scale


def _combined(
    new: Array, chosen: Array, means: Array, variances: Array, committee: Committee,
    numbers: Array, engine: LocalEngine,
) -> tuple[Array, Array]:  # fmt: skip
    C, own = _covariances(new, chosen, variances, committee, numbers, engine)
    signal = committee.theta.signal_variance
    inverse, vectors, right, scale = _solved(C, own)
    left = np.einsum("nij,ni->nj", vectors, means.T / scale)
    var = signal - (right * right * inverse).sum(axis=1)
    return (right * left * inverse).sum(axis=1), np.maximum(var, 1e-12 * signal)


def _solved(C: Array, own: Array) -> tuple[Array, Array, Array, Array]:
    """Eigenvalues' inverses and eigenvectors of the correlations, k in their basis, and what
    covariances were divided by."""
    scale = np.sqrt(own)
    values, vectors = np.linalg.eigh(C / (scale[:, :, None] * scale[:, None, :]))
    right = np.einsum("nij,ni->nj", vectors, scale)  # k / scale is scale
    return 1.0 / np.maximum(values, _LEAST), vectors, right, scale


def _chosen(
    committee: Committee, new: Array, k: int, engine: LocalEngine, route: Route | None
) -> tuple[Array, Array, Array]:
    """Numbers, latent means and variances [k, n] of the most confident experts."""
    if route is None:
        return most_confident(committee, new, k, engine)
    near, said, _ = route.guide.confident(
        new, route.asked, in_brief(route.asked), [], Prior(0.0, 0.0), 0.0, engine
    )
    ask(committee, new, near, np.ones(near.shape, dtype=bool), said, engine)
    return _smallest(k, near, *said)


def _covariances(
    new: Array, chosen: Array, variances: Array, committee: Committee, numbers: Array,
    engine: LocalEngine,
) -> tuple[Array, Array]:  # fmt: skip
    """C [n, k, k] and k [n, k] of the chosen experts [k, n]; `numbers` is where the committee has
    them, in their order."""
    signal, (k, n) = committee.theta.signal_variance, chosen.shape
    own = np.maximum(signal - variances, 1e-12 * signal)  # k_j and C_jj
    C = np.empty((n, k, k))
    C[:, range(k), range(k)] = own.T

    # the rows at which each expert was chosen, and its coefficients there
    places = np.unique(chosen, return_inverse=True)[1].reshape(chosen.shape)
    order = np.argsort(places, axis=None, kind="stable")
    ends = np.searchsorted(places.ravel()[order], np.arange(1, len(numbers)))
    asked = [np.sort(part % n) for part in np.split(order, ends)]
    coefficients = list(
        engine.map(
            lambda e: committee.coefficients(new, asked[e], int(numbers[e]), engine),
            range(len(numbers)),
        )
    )

    # pairs of experts, each with the rows and the two places in C that it serves
    a, b = np.triu_indices(k, 1)
    first, second = places[a].ravel(), places[b].ravel()
    low, high = np.minimum(first, second), np.maximum(first, second)
    code = low.astype(np.int64) * len(numbers) + high
    order = np.argsort(code, kind="stable")
    ends = np.flatnonzero(np.diff(code[order], append=-1)) + 1
    groups = np.split(order, ends[:-1]) if len(order) else []
    row_of = np.tile(np.arange(n), len(a))

    def run(group: Array) -> None:
        i, j, rows = int(low[group[0]]), int(high[group[0]]), row_of[group]
        values = committee.covariance_of_means(
            int(numbers[i]), int(numbers[j]),
            coefficients[i][np.searchsorted(asked[i], rows)],
            coefficients[j][np.searchsorted(asked[j], rows)],
        )  # fmt: skip
        s, t = a[group // n], b[group // n]
        C[rows, s, t] = C[rows, t, s] = values

    engine.run(run, groups)
    return C, own.T


def most_confident(
    committee: Committee, new: Array, k: int, engine: LocalEngine
) -> tuple[Array, Array, Array]:
    """Numbers, latent means and variances [k, n] of the experts with the smallest variances."""

    def run(bounds: tuple[int, int]) -> tuple[Array, Array, Array]:
        mean, var = committee.moments(new, *bounds, engine)
        numbers = np.broadcast_to(np.arange(*bounds)[:, None], mean.shape)
        return _smallest(k, numbers, mean, var)

    best: tuple[Array, Array, Array] | None = None
    for found in engine.map(run, committee.blocks()):
        if best is None:
            best = found
        else:
            best = _smallest(k, *(np.concatenate(pair) for pair in zip(best, found, strict=True)))
    assert best is not None
    return best


def _smallest(k: int, numbers: Array, mean: Array, var: Array) -> tuple[Array, Array, Array]:
    if len(var) <= k:
        return np.array(numbers), mean, var
    order = np.argsort(var, axis=0, kind="stable")[:k]
    return (
        np.take_along_axis(numbers, order, axis=0),
        np.take_along_axis(mean, order, axis=0),
        np.take_along_axis(var, order, axis=0),
    )
