"""Predictions beside what was observed. Without X and y they are of training rows, each left out of
its own expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from healgp.diagnosis import BINS
from healgp.estimators.base import ExpertGP
from healgp.estimators.regressor import ExpertGPRegressor
from healgp.evidence import Classes, Numbers, evidence, spread
from healgp.plots.style import (
    FIT,
    FULL,
    INK,
    SOFT,
    column_of,
    label,
    legend,
    names_of,
    short,
    start,
)

Array = np.ndarray

#: Levels of the calibration curve, groups of the reliability curve, and rows that are drawn with
#: their intervals.
LEVELS, GROUPS = np.linspace(0.05, 0.95, 19), 10
_INTERVALS, _DOTS = 150, 4000


def calibration(model: ExpertGP, X: Any = None, y: Any = None, ax: Any = None) -> Any:
    """The share of rows within their intervals against the intervals' level; of classes, the share
    of predictions that are right against their confidence. On the dashed line both agree; within
    the band they differ by no more than chance.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(*robot_arm(300))
    >>> plots.calibration(model).get_xlabel()
    'level of the interval'
    """
    return calibration_curve(evidence(model, X, y).prediction, ax)


def calibration_curve(found: Numbers | Classes, ax: Any = None) -> Any:
    """The same from predictions beside what was observed."""
    ax = start(ax, 3.8, 3.6)
    ax.plot([0, 1], [0, 1], color=SOFT, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    if isinstance(found, Classes):
        confidence, right, n = found.reliability(GROUPS)
        low, high = (binom.ppf(p, n, confidence) / n for p in (0.025, 0.975))
        ax.vlines(confidence, low, high, color=SOFT, linewidth=5, alpha=0.35, zorder=1)
        label(ax, "confidence", "share that is right")
        at, shares = confidence, right
    else:
        p = np.linspace(0.0, 1.0, 101)
        low, high = (binom.ppf(q, len(found.y), p) / len(found.y) for q in (0.025, 0.975))
        ax.fill_between(p, low, high, color=SOFT, alpha=0.25, linewidth=0)
        label(ax, "level of the interval", "share of rows inside")
        at, shares = LEVELS, np.array([found.coverage(level) for level in LEVELS])
    ax.plot(at, shares, "o-", color=FIT, linewidth=1.6, markersize=4, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return ax


def pit(model: ExpertGP, X: Any = None, y: Any = None, ax: Any = None) -> Any:
    """Where y falls in its predicted distribution, in tenths: flat is right, a hill means intervals
    too wide, a valley too narrow, a slope that predictions are off to one side.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(*robot_arm(300))
    >>> plots.pit(model).get_ylabel()
    'share of rows'
    """
    _numbers_only("pit", model)
    return pit_histogram(evidence(model, X, y).prediction, ax)


def pit_histogram(found: Numbers, ax: Any = None) -> Any:
    """The same from predictions beside what was observed."""
    ax, n = start(ax), len(found.y)
    ax.bar((np.arange(BINS) + 0.5) / BINS, found.pit(BINS), width=0.92 / BINS, color=FIT)
    low, high = (binom.ppf(q, n, 1.0 / BINS) / n for q in (0.025, 0.975))
    ax.axhspan(low, high, color=SOFT, alpha=0.25, linewidth=0, zorder=2)
    ax.axhline(1.0 / BINS, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    ax.set_xlim(0, 1)
    label(ax, "position of y in its predicted distribution", "share of rows")
    return ax


def predicted_observed(model: ExpertGP, X: Any = None, y: Any = None, ax: Any = None) -> Any:
    """What was observed against what was predicted; some rows with their 95 % intervals, orange
    where these miss.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(*robot_arm(300))
    >>> plots.predicted_observed(model).get_xlabel()
    'predicted'
    """
    _numbers_only("predicted_observed", model)
    found = evidence(model, X, y).prediction
    ax = start(ax, 4.2, 4.0)
    n = len(found.y)
    dots = spread(n, _DOTS)
    ax.plot(found.mean[dots], found.y[dots], ".", color=FIT, markersize=3, alpha=0.4)
    some = spread(n, _INTERVALS)
    inside = (found.up_to >= 0.025) & (found.below <= 0.975)
    half = found.reach * found.std
    for rows, colour, what in (
        (some[inside[some]], FIT, "inside its 95 % interval"),
        (some[~inside[some]], FULL, "outside"),
    ):
        if len(rows):
            ax.errorbar(
                found.mean[rows], found.y[rows], xerr=half[rows], fmt=".", color=colour,
                markersize=5, elinewidth=0.8, alpha=0.8, label=what,
            )  # fmt: skip
    ends = [min(found.y.min(), found.mean.min()), max(found.y.max(), found.mean.max())]
    ax.plot(ends, ends, color=SOFT, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    label(ax, "predicted", "observed")
    legend(ax, loc="upper left")
    return ax


def residuals(
    model: ExpertGP,
    X: Any,
    y: Any,
    column: int | str,
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Residuals in predicted standard deviations against a column, given by number or name: 95 % of
    the rows should lie in the band, all along it.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> X, y = robot_arm(300)
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(X[:200], y[:200])
    >>> plots.residuals(model, X[200:], y[200:], column=1).get_xlabel()
    'column 1'
    """
    _numbers_only("residuals", model)
    d = column_of(model, column, feature_names)
    found = evidence(model, X, y).prediction
    values = np.asarray(X, dtype=float)[:, d]
    ax = start(ax)
    reach = float(np.median(found.reach))
    ax.axhspan(-reach, reach, color=SOFT, alpha=0.2, linewidth=0, zorder=0)
    ax.axhline(0.0, color=SOFT, linewidth=1.0)
    some = spread(len(values), _DOTS)
    z = (found.y - found.mean) / found.std
    ax.plot(values[some], z[some], ".", color=FIT, markersize=4, alpha=0.5)
    label(ax, short(names_of(model, feature_names)[d]), "residual / predicted deviation")
    return ax


def _numbers_only(name: str, model: Any) -> None:
    if not isinstance(model, ExpertGPRegressor):
        raise ValueError(
            f"plots.{name}() is for measurements and counts, an ExpertGPRegressor; this is a "
            f"{type(model).__name__}. For classes, see plots.calibration(model, X, y)."
        )
