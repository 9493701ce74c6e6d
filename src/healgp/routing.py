"""Which experts are asked about a row: the nearest of them in brief, and those that are most
confident then in full.

Weights of a softmax fall fast with an expert's variance, so that few experts decide. Who they are
the experts in brief say (`healgp.experts.brief`), at a fortieth of the cost, and who is worth
asking in brief the distance to their rows says. Those that are asked in brief alone count with
that, and those that are too far even for it as experts who know nothing.

How many are asked in full, how much less confident than the first of them they may be, and how many
are asked in brief is found by an audit: rows of the training set, each left out of its own expert,
ask everyone, and routing must agree with that. Where it does not spare most of the work, everyone
is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
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

#: Experts that make routing worth the audit.
LEAST_EXPERTS = 32

#: Rows that an expert can be asked about in the time that it takes to sum it up in brief.
_SUMMED_UP = 400

#: Rows that are routed at a time, rows of a block, neighbours that look for experts together, and
#: distances that are held at a time.
_ROWS, _BLOCK_ROWS, _NEIGHBOURS, _HELD = 2**15, 512, 128, 2**18

#: Numbers of experts that are tried; how much less confident they may be, in variance, as shares of
#: the prior's; and the share of all experts that a row may ask on average.
_ASKED = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_MARGINS = (0.8, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)
_MOST = 0.25

#: Experts that are asked in brief, for each that is asked in full, and at least; and the fewer that
#: are tried once it is known who is asked in full.
_IN_BRIEF, _LEAST_IN_BRIEF, _FEWER = 8, 256, (128, 64, 32)

#: Multiples of n_nearest that the nested rule asks to find the most confident; twice as many are
#: then asked, for it changes by steps.
_MULTIPLES = (2, 4, 8)

#: The share of the tolerance that the rows of an audit of the nested rule must keep, for it has few
#: of them.
_CAUTION = 0.5

#: Rows of an audit of the nested rule at most, which costs much; other rules are audited on all the
#: rows that the temperature is chosen on. Few rows see few of the experts that know more of a place
#: than they say in brief: of airline, 765 rows all agreed where 0.14 % of new ones did not.
AUDITED_NESTED = 300


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
        Z = new / self.brief.theta.lengthscales
        return np.argsort(balanced(Z, parts, np.random.default_rng(0)), kind="stable")

    def near(self, new: Array, n: int) -> Array:
        """The n experts [rows, n] whose rows are nearest to each of the rows `new` [rows, D], which
        is fast where neighbours follow one another."""
        brief, J = self.brief, self.brief.n_experts
        if n == J:
            return np.tile(np.arange(n), (len(new), 1))
        Z = new / brief.theta.lengthscales
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


def routed(
    committee: Any, new: Array, settings: Sequence[Setting], prior: Prior, guide: Guide, net: Net,
    engine: LocalEngine, advance: Callable[[int], Any] = lambda rows: None,
) -> tuple[list[Gaussian], float]:  # fmt: skip
    """What `prediction.stream` gives, with the experts in the net asked in full; and how many that
    were for a row on average."""
    shape = (len(new), *committee.latent_shape)
    results = [(np.empty(shape), np.empty(shape)) for _ in settings]
    noise, J, asked = committee.theta.noise_variance, committee.n_experts, 0
    order = guide.order(new)
    for part in np.split(order, range(_ROWS, len(new), _ROWS)):
        rows = new[part]
        experts, said, rests = guide.confident(
            rows, net.experts, net.near, settings, prior, noise, engine
        )
        score = _score(said[1])
        wanted = score <= score.min(axis=0) + net.margin
        asked += int(wanted.sum())
        ask(committee.at(part), rows, experts, wanted, said, engine)
        for setting, rest, (means, variances) in zip(settings, rests, results, strict=True):
            total = sums(setting, *said, prior, noise, J) + rest
            extra = noise if setting.space == "y" else 0.0
            means[part], variances[part] = total.finish(setting, prior.mean, prior.var + extra)
        advance(len(part))
    return results, asked / max(len(new), 1)


def apart(one: Gaussian, other: Gaussian, noise: float) -> Array:
    """How far latent means and variances [n] are from others, in predictive deviations of these."""
    deviations = [np.sqrt(var + noise) for _, var in (one, other)]
    found = np.maximum(abs(one[0] - other[0]), abs(deviations[0] - deviations[1])) / deviations[1]
    return found.reshape(len(found), -1).max(axis=1)


def agree(one: Gaussian, other: Gaussian, noise: float, tolerance: float) -> bool:
    """Whether all rows are within the tolerance of the second's answers."""
    return bool((apart(one, other, noise) <= tolerance).all())


def audit(
    committee: Any, new: Array, setting: Setting, everyone: Gaussian, prior: Prior, noise: float,
    guide: Guide, tolerance: float, engine: LocalEngine,
) -> Net:  # fmt: skip
    """The net for answers within `tolerance` of those of everyone, in predictive deviations: the
    fewest experts, then the smallest margin, then the fewest in brief."""
    left = noise if setting.space == "f" else 0.0  # y-space holds its noise already

    def tried(net: Net) -> tuple[bool, float]:
        found, asked = routed(committee, new, [setting], prior, guide, net, engine)
        return agree(found[0], everyone, left, tolerance), asked

    def whole(k: int, margin: float = np.inf) -> Net:
        return Net(k, margin, in_brief(k))

    numbers = [k for k in _ASKED if k <= 2 * _MOST * committee.n_experts]
    held = next((i for i, k in enumerate(numbers) if tried(whole(k))[0]), None)
    if held is None:
        return Net()
    most = numbers[min(held + 1, len(numbers) - 1)]  # the margin leaves out who is not needed
    net, fewest = whole(numbers[held]), float(numbers[held])
    for margin in _MARGINS:
        smaller = whole(most, margin * float(np.max(prior.var)))
        good, asked = tried(smaller)
        if not good:
            break
        if asked < fewest:
            net, fewest = smaller, asked
    if fewest > _MOST * committee.n_experts:
        return Net()
    for near in (n for n in _FEWER if n > net.experts):
        smaller = replace(net, near=near)
        if not tried(smaller)[0]:
            break
        net = smaller
    return net


def audit_nested(
    combine: Callable[[int | None], Gaussian], n_nearest: int, n_experts: int, noise: float,
    tolerance: float,
) -> int:  # fmt: skip
    """How many experts the nested rule asks to find the most confident, for answers within
    `tolerance`; 0 where everyone should be asked. `combine(asked)` is the rule at some rows."""
    tried = [m * n_nearest for m in _MULTIPLES if 2 * m * n_nearest <= _MOST * n_experts]
    if not tried:
        return 0
    everyone = combine(None)
    for k in tried:
        if agree(combine(k), everyone, noise, _CAUTION * tolerance):
            return 2 * k
    return 0
