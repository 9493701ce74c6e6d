"""What a fitted model says of rows whose y is known: rows that are given, or a sample of its own
training rows, each left out of its own expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from healgp.deviations import GAUSSIAN
from healgp.estimators.base import ExpertGP
from healgp.estimators.classifier import ExpertGPClassifier
from healgp.estimators.regressor import ExpertGPRegressor
from healgp.prediction import BLOCK, Setting

Array = np.ndarray


@dataclass(frozen=True)
class Numbers:
    """Measurements or counts beside their predictions, all [n]. Of a count the position in its
    predicted distribution is an interval, from P(Y < y) to P(Y ≤ y)."""

    y: Array
    mean: Array
    std: Array
    log_density: Array
    below: Array
    up_to: Array
    crps: float | None = None  # of counts it has no closed form
    reach: Array | float = 1.96  # of the 95 % interval, in deviations; of counts about that

    @property
    def nlpd(self) -> float:
        return float(-self.log_density.mean())

    def coverage(self, level: float) -> float:
        """Share of rows within the central interval of a level. A count on the edge of it belongs
        to it in part, so that the share is the level itself for predictions that are right."""
        return self.share(0.5 - 0.5 * level, 0.5 + 0.5 * level)

    def pit(self, bins: int) -> Array:
        """Shares of rows by where y falls in its predicted distribution; 1 / bins is right."""
        edges = np.linspace(0.0, 1.0, bins + 1)
        return np.array([self.share(a, b) for a, b in pairwise(edges)])

    def share(self, low: float, high: float) -> float:
        """Of the rows, those between two quantiles; of a count, as much as is between them."""
        width = self.up_to - self.below
        part = np.minimum(self.up_to, high) - np.maximum(self.below, low)
        inside = (self.up_to >= low) & (self.up_to < (high if high < 1.0 else 2.0))
        return float(np.where(width > 0.0, np.clip(part, 0.0, None) / _one(width), inside).mean())


@dataclass(frozen=True)
class Classes:
    """Classes y [n], by their number, beside their probabilities [n, C]."""

    y: Array
    probabilities: Array

    @property
    def log_density(self) -> Array:
        return np.log(np.maximum(self.probabilities[np.arange(len(self.y)), self.y], 1e-300))

    @property
    def nlpd(self) -> float:
        return float(-self.log_density.mean())

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.probabilities.argmax(axis=1) == self.y))

    def reliability(self, bins: int) -> tuple[Array, Array, Array]:
        """Rows in groups of equal confidence (the probability of the class that is predicted): the
        mean confidence of each group, the share that was right, and the number of rows. Groups are
        of equal size, but rows that are equally confident stay together."""
        confidence = self.probabilities.max(axis=1)
        right = self.probabilities.argmax(axis=1) == self.y
        edges = np.unique(np.quantile(confidence, np.linspace(0.0, 1.0, bins + 1)))
        group = np.searchsorted(edges[1:-1], confidence, side="right")
        n = np.bincount(group)
        full = n > 0
        mean = np.bincount(group, confidence)[full] / n[full]
        return mean, np.bincount(group, right)[full] / n[full], n[full]


@dataclass(frozen=True)
class Evidence:
    """Predictions under each setting; `rows` are numbers of rows of what was given, or of the
    training table where they are `left_out`."""

    rows: Array
    left_out: bool
    predictions: list[Any]  # Numbers or Classes

    @property
    def prediction(self) -> Any:
        return self.predictions[0]


def evidence(
    model: ExpertGP, X: Any = None, y: Any = None, settings: Sequence[Mapping[str, Any]] = ({},)
) -> Evidence:
    """Predictions at the rows X with targets y under every setting, as `predict_many` takes them;
    without X and y, at training rows that are left out. Those settings must be of one rule.

    >>> from healgp import ExpertGPRegressor
    >>> from healgp.datasets import robot_arm
    >>> from healgp.evidence import evidence
    >>> model = ExpertGPRegressor(kernel="rbf", random_state=0).fit(*robot_arm(1500))
    >>> 0.9 < evidence(model).prediction.coverage(0.95) < 0.99
    True
    """
    check_is_fitted(model)
    if (X is None) != (y is None):
        raise ValueError("Give X and y together, or neither for training rows that are left out.")
    if X is None:
        rows, targets, chosen, latents = _left_out(model, settings)
        y = model._scaling.mean(targets)
    else:
        chosen, latents = model._latent(X, settings)
        rows = np.arange(len(latents[0][0]))
        targets = model._new_targets(y, len(rows))
    return Evidence(
        rows,
        X is None,
        [
            _observed(model, np.asarray(y), targets, setting, *latent)
            for setting, latent in zip(chosen, latents, strict=True)
        ],
    )


def spread(n: int, limit: int) -> Array:
    """At most `limit` of the numbers 0 to n − 1, evenly."""
    return np.linspace(0, n - 1, min(n, limit)).astype(int)


def training_order(model: ExpertGP) -> Array:
    """The number in the training table of each row of the committee."""
    return np.argsort(model.labels_, kind="stable")


def training_inputs(model: ExpertGP, limit: int) -> tuple[Array, Array, Array]:
    """Evenly chosen rows of the training table, at most `limit`: their inputs [n, D] as the kernel
    sees them and in their own units, and their experts' numbers [n], from 0."""
    check_is_fitted(model)
    committee = model._committee
    places = committee.places(spread(committee.n_rows, limit))
    Z = committee.inputs(places)
    experts = np.searchsorted(committee.offsets, places, side="right") - 1
    return Z, Z * model._scaling.x_scale + model._scaling.x_center, experts


