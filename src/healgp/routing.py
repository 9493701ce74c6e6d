"""Which experts are asked about a row: the nearest of them in brief, and those that are most
confident then in full.

Weights of a softmax fall fast with an expert's variance, so that few experts decide. Who they are
the experts in brief say (`healgp.experts.brief`), at a fortieth of the cost, and who is worth
asking in brief the distance to their rows says. Those that are asked in brief alone count with
that, and those that are too far even for it as experts who know nothing.

How many are asked in full, and how much less confident than the first of them they may be, is found
by an audit: rows of the training set, each left out of its own expert, ask everyone, and routing
must agree with that. Where it does not spare most of the work, everyone is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from healgp.aggregation import Gaussian
from healgp.engines.local import LocalEngine
from healgp.experts.brief import Brief, by_expert
from healgp.prediction import Prior, Setting, Sums
from healgp.weights import SCORES

Array = np.ndarray

#: Experts that make routing worth the audit.
LEAST_EXPERTS = 32

#: Rows that are routed at a time, rows of a block, and distances that are held at a time.
_ROWS, _BLOCK_ROWS, _HELD = 2**15, 512, 2**18

#: Every how manieth expert gives a region of neighbouring rows.
_REGION = 32

#: Numbers of experts that are tried; how much less confident they may be, in variance, as shares of
#: the prior's; and the share of all experts that a row may ask on average.
_ASKED = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_MARGINS = (0.8, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)
_MOST = 0.25

#: Experts that are asked in brief, for each that is asked in full, and at least.
_IN_BRIEF, _LEAST_IN_BRIEF = 8, 256

#: Multiples of n_nearest that the nested rule asks to find the most confident; twice as many are
#: then asked, for it changes by steps.
_MULTIPLES = (2, 4, 8)

#: The share of the tolerance that the rows of an audit must keep, for it has few of them.
_CAUTION = 0.5

#: Rows of an audit at most, and for the nested rule, which costs more.
AUDITED, AUDITED_NESTED = 1000, 300


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

    def update(self, committee: Any, engine: LocalEngine) -> None:
        """After some experts have changed, or have come after the others."""
        if self.changed:
            self.brief.update(committee, np.array(sorted(self.changed)), engine)
            self.changed.clear()

    def order(self, new: Array) -> Array:
        """The rows `new` [n, D] in an order in which neighbours follow one another. Experts that
        are neighbours in number are neighbours in space, if any are."""
        Z, centres = new / self.brief.theta.lengthscales, self.brief.centres[::_REGION]
        squares, step = (centres**2).sum(axis=1), -(-_HELD // len(centres))
        parts = (Z[i : i + step] for i in range(0, len(Z), step))
        regions = [(squares - 2.0 * (part @ centres.T)).argmin(axis=1) for part in parts]
        return np.argsort(np.concatenate(regions), kind="stable")

    def near(self, new: Array, n: int) -> Array:
        """The n experts [rows, n] whose rows are nearest to each of the rows `new` [rows, D]."""
        brief, J = self.brief, self.brief.n_experts
        if n == J:
            return np.tile(np.arange(n), (len(new), 1))
        Z, squares = new / brief.theta.lengthscales, (brief.centres**2).sum(axis=1)
        found = np.empty((len(new), n), dtype=np.intp)
        for rows in np.array_split(np.arange(len(new)), -(-len(new) * J // _HELD)):
            apart = Z[rows] @ (-2.0 * brief.centres.T)
            apart += squares
            apart += (Z[rows] ** 2).sum(axis=1)[:, None]
            np.sqrt(np.maximum(apart, 0.0, out=apart), out=apart)
            apart -= brief.radii
            # The n-th distance and a comparison are faster than places.
            chosen = apart <= np.partition(apart, n - 1, axis=1)[:, n - 1 : n]
            if np.count_nonzero(chosen) == n * len(rows):
                found[rows] = np.nonzero(chosen)[1].reshape(-1, n)
            else:  # some are as far as others
                found[rows] = np.argpartition(apart, n - 1, axis=1)[:, :n]
        return found

    def confident(
        self, new: Array, k: int, settings: Sequence[Setting], prior: Prior, noise: float,
        engine: LocalEngine,
    ) -> tuple[Array, Gaussian, list[Sums]]:  # fmt: skip
        """The k < J most confident experts [k, n] at the rows `new` [n, D] of those asked in brief,
        what they say, and for each setting the sums over all others."""
        parts = [slice(a, a + _BLOCK_ROWS) for a in range(0, len(new), _BLOCK_ROWS)]
        found = list(
            engine.map(lambda part: self._block(new[part], k, settings, prior, noise), parts)
        )
        experts, mean, var = (np.concatenate([part[i] for part in found], axis=1) for i in range(3))
        rest = [Sums.joined([part[3][i] for part in found]) for i in range(len(settings))]
        return experts, (mean, var), rest

    def _block(
        self, new: Array, k: int, settings: Sequence[Setting], prior: Prior, noise: float
    ) -> tuple[Array, Array, Array, list[Sums]]:
        brief, J = self.brief, self.brief.n_experts
        n_near = min(max(_IN_BRIEF * k, _LEAST_IN_BRIEF), J)
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
        for part, found in zip(parts, committee.moments_of(new, asked, engine), strict=True):
            for values, full in zip(said, found, strict=True):
                values[part // n, part % n] = full

    if len(order):
        engine.run(run, np.split(order, ends))


@dataclass(frozen=True, order=True)
class Net:
    """How many experts may be asked about a row, and by how much their variance in brief may exceed
    that of the most confident; none where everyone is asked."""

    experts: int = 0
    margin: float = np.inf

    def __or__(self, other: Net) -> Net:
        """That has in it whom one of the two has."""
        return Net(max(self.experts, other.experts), max(self.margin, other.margin))


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
            rows, net.experts, settings, prior, noise, engine
        )  # fmt: skip
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
    fewest experts, and then the smallest margin."""
    left = noise if setting.space == "f" else 0.0  # y-space holds its noise already

    def tried(net: Net) -> tuple[bool, float]:
        found, asked = routed(committee, new, [setting], prior, guide, net, engine)
        return agree(found[0], everyone, left, _CAUTION * tolerance), asked

    numbers = [k for k in _ASKED if k <= 2 * _MOST * committee.n_experts]
    held = next((i for i, k in enumerate(numbers) if tried(Net(k))[0]), None)
    if held is None:
        return Net()
    most = numbers[min(held + 1, len(numbers) - 1)]  # the margin leaves out who is not needed
    net, fewest = Net(numbers[held]), float(numbers[held])
    for margin in _MARGINS:
        smaller = Net(most, margin * float(np.max(prior.var)))
        good, asked = tried(smaller)
        if not good:
            break
        if asked < fewest:
            net, fewest = smaller, asked
    return net if fewest <= _MOST * committee.n_experts else Net()


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
