"""What training found: the temperature, the objective's way, and which columns matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from healgp.estimators.base import ExpertGP
from healgp.plots.style import FIT, FULL, INK, SOFT, label, legend, names_of, short, start

Array = np.ndarray

#: Columns that are shown at most.
_COLUMNS = 20


def temperature(model: ExpertGP, ax: Any = None) -> Any:
    """NLPD of left-out training rows against the temperature, and the one that is used.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(*robot_arm(300))
    >>> plots.temperature(model).get_xscale()
    'log'
    """
    check_is_fitted(model)
    if model.n_experts_ == 1:
        raise ValueError("One expert alone has no weights, and so no temperature.")
    temperatures, nlpd = model.temperature_curve_
    ax = nlpd_curve(temperatures, nlpd, ax)
    if model.aggregation_ != "nested":
        mark(ax, model.temperature_, temperatures, nlpd)
        legend(ax)
    return ax


def nlpd_curve(temperatures: Array, nlpd: Array, ax: Any = None) -> Any:
    """NLPD against temperatures on a logarithmic axis."""
    ax = start(ax)
    ax.plot(temperatures, nlpd, color=FIT, linewidth=1.6)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:,g}")
    label(ax, "temperature", "NLPD, smaller is better")
    return ax


def mark(ax: Any, chosen: float, temperatures: Array, nlpd: Array) -> tuple[Any, Any]:
    """Marks a temperature on a curve, with a line and a dot, which it returns."""
    height = np.interp(np.log(max(chosen, 1e-300)), np.log(temperatures), nlpd)
    line = ax.axvline(chosen, color=FULL, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    (dot,) = ax.plot([chosen], [height], "o", color=FULL, markersize=7, label=f"{chosen:.3g}")
    return line, dot


def training_curve(model: ExpertGP, ax: Any = None) -> Any:
    """The objective per row after each iteration of training: the log marginal likelihood, or of
    sparse experts its lower bound. Where it steps down, more experts have joined.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(*robot_arm(300))
    >>> plots.training_curve(model).get_xlabel()
    'iteration'
    """
    check_is_fitted(model)
    curve = np.asarray(getattr(model, "training_curve_", ()))
    if not len(curve):
        raise ValueError("This model was not trained (max_iter=0), and so has no training curve.")
    ax = start(ax)
    ax.plot(np.arange(1, len(curve) + 1), curve, color=FIT, linewidth=1.6,
            marker="o" if len(curve) < 40 else None, markersize=3)  # fmt: skip
    ax.xaxis.get_major_locator().set_params(integer=True)
    sparse = hasattr(model, "elbo_")
    label(ax, "iteration", "ELBO per row" if sparse else "log marginal likelihood per row")
    return ax


def relevances(model: ExpertGP) -> Array:
    """How quickly the function changes along each column [D]: the column's deviation divided by its
    lengthscale; 0 for a constant column."""
    check_is_fitted(model)
    return np.nan_to_num(model._scaling.x_left) / model.lengthscales_


def relevance(model: ExpertGP, feature_names: Sequence[Any] | None = None, ax: Any = None) -> Any:
    """How much each column matters, by its lengthscale: the number of lengthscales that fit into
    the column's standard deviation, the largest first.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(*robot_arm(300))
    >>> len(plots.relevance(model).patches)
    8
    """
    names, values = names_of(model, feature_names), relevances(model)
    if not model.ard and len(names) > 1:
        raise ValueError(
            "With ard=False all columns have one lengthscale, and none is more relevant than "
            "another. Fit with ard=True."
        )
    order = np.argsort(-values, kind="stable")[:_COLUMNS][::-1]
    ax = start(ax, 4.8, 1.0 + 0.24 * len(order))
    ax.barh(range(len(order)), values[order], color=FIT, height=0.7)
    texts = [short(names[d]) for d in order]
    ax.set_yticks(range(len(order)), texts, fontsize=9, color=INK, parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.axvline(0.0, color=SOFT, linewidth=0.8)
    left = len(names) - len(order)
    label(ax, "deviation / lengthscale" + (f"; {left} more columns" if left else ""), "")
    return ax
