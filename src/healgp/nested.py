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
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.prediction import Prior
from healgp.routing import Guide, ask, in_brief

Array = np.ndarray

#: Numbers, latent means and variances [k, n] of the experts that are combined at each row.
Chosen = tuple[Array, Array, Array]

#: Rows of a block at most; numbers that the experts' coefficients there may have, or their
#: covariances, each with what is needed to put it in its place.
_ROWS, _BLOCK, _PLACED = 4096, 2**25, 6

#: Correlations between experts' means have eigenvalues of at least this: experts that nearly repeat
#: one another make the system singular. What it adds to a variance is as small beside the prior's
#: as the least that variances may be.
_LEAST = 1e-12


@dataclass(frozen=True)
class Route:
    """The most confident experts are looked for among the `asked` that are so in brief."""

    guide: Guide
    asked: int


def nested(
    committee: Committee, new: Array, n_nearest: int, engine: LocalEngine,
    route: Route | None = None, advance: Callable[[int], Any] = lambda rows: None,
    known: Chosen | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Latent mean and variance [n] at the rows `new` [n, D] from the n_nearest most confident
    experts at each, of all or of those that a route names, unless they are known."""
    k = min(n_nearest, committee.n_experts)
    size = int(np.clip(_BLOCK // (k * max(committee.sizes.max(), _PLACED * k)), 1, _ROWS))
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
        experts, means, variances = (
            chosen(there, rows, k, engine, route) if known is None else at(known, part)
        )
        system = partial(_combined, rows, experts, means, variances)
        waiting.append((part, there.together(np.unique(experts), system, engine)))
        if len(waiting) > committee.ahead:
            finish()
    while waiting:
        finish()
    return mean, var


def at(who: Chosen, rows: Array | slice) -> Chosen:
    """Of some of the rows."""
    numbers, means, variances = who
    return numbers[:, rows], means[:, rows], variances[:, rows]


def combination(
    new: Array, chosen: Array, variances: Array, committee: Committee, numbers: Array,
    engine: LocalEngine,
) -> Array:  # fmt: skip
    """The coefficients C⁻¹k [n, k] of the chosen experts [k, n]."""
    return _solved(*_covariances(new, chosen, variances, committee, numbers, engine))[0]


def _combined(
    new: Array, chosen: Array, means: Array, variances: Array, committee: Committee,
    numbers: Array, engine: LocalEngine,
) -> tuple[Array, Array]:  # fmt: skip
    C, own = _covariances(new, chosen, variances, committee, numbers, engine)
    signal = committee.theta.signal_variance
    coefficients, known = _solved(C, own)
    var = signal - known
    return (coefficients * means.T).sum(axis=1), np.maximum(var, _LEAST * signal)


def _solved(C: Array, own: Array) -> tuple[Array, Array]:
    """C⁻¹k [n, k], and kᵀC⁻¹k [n], which is what the experts know of the prior's variance; where
    rounding leaves less than the most confident of them knows, that expert alone."""
    scale = np.sqrt(own)
    values, vectors = np.linalg.eigh(C / (scale[:, :, None] * scale[:, None, :]))
    right = np.einsum("nij,ni->nj", vectors, scale)  # k / scale is scale
    part = right / np.maximum(values, _LEAST)
    coefficients, known = np.einsum("nij,nj->ni", vectors, part) / scale, (right * part).sum(axis=1)
    best = own.argmax(axis=1)
    alone = known < own[range(len(own)), best]
    coefficients[alone] = np.arange(own.shape[1]) == best[alone, None]
    return coefficients, np.where(alone, own.max(axis=1), known)


def chosen(
    committee: Committee, new: Array, n_nearest: int, engine: LocalEngine, route: Route | None
) -> Chosen:
    """The most confident experts."""
    k = min(n_nearest, committee.n_experts)
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


def most_confident(committee: Committee, new: Array, k: int, engine: LocalEngine) -> Chosen:
    """The k ≤ J experts with the smallest variances."""
    listener = Listener(committee, len(new), k)
    engine.run(lambda bounds: listener.moments(new, *bounds, engine), committee.blocks())
    return listener.found


class Listener:
    """A committee, and what its most confident experts [k, n] say of n rows while all are asked
    about them."""

    def __init__(self, committee: Any, n: int, k: int) -> None:
        self._committee, self._rows, self._lock = committee, np.arange(n), Lock()
        self.found: Chosen = np.zeros((k, n), dtype=np.intp), *np.full((2, k, n), np.inf)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # not while it is being copied
            raise AttributeError(name)
        return getattr(self._committee, name)

    def at(self, part: Array | slice) -> Listener:
        """The same for a part of the rows."""
        some = copy(self)
        some._committee, some._rows = self._committee.at(part), self._rows[part]
        return some

    def moments(
        self, new: Array, first: int, last: int, engine: LocalEngine
    ) -> tuple[Array, Array]:
        mean, var = self._committee.moments(new, first, last, engine)
        k, numbers = len(self.found[0]), np.arange(first, last)[:, None]
        here = _smallest(k, np.broadcast_to(numbers, mean.shape), mean, var)
        with self._lock:  # blocks come in any order
            before = (v[:, self._rows] for v in self.found)
            both = (np.concatenate(pair) for pair in zip(before, here, strict=True))
            for kept, values in zip(self.found, _smallest(k, *both), strict=True):
                kept[:, self._rows] = values
        return mean, var


def _smallest(k: int, numbers: Array, mean: Array, var: Array) -> Chosen:
    """The k experts with the smallest variances, in their order; of equal ones the first."""
    order = np.lexsort((numbers, var), axis=0)[:k]
    numbers, mean, var = (np.take_along_axis(v, order, axis=0) for v in (numbers, mean, var))
    return numbers, mean, var
