"""The temperature, chosen by what predicts best: rows of the training set, each left out of its own
expert in closed form, or rows that were held out.

A row's own expert predicts it without the row, all others as they are, and the aggregate's negative
log predictive density is compared over a grid of temperatures, which are aggregated in one pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from healgp.aggregation import Gaussian
from healgp.deviations import GAUSSIAN, Deviations
from healgp.engines.local import LocalEngine
from healgp.prediction import Setting
from healgp.weights import SCORES

Array = np.ndarray

#: Temperatures that are compared, and the one that is taken where it makes no difference.
GRID = np.geomspace(0.3, 10_000.0, 37)
INDIFFERENT = 100.0

#: Training rows that the temperature is chosen on: as many as this product with the number of
#: experts allows, within the bounds.
_WORK, _ROWS = 2_000_000, (200, 2000)

#: The gain in NLPD that makes up for the cost of the nested rule, and of a smaller temperature
#: where there are many experts; and from how many on, and up to how many, it must be larger in
#: proportion to them, for whoever must ask all of them pays for each.
_GAIN, _MANY, _MORE, _MOST = 0.002, 32, 200, 1200

#: A curve whose range is below this has no minimum worth the name.
_FLAT = 1e-6


@dataclass(frozen=True)
class Curve:
    """NLPD over the temperatures, and the one with the smallest."""

    temperatures: Array
    nlpd: Array

    @classmethod
    def of(
        cls, settings: Sequence[Setting], found: Sequence[Gaussian],
        log_density: Callable[[Setting, Array, Array], Array],
    ) -> Curve:  # fmt: skip
        """From aggregated moments [n] of rows under each setting, `log_density` being that of their
        targets."""
        values = [-log_density(s, *r).mean() for s, r in zip(settings, found, strict=True)]
        return cls(np.array([s.temperature for s in settings]), np.array(values))

    @property
    def matters(self) -> bool:
        """False where all temperatures predict alike, as with one expert or with equal ones."""
        return bool(np.ptp(self.nlpd) > _FLAT)

    def chosen(self, n_experts: int) -> float:
        """The temperature with the smallest NLPD; where there are many experts the largest that is
        about as good, for the larger it is, the fewer have a say and must be asked."""
        if not self.matters:
            return INDIFFERENT
        allowed = _worth(n_experts) if n_experts >= _MANY else 0.0
        good = np.flatnonzero(self.nlpd <= self.nlpd.min() + allowed)
        return float(self.temperatures[good[-1]])


def _worth(n_experts: int) -> float:
    """The gain that makes up for asking many of them."""
    return _GAIN * max(1.0, min(n_experts, _MOST) / _MORE)


def has_temperature(setting: Setting) -> bool:
    """Whether a setting's weights are a softmax."""
    return setting.aggregation not in ("poe", "bcm", "nested") and setting.weighting in SCORES


def sample_rows(N: int, n_experts: int, rng: np.random.Generator) -> Array:
    """The training rows to choose on."""
    n = int(np.clip(_WORK // n_experts, *_ROWS))
    return np.sort(rng.choice(N, min(n, N), replace=False))


class LeaveOneOut:
    """A committee (exact or sparse) that is asked about some of its own rows: a row's own expert
    answers without it. Whoever asks about a part of them asks `at` that part."""

    def __init__(self, committee: Any, rows: Array, engine: LocalEngine) -> None:
        self._committee = committee
        self._owner, self._mean, self._var = committee.leave_one_out(rows, engine)
        self._place = rows - committee.offsets[self._owner]  # among the rows of its expert

    def at(self, part: Array | slice) -> LeaveOneOut:
        """The same for a part of the rows."""
        some = copy.copy(self)
        some._owner, some._place = self._owner[part], self._place[part]
        some._mean, some._var = self._mean[part], self._var[part]
        return some

    def together(self, experts: Array, function: Any, engine: LocalEngine) -> Any:
        """As of the committee, whose experts still answer without the row."""
        own = copy.copy(self)
        own._committee = None
        place = np.searchsorted(experts, self._owner)
        known = np.append(experts, -1)[place] == self._owner

        def without(committee: Any, numbers: Array, engine: LocalEngine) -> Any:
            own._committee = committee
            own._owner = np.where(known, np.append(numbers, -1)[place], -1)
            return function(own, numbers, engine)

        return self._committee.together(experts, without, engine)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # not while it is being copied
            raise AttributeError(name)
        return getattr(self._committee, name)

    def moments(self, new: Array, first: int, last: int, engine: LocalEngine) -> Any:
        mean, var = self._committee.moments(new, first, last, engine)
        here = np.flatnonzero((self._owner >= first) & (self._owner < last))
        where = self._owner[here] - first, here
        mean[where], var[where] = self._mean[here], self._var[here]
        return mean, var

    def moments_of(self, new: Array, asked: list[tuple[int, Array]], engine: LocalEngine) -> Any:
        found = self._committee.moments_of(new, asked, engine)
        for (j, rows), (mean, var) in zip(asked, found, strict=True):
            own = np.flatnonzero(self._owner[rows] == j)
            mean[own], var[own] = self._mean[rows[own]], self._var[rows[own]]
        return found

    def coefficients(self, new: Array, rows: Array, j: int, engine: LocalEngine) -> Array:
        out = self._committee.coefficients(new, rows, j, engine)
        own = np.flatnonzero(self._owner[rows] == j)
        if len(own):
            places = self._committee.offsets[j] + self._place[rows[own]]
            out[own] = self._committee.without(places, j, engine, True)[2]
        return out


def settings(setting: Setting, committee: Any) -> list[Setting]:
    """A setting at the temperatures that are compared."""
    # the densities of classes cost more, and a third of the grid will do
    grid = GRID[::3] if committee.latent_shape else GRID
    return [replace(setting, temperature=float(t)) for t in grid]


@dataclass(frozen=True)
class Comparison:
    """NLPD of rules at the same rows; the one to take: the first, unless a later one, which costs
    more, gains enough to be worth it; and what the deviations of y are under it."""

    scores: dict[str, float]
    chosen: str
    deviations: Deviations = GAUSSIAN

    @classmethod
    def of(cls, judged: dict[str, tuple[Array, Deviations]], n_experts: int) -> Comparison:
        """From the log densities of each row and the deviations under each rule; one alone is not
        compared."""
        scores = {rule: float(-density.mean()) for rule, (density, _) in judged.items()}
        first, *others = judged
        cost = _worth(n_experts)
        chosen = min([first, *others], key=lambda r: scores[r] + (cost if r != first else 0.0))
        return cls(scores if others else {}, chosen, judged[chosen][1])
