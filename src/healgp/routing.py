"""Which experts are asked about a row: near ones first, and more of them until the answer stays.

Weights of a softmax fall fast with an expert's distance from the row, so that few experts decide.
They are taken in the order of distance, in inputs divided by the lengthscales: 2, 4, 6, 9, … of
them, until the last third has changed the predictive mean and deviation by no more than a share of
the tolerance. Those that are never asked count as experts who know nothing, with the prior's
moments and the prior's weight, which is what they come to at a distance.

There is no strict bound on what is left out, so the share is found by an audit: rows of the
training set, each left out of its own expert, ask everyone, and the share is made smaller until all
of them agree within the tolerance. Where that does not save half of the work, everyone is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from healgp.aggregation import Gaussian
from healgp.engines.local import LocalEngine
from healgp.prediction import Prior, Setting, Sums, stream
from healgp.weights import SCORES

Array = np.ndarray

#: Experts that make routing worth the audit.
LEAST_EXPERTS = 32

#: Rows that are routed at a time, numbers of a block [experts, rows], and of a block of distances.
_ROWS, _BLOCK, _DISTANCES = 2**17, 2**20, 2**19

#: Neighbours whose experts come first; columns up to which they are looked up, for beyond, a tree
#: of the rows is no faster than going through all of them; and the rows that it holds at most.
_NEIGHBOURS, _TREE_COLUMNS, _TREE_ROWS = 8, 12, 2**20

#: Shares of the tolerance by which the last third of the experts asked may change the answer, and
#: what is taken of the one that the audit accepts.
_SHARES, _CAUTION = (0.1, 0.01, 0.001), 0.5

#: Multiples of n_nearest that the nested rule asks to find the most confident.
_MULTIPLES = (2, 4, 8, 16)

#: Rows of an audit at most, and for the nested rule, which costs more.
AUDITED, AUDITED_NESTED = 1000, 300


def has_route(setting: Setting) -> bool:
    """Whether a setting's weights leave most experts without a say."""
    return setting.aggregation == "nested" or (
        setting.normalized
        and setting.weighting in SCORES
        and setting.aggregation not in ("poe", "bcm", "grbcm")
    )


