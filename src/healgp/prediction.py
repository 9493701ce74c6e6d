"""Moments, weights and aggregation, streamed over blocks of experts and of rows.

Sums over experts are kept per row, with a running maximum for the softmax, so that memory grows
with the rows and with the settings but never with experts × rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from healgp import weights as w
from healgp.aggregation import RULES, Gaussian, Moment
from healgp.checks import check_bool, check_number, choose
from healgp.deviations import GAUSSIAN, Deviations
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.experts.sparse import SparseCommittee

Array = np.ndarray

#: Rows that an expert is asked about at a time: factors made again are used for all of them.
BLOCK = 4096


@dataclass(frozen=True)
class Setting:
    """How experts are combined: one entry of `predict_many`. Raises a ValueError on nonsense."""

    aggregation: str
    weighting: str
    temperature: float
    normalize_weights: bool | None
    space: str
    n_nearest: int = 8  # experts that "nested" combines
    deviations: Deviations = GAUSSIAN

    def __post_init__(self) -> None:
        choose("aggregation", self.aggregation, (*RULES, "nested"))
        check_number("n_nearest", self.n_nearest, 1, integer=True)
        choose("weighting", self.weighting, w.WEIGHTINGS)
        choose("space", self.space, ("f", "y"))
        check_number("temperature", self.temperature, 0)
        if self.normalize_weights is None:
            return
        check_bool("normalize_weights", self.normalize_weights)
        if not self.normalize_weights:
            if self.aggregation in RULES and RULES[self.aggregation].needs_normalized:
                raise ValueError(
                    f"aggregation={self.aggregation!r} is a weighted mean: its weights must add up "
                    "to one. Leave normalize_weights=None."
                )
            if self._weighting in ("softmax_entropy", "softmax_wasserstein"):
                raise ValueError(
                    f"weighting={self.weighting!r} overflows without normalisation. Leave "
                    "normalize_weights=None, or use weighting='softmax_variance'."
                )

    @property
    def _weighting(self) -> str:
        return "ones" if self.aggregation in ("poe", "bcm") else self.weighting

    @property
    def normalized(self) -> bool:
        if self.normalize_weights is not None:
            return bool(self.normalize_weights)
        return (
            self.aggregation in ("gpoe", "barycenter", "wasserstein") or self._weighting in w.SCORES
        )

    def log_scale_and_weights(
        self, mean: Array, var: Array, prior_mean: Moment, prior_var: Moment, first: int, J: int
    ) -> tuple[Moment, Array]:
        """c [n] and β [experts, n] of a block that starts at expert `first` of J: the weights, up
        to the normalisation if they have one, are β eᶜ."""
        name = self._weighting
        if name in w.SCORES:
            logits = self.temperature * w.SCORES[name](mean, var, prior_var, prior_mean)
            largest = logits.max(axis=0) if self.normalized else 0.0
            return largest, np.exp(logits - largest)
        if name == "uniform":
            return 0.0, np.full_like(var, 1.0 / J)
        weights = w.RAW[name](mean, var, prior_var)
        raw = self.normalize_weights is not None and not self.normalize_weights
        if self.aggregation == "grbcm" and first == 0 and not raw:
            weights[0] = 1.0  # Liu et al. 2018: the first expert keeps its word whole
        return 0.0, weights

    def weights(self, mean: Array, var: Array, prior_mean: Moment, prior_var: Moment) -> Array:
        """β [J, n] of all experts at once."""
        J = len(var)
        _, weights = self.log_scale_and_weights(mean, var, prior_mean, prior_var, 0, J)
        return w.normalize(weights) if self.normalized else weights


@dataclass
class Sums:
    """Σβ and Σβ·terms over some experts, all divided by eᶜ, c being the running maximum."""

    scale: Moment
    weight: Array
    first: Array
    second: Array

    @classmethod
    def of_block(
        cls, setting: Setting, mean: Array, var: Array, prior_mean: Moment, prior_var: Moment,
        start: int, J: int,
    ) -> Sums:  # fmt: skip
        """The sums over one block of experts, of which the first is expert `start` of J."""
        rule = RULES[setting.aggregation]
        scale, weights = setting.log_scale_and_weights(mean, var, prior_mean, prior_var, start, J)
        if setting.normalized:
            weights = np.maximum(weights, w.TINY)
        var, weights = rule.clip(var, weights, prior_var)
        first, second = rule.terms(mean, var, prior_mean, prior_var)
        return cls(
            scale,
            weights.sum(axis=0),
            np.einsum("j...,j...->...", weights, first),
            np.einsum("j...,j...->...", weights, second),
        )

    def __add__(self, other: Sums) -> Sums:
        scale = np.maximum(self.scale, other.scale)
        a, b = np.exp(self.scale - scale), np.exp(other.scale - scale)
        return Sums(
            scale,
            a * self.weight + b * other.weight,
            a * self.first + b * other.first,
            a * self.second + b * other.second,
        )

    @classmethod
    def joined(cls, parts: Sequence[Sums]) -> Sums:
        """The sums of several blocks of rows, where weights are normalised."""
        names = ("scale", "weight", "first", "second")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def times(self, n: int) -> Sums:
        """The sums over n experts that all say what this one does."""
        return Sums(self.scale, n * self.weight, n * self.first, n * self.second)

    def finish(self, setting: Setting, prior_mean: Moment, prior_var: Moment) -> Gaussian:
        """Mean and variance of the aggregate."""
        total: Moment = self.weight if setting.normalized else 1.0
        return RULES[setting.aggregation].finish(
            self.first / total, self.second / total, prior_mean, prior_var
        )


@dataclass(frozen=True)
class Prior:
    """What the rules fall back to: N(0, σ²), or for grBCM what the communication expert says."""

    mean: Moment
    var: Moment

    def at(self, rows: slice) -> Prior:
        """The prior at some of the rows."""
        mean, var = (v[rows] if isinstance(v, np.ndarray) else v for v in (self.mean, self.var))
        return Prior(mean, var)


def stream(
    committee: Committee | SparseCommittee,
    new: Array,
    settings: Sequence[Setting],
    prior: Prior,
    engine: LocalEngine,
    advance: Callable[[int], Any] = lambda rows: None,
) -> list[Gaussian]:
    """Mean and variance [n] (with several latent functions [n, C]) at the rows `new` [n, D] for
    every setting, asking each expert once: of f for settings in f-space, of y for those in y-space.
    `advance` is told of rows as they are done."""
    J, n = committee.n_experts, len(new)
    noise = committee.theta.noise_variance
    blocks = committee.blocks()
    shape = (n, *committee.latent_shape)
    results = [(np.empty(shape), np.empty(shape)) for _ in settings]

    def in_space(setting: Setting, var: Moment) -> Any:
        # y-space: the noise joins every expert's variance, and the prior's, before aggregation
        return var + noise if setting.space == "y" else var

    def tasks() -> Iterator[tuple[slice, int, int]]:
        for begin in range(0, n, BLOCK):
            for first, last in blocks:
                yield slice(begin, min(begin + BLOCK, n)), first, last

    def run(task: tuple[slice, int, int]) -> tuple[slice, bool, list[Sums]]:
        rows, first, last = task
        mean, var = committee.at(rows).moments(new[rows], first, last, engine)
        here = prior.at(rows)
        sums = [
            Sums.of_block(s, mean, in_space(s, var), here.mean, in_space(s, here.var), first, J)
            for s in settings
        ]
        return rows, (first, last) == blocks[-1], sums

    totals: list[Sums] = []
    for rows, done, sums in engine.map(run, tasks()):
        totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
        if done:
            here = prior.at(rows)
            for setting, total, (mean, var) in zip(settings, totals, results, strict=True):
                mean[rows], var[rows] = total.finish(
                    setting, here.mean, in_space(setting, here.var)
                )
            totals = []
            advance(rows.stop - rows.start)
    return results
