"""Which experts are asked about a row: the nearest of them in brief, and those that are most
confident then in full.

Weights of a softmax fall fast with an expert's variance, so that few experts decide. Who they are
the experts in brief say (`healgp.experts.brief`), at a fortieth of the cost, and who is worth
asking in brief the distance to their rows says. Those that are asked in brief alone count with
that, and those that are too far even for it as experts who know nothing.

How many are asked in full is found by an audit: rows of the training set, each left out of its own
expert, ask everyone, and the number is doubled until they agree within the tolerance. Where that
does not spare most of the work, everyone is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from healgp.aggregation import Gaussian
from healgp.engines.local import LocalEngine
from healgp.experts.brief import Brief
from healgp.prediction import Prior, Setting, Sums
from healgp.weights import SCORES

Array = np.ndarray

#: Experts that make routing worth the audit.
LEAST_EXPERTS = 32

#: Rows that are routed at a time; rows of a block, and experts whose distances are held at a time.
_ROWS, _BLOCK_ROWS, _BLOCK_EXPERTS = 2**15, 512, 4096

#: Every how manieth expert gives a region of neighbouring rows.
_REGION = 32

#: Numbers of experts that are tried, and the share of all experts that they may be.
_ASKED, _MOST = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512), 0.25

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

    def update(self, committee: Any, experts: Array, engine: LocalEngine) -> None:
        """After some experts have changed, or have come after the others."""
        self.brief.update(committee, experts, engine)

    def order(self, new: Array) -> Array:
        """The rows `new` [n, D] in an order in which neighbours follow one another. Experts that
        are neighbours in number are neighbours in space, if any are."""
        Z, centres = new / self.brief.theta.lengthscales, self.brief.centres[::_REGION]
        squared = (centres**2).sum(axis=1) - 2.0 * (Z @ centres.T)
        return np.argsort(squared.argmin(axis=1), kind="stable")

    def near(self, new: Array, n: int) -> Array:
        """The n experts [rows, n] whose rows are nearest to each of the rows `new` [rows, D]."""
        brief, Z = self.brief, new / self.brief.theta.lengthscales
        found, apart = np.empty((2, len(new), 0))
        for first in range(0, brief.n_experts, _BLOCK_EXPERTS):
            centres = brief.centres[first : first + _BLOCK_EXPERTS]
            squared = (Z**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2.0 * Z @ centres.T
            here = np.sqrt(np.maximum(squared, 0.0)) - brief.radii[first : first + len(centres)]
            numbers = np.tile(np.arange(first, first + len(centres)), (len(new), 1))
            found, apart = np.hstack([found, numbers]), np.hstack([apart, here])
            if n < found.shape[1]:
                order = np.argpartition(apart, n - 1, axis=1)[:, :n]
                found, apart = _at(found, order), _at(apart, order)
        return found.astype(np.intp)

    def confident(
        self, new: Array, k: int, settings: Sequence[Setting], prior: Prior, own_noise: float,
        engine: LocalEngine,
    ) -> tuple[Array, list[Sums]]:  # fmt: skip
        """The k < J most confident experts [k, n] at the rows `new` [n, D] of those asked in brief,
        and for each setting the sums over all others."""
        parts = [slice(a, a + _BLOCK_ROWS) for a in range(0, len(new), _BLOCK_ROWS)]
        found = list(
            engine.map(lambda part: self._block(new[part], k, settings, prior, own_noise), parts)
        )
        chosen = np.concatenate([numbers for numbers, _ in found], axis=1)
        rests = [Sums.joined([sums[i] for _, sums in found]) for i in range(len(settings))]
        return chosen, rests

    def _block(
        self, new: Array, k: int, settings: Sequence[Setting], prior: Prior, own_noise: float
    ) -> tuple[Array, list[Sums]]:
        brief, J, n = self.brief, self.brief.n_experts, len(new)
        near = self.near(new, min(max(_IN_BRIEF * k, _LEAST_IN_BRIEF), J))
        mean, var = brief.moments(new, near)
        score = var.reshape(*near.shape, -1).mean(axis=2)
        order = np.argpartition(score, k, axis=1)
        best, others = order[:, :k], order[:, k:]

        def over(mean: Array, var: Array) -> list[Sums]:
            mean, var = np.swapaxes(mean, 0, 1), np.swapaxes(var, 0, 1)
            return [sums(s, mean, var, prior, own_noise, J) for s in settings]

        totals = over(_at(mean, others), _at(var, others))
        if near.shape[1] < J:
            flat = np.zeros((n, 1, *brief.latent_shape))
            rest = over(flat + prior.mean, flat + prior.var)
            far = J - near.shape[1]
            totals = [a + b.times(far) for a, b in zip(totals, rest, strict=True)]
        return _at(near, best).T, totals


def _at(values: Array, places: Array) -> Array:
    """values[n, places[n, i]]."""
    return values[np.arange(len(places))[:, None], places]


def sums(setting: Setting, mean: Array, var: Array, prior: Prior, noise: float, J: int) -> Sums:
    """The sums over some experts, in the setting's space."""
    extra = noise if setting.space == "y" else 0.0
    return Sums.of_block(setting, mean, var + extra, prior.mean, prior.var + extra, 1, J)