class Centres:
    """Where the experts are, in inputs divided by the lengthscales: their centres, and in few
    dimensions their rows too, for a row may lie near one of an expert whose centre is far."""

    def __init__(self, committee: Any, labels: Array) -> None:
        self.lengthscales = committee.theta.lengthscales
        self._centres = committee.centres() / self.lengthscales
        self._middle = self._centres.mean(axis=0)  # distances lose fewer digits near zero
        self._centres -= self._middle
        self._labels = labels
        # trees of rows, each with the numbers of its rows in the order in which they came
        self._trees: list[tuple[cKDTree, Array]] = []
        if self._has_trees:
            some = np.arange(0, len(labels), -(-len(labels) // _TREE_ROWS))
            Z = self._scaled(committee.inputs(committee.places(some)))
            self._plant(Z, np.argsort(labels, kind="stable")[some])

    def update(self, committee: Any, labels: Array, experts: Array, new: Array) -> None:
        """After some experts have changed, and the rows `new` [n, D] have come last."""
        more = np.empty((committee.n_experts - len(self._centres), len(self._middle)))
        centres = np.concatenate([self._centres, more])
        for j in experts:
            mean = committee.inputs(committee.columns(j)).mean(axis=0)
            centres[j] = mean / self.lengthscales - self._middle
        self._centres, self._labels = centres, labels
        if self._has_trees:
            self._plant(self._scaled(new), np.arange(len(labels) - len(new), len(labels)))

    @property
    def _has_trees(self) -> bool:
        return self._centres.shape[1] <= _TREE_COLUMNS

    def _scaled(self, new: Array) -> Array:
        return new / self.lengthscales - self._middle

    def _plant(self, Z: Array, numbers: Array) -> None:
        """A tree of some rows together with those of all trees that are not much larger: there are
        few of them at any time, and a row is planted again only as often as its tree doubles."""
        while self._trees and self._trees[-1][0].n <= 2 * len(Z):
            tree, others = self._trees.pop()
            Z, numbers = np.concatenate([tree.data, Z]), np.append(others, numbers)
        step = -(-len(Z) // _TREE_ROWS)
        self._trees.append((cKDTree(Z[::step]), numbers[::step]))

    def closest(self, new: Array) -> tuple[Array, Array]:
        """The expert with the nearest centre, and the distance from it, for the rows `new`."""
        Z = self._scaled(new)
        experts, distances = np.empty(len(Z), dtype=np.intp), np.empty(len(Z))
        rows = max(_DISTANCES // len(self._centres), 1)
        for start in range(0, len(Z), rows):
            part = Z[start : start + rows]
            best = self._squared(part).argmin(axis=1)
            experts[start : start + rows] = best
            apart = np.linalg.norm(part - self._centres[best], axis=1)
            distances[start : start + rows] = apart
        return experts, distances

    def _squared(self, Z: Array) -> Array:
        """Squared distances from the centres, less what is the same for all of them."""
        return (self._centres**2).sum(axis=1) - 2.0 * (Z @ self._centres.T)

    def nearest(self, new: Array, first: int, last: int, engine: LocalEngine) -> Array:
        """The experts at the places first … last − 1 in the order of distance, [n, last − first]
        for the rows `new` [n, D]: those of the nearest rows, then the others by their centres."""
        J = len(self._centres)
        out = np.empty((len(new), last - first), dtype=np.int32)
        rows = max(_DISTANCES // J, 1)

        def run(start: int) -> None:
            Z = self._scaled(new[start : start + rows])
            d = self._squared(Z)
            if self._trees:
                experts = self._labels[self._neighbours(Z)]
                for place in reversed(range(experts.shape[1])):
                    d[np.arange(len(Z)), experts[:, place]] = place * 1e290 - 1e300
            if last < J:
                some = np.argpartition(d, last - 1, axis=1)[:, :last]
                order = np.argsort(np.take_along_axis(d, some, axis=1), axis=1, kind="stable")
                order = np.take_along_axis(some, order, axis=1)
            else:
                order = np.argsort(d, axis=1, kind="stable")
            out[start : start + rows] = order[:, first:last]

        engine.run(run, range(0, len(new), rows))
        return out

    def _neighbours(self, Z: Array) -> Array:
        """Numbers of the nearest rows, the nearest first."""
        apart, found = [], []
        for tree, numbers in self._trees:
            k = min(_NEIGHBOURS, tree.n)
            distance, row = tree.query(Z, k=k)
            apart.append(distance.reshape(len(Z), k))
            found.append(numbers[row.reshape(len(Z), k)])
        order = np.argsort(np.hstack(apart), axis=1, kind="stable")[:, :_NEIGHBOURS]
        return np.take_along_axis(np.hstack(found), order, axis=1)


def ask(
    committee: Any, new: Array, rows: Array, experts: Array, engine: LocalEngine
) -> tuple[Array, Array]:
    """Latent means and variances [k, n] at n rows of `new` [·, D] of the experts [n, k], each asked
    once about all of its rows."""
    n, k = experts.shape
    mean, var = np.empty((2, k, n, *committee.latent_shape))
    flat = experts.T.ravel()
    order = np.argsort(flat, kind="stable")
    ends = np.flatnonzero(np.diff(committee.homes[flat[order]])) + 1

    def run(group: Array) -> None:
        parts = np.split(group, np.flatnonzero(np.diff(flat[group])) + 1)
        asked = [(int(flat[part[0]]), rows[part % n]) for part in parts]
        for part, found in zip(parts, committee.moments_of(new, asked, engine), strict=True):
            mean[part // n, part % n], var[part // n, part % n] = found

    engine.run(run, np.split(order, ends))
    return mean, var


def routed(
    committee: Any, new: Array, settings: Sequence[Setting], prior: Prior, noise: float,
    centres: Centres, allowed: float, engine: LocalEngine,
    advance: Callable[[int], Any] = lambda rows: None,
) -> tuple[list[Gaussian], Array]:  # fmt: skip
    """What `prediction.stream` gives, from the experts that can matter, and how many were asked at
    each row; `allowed` is the change by the last third of them, in predictive deviations."""
    shape = (len(new), *committee.latent_shape)
    results = [(np.empty(shape), np.empty(shape)) for _ in settings]
    asked = np.empty(len(new), dtype=np.int32)
    for start in range(0, len(new), _ROWS):
        part = slice(start, min(start + _ROWS, len(new)))
        _routed_block(
            committee, new[part], settings, prior, noise, centres, allowed, engine,
            [(mean[part], var[part]) for mean, var in results], asked[part],
        )  # fmt: skip
        advance(part.stop - part.start)
    return results, asked


def _routed_block(
    committee: Any, new: Array, settings: Sequence[Setting], prior: Prior, noise: float,
    centres: Centres, allowed: float, engine: LocalEngine, results: list[Gaussian], asked: Array,
) -> None:  # fmt: skip
    J, active = committee.n_experts, np.arange(len(new))
    own_noise = committee.theta.noise_variance
    totals: list[Sums] = []
    for first, last in _rounds(J):
        experts = centres.nearest(new[active], first, last, engine)
        for places in _blocks(last - first, len(active)):
            mean, var = ask(committee, new, active, experts[:, places], engine)
            here = [_sums(s, mean, var, prior, own_noise, J) for s in settings]
            totals = [a + b for a, b in zip(totals, here, strict=True)] if totals else here
        change = np.zeros(len(active))
        for setting, total, (means, variances) in zip(settings, totals, results, strict=True):
            extra = own_noise if setting.space == "y" else 0.0
            if last < J:
                flat = np.zeros((1, *total.weight.shape))
                silent = _sums(setting, flat + prior.mean, flat + prior.var, prior, own_noise, J)
                total = total + silent.times(J - last)
            mean, var = total.finish(setting, prior.mean, prior.var + extra)
            if first > 0:
                scale = noise - extra  # y-space holds its noise already
                old = means[active], np.sqrt(variances[active] + scale)
                change = np.maximum(change, _apart(old, (mean, np.sqrt(var + scale))))
            means[active], variances[active] = mean, var
        asked[active] = last
        if first > 0:
            left = change > allowed
            active, totals = active[left], [total.at(left) for total in totals]
        if not len(active):
            return


def _sums(setting: Setting, mean: Array, var: Array, prior: Prior, noise: float, J: int) -> Sums:
    extra = noise if setting.space == "y" else 0.0
    return Sums.of_block(setting, mean, var + extra, prior.mean, prior.var + extra, 1, J)


def _apart(one: Gaussian, other: Gaussian) -> Array:
    """How far two answers (mean, deviation) are apart at each row, in deviations of the second."""
    apart = np.maximum(abs(one[0] - other[0]), abs(one[1] - other[1])) / other[1]
    return apart.reshape(len(apart), -1).max(axis=1)


def _agree(one: Gaussian, exact: Gaussian, tolerance: float) -> bool:
    """Whether 99.9 % of the rows are within the tolerance."""
    return bool(np.mean(_apart(one, exact) <= tolerance) >= 0.999)


def _rounds(J: int) -> Iterator[tuple[int, int]]:
    """2 experts, then half as many again as there are, and so on."""
    first, last = 0, min(2, J)
    while first < J:
        yield first, last
        first, last = last, min(last + max(last // 2, 2), J)


def _blocks(places: int, rows: int) -> Iterator[slice]:
    size = max(_BLOCK // max(rows, 1), 1)
    return (slice(start, min(start + size, places)) for start in range(0, places, size))


def audit(
    committee: Any, new: Array, setting: Setting, prior: Prior, noise: float, centres: Centres,
    tolerance: float, engine: LocalEngine,
) -> float:  # fmt: skip
    """The change that `routed` may allow for answers within `tolerance` of those of all experts, in
    predictive deviations; 0 where everyone should be asked."""
    (everyone,) = stream(committee, new, [setting], prior, engine)
    scale = noise if setting.space == "f" else 0.0
    exact = everyone[0], np.sqrt(everyone[1] + scale)
    for share in _SHARES:
        allowed = share * tolerance
        ((mean, var),), asked = routed(
            committee, new, [setting], prior, noise, centres, allowed, engine
        )
        if asked.mean() > 0.5 * committee.n_experts:
            return 0.0
        if _agree((mean, np.sqrt(var + scale)), exact, tolerance):
            return _CAUTION * allowed
    return 0.0


def audit_nested(
    combine: Callable[[int | None], Gaussian], n_nearest: int, n_experts: int, noise: float,
    tolerance: float,
) -> int | None:  # fmt: skip
    """How many near experts the nested rule asks to find the most confident, for answers within
    `tolerance`; None where everyone should be asked. `combine(asked)` is the rule at some rows."""
    if _MULTIPLES[0] * n_nearest > n_experts // 4:
        return None
    mean, var = combine(None)
    exact = mean, np.sqrt(var + noise)
    for multiple in _MULTIPLES:
        asked = multiple * n_nearest
        if asked > n_experts // 4:  # most of its cost lies elsewhere
            return None
        mean, var = combine(asked)
        if _agree((mean, np.sqrt(var + noise)), exact, tolerance):
            return asked
    return None
