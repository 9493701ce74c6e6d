"""Which experts are asked about a row: the nearest of them in brief, and those that are most
confident then in full.

Weights of a softmax fall fast with an expert's variance, so that few experts decide. Who they are
the experts in brief say (`healgp.experts.brief`), at a fortieth of the cost, and who is worth
asking in brief the distance to their rows says. Those that are asked in brief alone count with
that, and those that are too far even for it as experts who know nothing.

How many are asked in full, how much less confident than the first of them they may be, and how many
are asked in brief is found by an audit (`healgp.auditing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from healgp.aggregation import Gaussian
from healgp.engines.local import LocalEngine
from healgp.experts.brief import Brief, by_expert
from healgp.partition import balanced
from healgp.prediction import Prior, Setting, Sums
from healgp.weights import SCORES

Array = np.ndarray

#: Rows that an expert can be asked about in the time that it takes to sum it up in brief.
_SUMMED_UP = 400

#: Rows that are routed at a time, rows of a block, neighbours that look for experts together, and
#: distances that are held at a time.
_ROWS, _BLOCK_ROWS, _NEIGHBOURS, _HELD = 2**15, 512, 128, 2**18

#: Experts that are asked in brief, for each that is asked in full, and at least.
_IN_BRIEF, _LEAST_IN_BRIEF = 8, 256


def has_route(setting: Setting) -> bool:
    """Whether a setting's weights leave most experts without a say."""
    return setting.aggregation == "nested" or (
        setting.normalized
        and setting.weighting in SCORES
        and setting.aggregation not in ("poe", "bcm", "grbcm")
    )