def _left_out(
    model: ExpertGP, settings: Sequence[Mapping[str, Any]]
) -> tuple[Array, Array, list[Setting], list[tuple[Array, Array]]]:
    base, rows = model._committee, model._calibration_rows
    chosen = [model._setting(changes) for changes in settings]
    if base.n_experts == 1:  # every rule is the expert itself
        chosen = [replace(s, aggregation="gpoe", weighting="uniform") for s in chosen]
    rules = {setting.aggregation for setting in chosen}
    if len(rules) > 1:
        raise ValueError(f"The settings are of several rules: {', '.join(sorted(rules))}.")
    (rule,) = rules
    if rule == "grbcm" and model._communication is not None:
        others = np.setdiff1d(base.places(np.arange(base.n_rows)), model._communication)
        kept = np.intersect1d(rows, others)
        rows = kept if len(kept) else others[:BLOCK]
    if rule == "grbcm":
        found = model._without(rows, chosen)
    else:  # the temperature and the rule were chosen on these rows
        found = [model._everyone(replace(s, deviations=GAUSSIAN)) for s in chosen]
    latents = [(base.unit * mean, base.unit**2 * var) for mean, var in found]
    numbers = np.searchsorted(base.places(np.arange(base.n_rows)), rows)  # there is room between
    return training_order(model)[numbers], base.targets(rows), chosen, latents


def _observed(
    model: ExpertGP, y: Array, targets: Array, setting: Setting, mean: Array, var: Array
) -> Numbers | Classes:
    """What is predicted beside y, and beside the targets as the committee knows them."""
    if isinstance(model, ExpertGPClassifier):
        return Classes(targets.astype(np.intp), model._probabilities(mean, var))
    assert isinstance(model, ExpertGPRegressor)
    centre, std = model._observed(setting, mean, var)
    poisson = model._poisson()
    if poisson is not None:
        density = poisson.log_density(targets, mean, var)
        below, up_to = poisson.cdf(targets - 1.0, mean, var), poisson.cdf(targets, mean, var)
        return Numbers(targets, centre, std, density, below, up_to)
    y = y.astype(float)
    said = setting.deviations
    position, density = said.position(y, centre, std), said.log_density(y, centre, std)
    crps, reach = said.crps(y, centre, std), said.quantile(0.975, std)
    return Numbers(y, centre, std, density, position, position, crps, reach)


def _one(width: Array) -> Array:
    """Widths, and 1 where there is none."""
    return np.where(width > 0.0, width, 1.0)