def ask(committee: Any, new: Array, experts: Array, engine: LocalEngine) -> tuple[Array, Array]:
    """Latent means and variances [k, n] of the experts [k, n] at the rows `new` [n, D], each asked
    once about all of its rows."""
    k, n = experts.shape
    mean, var = np.empty((2, k, n, *committee.latent_shape))
    flat = experts.ravel()
    order = np.argsort(flat, kind="stable")
    ends = np.flatnonzero(np.diff(committee.homes[flat[order]])) + 1

    def run(group: Array) -> None:
        parts = np.split(group, np.flatnonzero(np.diff(flat[group])) + 1)
        asked = [(int(flat[part[0]]), part % n) for part in parts]
        for part, found in zip(parts, committee.moments_of(new, asked, engine), strict=True):
            mean[part // n, part % n], var[part // n, part % n] = found

    engine.run(run, np.split(order, ends))
    return mean, var


def routed(
    committee: Any, new: Array, settings: Sequence[Setting], prior: Prior, guide: Guide, k: int,
    engine: LocalEngine, advance: Callable[[int], Any] = lambda rows: None,
) -> list[Gaussian]:  # fmt: skip
    """What `prediction.stream` gives, with k experts asked in full at each row."""
    shape = (len(new), *committee.latent_shape)
    results = [(np.empty(shape), np.empty(shape)) for _ in settings]
    noise, J = committee.theta.noise_variance, committee.n_experts
    order = guide.order(new)
    for part in np.split(order, range(_ROWS, len(new), _ROWS)):
        there, rows = committee.at(part), new[part]
        chosen, rests = guide.confident(rows, k, settings, prior, noise, engine)
        mean, var = ask(there, rows, chosen, engine)
        for setting, rest, (means, variances) in zip(settings, rests, results, strict=True):
            total = sums(setting, mean, var, prior, noise, J) + rest
            extra = noise if setting.space == "y" else 0.0
            means[part], variances[part] = total.finish(setting, prior.mean, prior.var + extra)
        advance(len(part))
    return results


def agree(one: Gaussian, other: Gaussian, noise: float, tolerance: float) -> bool:
    """Whether 99.9 % of the rows have latent means and variances within the tolerance of the
    second's, in its predictive deviations."""
    deviations = [np.sqrt(var + noise) for _, var in (one, other)]
    apart = np.maximum(abs(one[0] - other[0]), abs(deviations[0] - deviations[1])) / deviations[1]
    return bool(np.mean(apart.reshape(len(apart), -1).max(axis=1) <= tolerance) >= 0.999)


def audit(
    committee: Any, new: Array, setting: Setting, everyone: Gaussian, prior: Prior, noise: float,
    guide: Guide, tolerance: float, engine: LocalEngine,
) -> int:  # fmt: skip
    """How many experts to ask for answers within `tolerance` of those of everyone, in predictive
    deviations; 0 where everyone should be asked."""
    tried = [k for k in _ASKED if k <= _MOST * committee.n_experts]
    left = noise if setting.space == "f" else 0.0  # y-space holds its noise already
    for k in tried:
        found = routed(committee, new, [setting], prior, guide, k, engine)[0]
        if agree(found, everyone, left, _CAUTION * tolerance):
            return k
    return 0


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