class Guide:
    """Who is most confident at a row, from what the nearest experts say in brief."""

    def __init__(self, committee: Any, engine: LocalEngine) -> None:
        self.brief = Brief.of(committee, engine)
        self.changed: set[int] = set()  # experts of which it does not know yet what they say now
        self._asked = 0  # experts asked about rows since, that need not have been

    def update(self, committee: Any, engine: LocalEngine) -> None:
        """After some experts have changed, or have come after the others."""
        if self.changed:
            self.brief.update(committee, np.array(sorted(self.changed)), engine)
            self.changed.clear()
            self._asked = 0

    def spares(self, asked: int, n: int) -> bool:
        """Whether asking only some experts about n rows, and about those since experts have
        changed, spares more than it costs to sum these up: it does not for the few rows that are
        predicted between the batches of a stream."""
        self._asked += n * (self.brief.n_experts - asked)
        return self._asked >= _SUMMED_UP * len(self.changed)

    def order(self, new: Array) -> Array:
        """The rows `new` [n, D] in an order in which neighbours follow one another."""
        parts = -(-2 * len(new) // _NEIGHBOURS)
        if parts < 2:
            return np.arange(len(new))
        Z = self.brief.scaled(new)
        return np.argsort(balanced(Z, parts, np.random.default_rng(0)), kind="stable")

    def near(self, new: Array, n: int) -> Array:
        """The n experts [rows, n] whose rows are nearest to each of the rows `new` [rows, D], which
        is fast where neighbours follow one another."""
        brief, J = self.brief, self.brief.n_experts
        if n == J:
            return np.tile(np.arange(n), (len(new), 1))
        Z = self.brief.scaled(new)
        found, step = np.empty((len(new), n), dtype=np.intp), min(_NEIGHBOURS, -(-_HELD // J))
        for rows in (slice(i, i + step) for i in range(0, len(new), step)):
            some = self._in_reach(Z[rows], n)
            apart = cdist(Z[rows], brief.centres[some]) - brief.radii[some]
            # The n-th distance and a comparison are faster than places.
            chosen = apart <= np.partition(apart, n - 1, axis=1)[:, n - 1 : n]
            if np.count_nonzero(chosen) == n * len(apart):
                found[rows] = some[np.nonzero(chosen)[1]].reshape(-1, n)
            else:  # some are as far as others
                found[rows] = some[np.argpartition(apart, n - 1, axis=1)[:, :n]]
        return found

    def _in_reach(self, Z: Array, n: int) -> Array:
        """Experts among which the n nearest to each of some scaled rows are: a row that is r from
        their middle is at most r nearer to an expert, or farther from it, than the middle is."""
        brief, middle = self.brief, Z.mean(axis=0)
        r = np.sqrt(((Z - middle) ** 2).sum(axis=1).max())
        apart = cdist(middle[None], brief.centres)[0] - brief.radii
        limit = np.partition(apart, n - 1)[n - 1] + 2.0 * r
        return np.flatnonzero(apart <= limit + 1e-9 * (abs(limit) + r))

    def confident(
        self, new: Array, k: int, n_near: int, settings: Sequence[Setting], prior: Prior,
        noise: float, engine: LocalEngine,
    ) -> tuple[Array, Gaussian, list[Sums]]:  # fmt: skip
        """The k < J most confident experts [k, n] at the rows `new` [n, D] of the n_near nearest,
        which are asked in brief, what they say, and for each setting the sums over all others."""
        n_near = min(n_near, self.brief.n_experts)
        parts = [slice(a, a + _BLOCK_ROWS) for a in range(0, len(new), _BLOCK_ROWS)]
        found = list(
            engine.map(
                lambda part: self._block(new[part], k, n_near, settings, prior, noise), parts
            )
        )
        experts, mean, var = (np.concatenate([part[i] for part in found], axis=1) for i in range(3))
        rest = [Sums.joined([part[3][i] for part in found]) for i in range(len(settings))]
        return experts, (mean, var), rest

    def _block(
        self, new: Array, k: int, n_near: int, settings: Sequence[Setting], prior: Prior,
        noise: float,
    ) -> tuple[Array, Array, Array, list[Sums]]:  # fmt: skip
        brief, J = self.brief, self.brief.n_experts
        near = self.near(new, n_near)
        mean, var = brief.moments(new, near)
        order = np.argpartition(_score(var), k, axis=1)
        best, others = order[:, :k], order[:, k:]

        def over(mean: Array, var: Array) -> list[Sums]:
            mean, var = np.swapaxes(mean, 0, 1), np.swapaxes(var, 0, 1)
            return [sums(s, mean, var, prior, noise, J) for s in settings]

        rest = over(_at(mean, others), _at(var, others))
        if n_near < J:
            flat = np.zeros((len(new), 1, *brief.latent_shape))
            far = over(flat + prior.mean, flat + prior.var)
            rest = [a + b.times(J - n_near) for a, b in zip(rest, far, strict=True)]
        experts, mean, var = (np.swapaxes(_at(v, best), 0, 1) for v in (near, mean, var))
        return experts, mean, var, rest


def _score(var: Array) -> Array:
    """[k, n] of variances, with several latent functions their mean."""
    return var.reshape(*var.shape[:2], -1).mean(axis=2)


def _at(values: Array, places: Array) -> Array:
    """values[n, places[n, i]]."""
    return values[np.arange(len(places))[:, None], places]


def sums(setting: Setting, mean: Array, var: Array, prior: Prior, noise: float, J: int) -> Sums:
    """The sums over some experts, in the setting's space."""
    extra = noise if setting.space == "y" else 0.0
    return Sums.of_block(setting, mean, var + extra, prior.mean, prior.var + extra, 1, J)


def ask(
    committee: Any, new: Array, experts: Array, wanted: Array, said: Gaussian, engine: LocalEngine
) -> None:
    """Replaces what the experts [k, n] said of the rows `new` [n, D] by what they say in full where
    that is wanted [k, n], each being asked once about all of its rows."""
    flat, n = experts.ravel(), len(new)
    order = np.flatnonzero(wanted)
    order = order[by_expert(flat[order], committee.n_experts)]
    ends = np.flatnonzero(np.diff(committee.homes[flat[order]])) + 1

    def run(group: Array) -> None:
        parts = np.split(group, np.flatnonzero(np.diff(flat[group])) + 1)
        asked = [(int(flat[part[0]]), part % n) for part in parts]
        found = zip(*committee.moments_of(new, asked, engine), strict=True)
        for values, full in zip(said, found, strict=True):
            values[group // n, group % n] = np.concatenate(full)

    if len(order):
        engine.run(run, np.split(order, ends))


@dataclass(frozen=True, order=True)
class Net:
    """How many experts may be asked about a row, by how much their variance in brief may exceed
    that of the most confident, and how many are asked in brief; none where everyone is asked."""

    experts: int = 0
    margin: float = np.inf
    near: int = _LEAST_IN_BRIEF

    def __or__(self, other: Net) -> Net:
        """That has in it whom one of the two has."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Net(*(max(pair) for pair in pairs))


def in_brief(k: int) -> int:
    """How many experts are asked in brief to find the k most confident."""
    return max(_IN_BRIEF * k, _LEAST_IN_BRIEF)


def answers(
    committee: Any, new: Array, found: tuple[Array, Gaussian, list[Sums]], margin: float,
    settings: Sequence[Setting], prior: Prior, engine: LocalEngine,
) -> tuple[list[Gaussian], int]:  # fmt: skip
    """What a guide found at the rows `new` [n, D], with those of the most confident asked in full
    whose variance is within the margin of the first: mean and variance [n] for every setting, and
    how many were asked."""
    experts, brief, rests = found
    noise, J = committee.theta.noise_variance, committee.n_experts
    score = _score(brief[1])
    wanted = score <= score.min(axis=0) + margin
    said = brief[0].copy(), brief[1].copy()
    ask(committee, new, experts, wanted, said, engine)
    results = []
    for setting, rest in zip(settings, rests, strict=True):
        extra = noise if setting.space == "y" else 0.0
        total = sums(setting, *said, prior, noise, J) + rest
        results.append(total.finish(setting, prior.mean, prior.var + extra))
    return results, int(wanted.sum())


def routed(
    committee: Any, new: Array, settings: Sequence[Setting], prior: Prior, guide: Guide, net: Net,
    engine: LocalEngine, advance: Callable[[int], Any] = lambda rows: None,
) -> list[Gaussian]:  # fmt: skip
    """What `prediction.stream` gives, with the experts in the net asked in full."""
    shape = (len(new), *committee.latent_shape)
    results = [(np.empty(shape), np.empty(shape)) for _ in settings]
    noise, order = committee.theta.noise_variance, guide.order(new)
    for part in np.split(order, range(_ROWS, len(new), _ROWS)):
        rows, there = new[part], committee.at(part)
        found = guide.confident(rows, net.experts, net.near, settings, prior, noise, engine)
        combined, _ = answers(there, rows, found, net.margin, settings, prior, engine)
        for (mean, var), values in zip(results, combined, strict=True):
            mean[part], var[part] = values
        advance(len(part))
    return results
