"""How many experts must be asked for the answers of everyone.

Rows of the training set, each left out of its own expert, ask everyone, and routing must agree with
that: on how many are asked in full, how much less confident than the first of them they may be, and
how many are asked in brief. Where that does not spare most of the work, everyone is asked. An
expert answers a row once, however many numbers are tried.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from healgp.aggregation import Gaussian
from healgp.calibration import LeaveOneOut
from healgp.engines.local import LocalEngine
from healgp.nested import Chosen, Route, at, chosen, nested
from healgp.prediction import Prior, Setting, Sums
from healgp.routing import Guide, Net, answers, in_brief

Array = np.ndarray

#: Experts that make routing worth the audit.
LEAST_EXPERTS = 32

#: Numbers of experts that are tried, in groups, for few experts are hardly faster to ask than some
#: more; how much less confident they may be, in variance, as shares of the prior's; the share of
#: all experts that a row may ask on average; and the numbers in brief that are tried once it is
#: known who is asked in full.
_ASKED = ((8, 12, 16, 24, 32), (48, 64, 96, 128), (192, 256, 384, 512))
_MARGINS = (0.8, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)
_MOST, _FEWER = 0.25, (128, 64, 32)

#: Multiples of n_nearest that the nested rule asks to find the most confident; twice as many are
#: then asked, for it changes by steps.
_MULTIPLES = (2, 4, 8)

#: The share of the tolerance that the rows of an audit of the nested rule must keep, for it has few
#: of them; and how many of them are compared at a time, for one that is off will do.
_CAUTION, _AT_ONCE = 0.5, 16

#: Rows of an audit of the nested rule at most, which costs much; other rules are audited on all the
#: rows that the temperature is chosen on. Few rows see few of the experts that know more of a place
#: than they say in brief: of airline, 765 rows all agreed where 0.14 % of new ones did not.
_ROWS_NESTED = 300


def audit(
    committee: Any, rows: Array, setting: Setting, noise: float, guide: Guide, tolerance: float,
    engine: LocalEngine, prior: Prior, everyone: Gaussian,
) -> Net:  # fmt: skip
    """The net for answers within `tolerance` of those of everyone, in predictive deviations, at
    some of the committee's own rows: the fewest experts, then the smallest margin, then the fewest
    in brief."""
    left = noise if setting.space == "f" else 0.0  # y-space holds its noise already
    new = committee.inputs(rows)
    order = guide.order(new)
    new, everyone = new[order], (everyone[0][order], everyone[1][order])
    without = _Remembered(LeaveOneOut(committee, rows[order], engine))
    J, own_noise = committee.n_experts, committee.theta.noise_variance

    @lru_cache(2)  # one margin after another has the same
    def found(experts: int, near: int) -> tuple[Array, Gaussian, list[Sums]]:
        return guide.confident(new, experts, near, [setting], prior, own_noise, engine)

    def tried(net: Net) -> tuple[bool, float]:
        (got,), asked = answers(
            without, new, found(net.experts, net.near), net.margin, [setting], prior, engine
        )
        return agree(got, everyone, left, tolerance), asked / len(new)

    def whole(k: int, margin: float = np.inf) -> Net:
        return Net(k, margin, in_brief(k))

    groups = [[k for k in group if k <= 2 * _MOST * J] for group in _ASKED]
    enough = next((group for group in groups if group and tried(whole(group[-1]))[0]), None)
    if enough is None:
        return Net()
    numbers = [k for group in groups for k in group]
    held = numbers.index(next(k for k in enough if tried(whole(k))[0]))
    most = numbers[min(held + 1, len(numbers) - 1)]  # the margin leaves out who is not needed
    net, fewest = whole(numbers[held]), float(numbers[held])
    for margin in _MARGINS:
        smaller = whole(most, margin * float(np.max(prior.var)))
        good, asked = tried(smaller)
        if not good:
            break
        if asked < fewest:
            net, fewest = smaller, asked
    if fewest > _MOST * J:
        return Net()
    for near in (n for n in _FEWER if n > net.experts):
        smaller = replace(net, near=near)
        if not tried(smaller)[0]:
            break
        net = smaller
    return net


def audit_nested(
    committee: Any, rows: Array, setting: Setting, noise: float, guide: Guide, tolerance: float,
    engine: LocalEngine, known: Chosen | None,
) -> Net:  # fmt: skip
    """How many experts the nested rule asks to find the most confident, for answers within
    `tolerance` at some of the committee's own rows; who that is of all may be known."""
    n_nearest = setting.n_nearest
    tried = [m * n_nearest for m in _MULTIPLES if 2 * m * n_nearest <= _MOST * committee.n_experts]
    if not tried:
        return Net()
    step = -(-len(rows) // _ROWS_NESTED)
    rows = rows[::step]
    new = committee.inputs(rows)
    without: Any = LeaveOneOut(committee, rows, engine)

    def found(route: Route | None) -> Chosen:
        return chosen(without, new, n_nearest, engine, route)

    def answers_of(part: Array, who: Chosen) -> Gaussian:
        return nested(without.at(part), new[part], n_nearest, engine, known=at(who, part))

    everyone = found(None) if known is None else at(known, slice(None, None, step))
    for k in tried:
        asked = found(Route(guide, k))
        others = np.flatnonzero(
            (np.sort(asked[0], axis=0) != np.sort(everyone[0], axis=0)).any(axis=0)
        )
        parts = np.split(others, range(_AT_ONCE, len(others), _AT_ONCE)) if len(others) else []
        if all(
            agree(answers_of(part, asked), answers_of(part, everyone), noise, _CAUTION * tolerance)
            for part in parts
        ):
            return Net(2 * k, near=in_brief(2 * k))
    return Net()


class _Remembered:
    """Experts that are asked about the same rows again and again, and answer each only once."""

    def __init__(self, committee: Any) -> None:
        self._committee = committee
        self._known: dict[int, tuple[Array, Array, Array]] = {}  # rows in order, mean, variance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._committee, name)

    def moments_of(
        self, new: Array, asked: list[tuple[int, Array]], engine: LocalEngine
    ) -> list[Gaussian]:
        missing = []
        for j, rows in asked:
            rest = rows[~self._told(j, rows)[0]] if j in self._known else rows
            if len(rest):
                missing.append((j, rest))
        found = self._committee.moments_of(new, missing, engine) if missing else []
        for (j, rows), (mean, var) in zip(missing, found, strict=True):
            if j in self._known:
                before, told = self._known[j], (rows, mean, var)
                rows, mean, var = (np.concatenate(p) for p in zip(before, told, strict=True))
            order = np.argsort(rows)
            self._known[j] = rows[order], mean[order], var[order]
        return [self._told(j, rows)[1:] for j, rows in asked]

    def _told(self, j: int, rows: Array) -> tuple[Array, Array, Array]:
        """Which of the rows expert j has answered, and what, where it has."""
        known, mean, var = self._known[j]
        places = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        return known[places] == rows, mean[places], var[places]


def apart(one: Gaussian, other: Gaussian, noise: float) -> Array:
    """How far latent means and variances [n] are from others, in predictive deviations of these."""
    deviations = [np.sqrt(var + noise) for _, var in (one, other)]
    found = np.maximum(abs(one[0] - other[0]), abs(deviations[0] - deviations[1])) / deviations[1]
    return found.reshape(len(found), -1).max(axis=1)


def agree(one: Gaussian, other: Gaussian, noise: float, tolerance: float) -> bool:
    """Whether all rows are within the tolerance of the second's answers."""
    return bool((apart(one, other, noise) <= tolerance).all())
