"""A fit over one column: the committee, its interval, and the experts behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from healgp.estimators.regressor import ExpertGPRegressor
from healgp.evidence import training_inputs
from healgp.plots.style import FIT, FULL, INK, SOFT, label, legend, names_of, short, start, unnamed

Array = np.ndarray

#: Points of the grid, and the most experts that are drawn.
_POINTS, _EXPERTS = 400, 60


def fit_1d(
    grid: Array,
    mean: Array,
    std: Array,
    X: Array | None = None,
    y: Array | None = None,
    full: tuple[Array, Array] | None = None,
    ax: Any = None,
) -> Any:
    """A one-dimensional fit over `grid`: mean and 95 % interval, the rows as dots, and the full
    GP's mean and interval as dashed lines where given."""
    ax = start(ax)
    grid = np.ravel(grid)
    _draw(ax, grid, mean, mean - 1.96 * std, mean + 1.96 * std, X, y)
    if full is not None:
        m, s = full
        for values, width in ((m, 1.3), (m - 1.96 * s, 0.8), (m + 1.96 * s, 0.8)):
            ax.plot(grid, values, color=FULL, linewidth=width, linestyle=(0, (4, 2)), zorder=3)
        ax.plot([], [], color=FULL, linestyle=(0, (4, 2)), label="full GP")
    return ax


def fit(model: ExpertGPRegressor, X: Any = None, y: Any = None, ax: Any = None) -> Any:
    """A regressor of one column over the range of its training rows: mean (of counts, rate), 95 %
    interval, and what each expert says, faint; the rows X, y as dots where given.

    >>> from healgp import ExpertGPRegressor, plots
    >>> X, y = np.linspace(0, 6, 200)[:, None], np.sin(np.linspace(0, 6, 200))
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf", random_state=0).fit(X, y)
    >>> plots.fit(model, X, y).get_xlabel()
    'column 0'
    """
    if not isinstance(model, ExpertGPRegressor):
        raise ValueError("plots.fit() draws an ExpertGPRegressor, not a " + type(model).__name__)
    (name, *more) = names_of(model)
    if more:
        raise ValueError(
            f"plots.fit() draws a model of one column, and this one has {1 + len(more)}. See "
            "plots.residuals(model, X, y, column) or plots.predicted_observed(model, X, y)."
        )
    ax = start(ax)
    inputs = training_inputs(model, 20_000)[1]
    margin = 0.05 * np.ptp(inputs)
    grid = np.linspace(inputs.min() - margin, inputs.max() + margin, _POINTS)
    with unnamed():
        means = model.expert_moments(grid[:, None])[0]
        mean = np.asarray(model.predict(grid[:, None]))
        lower, upper = model.predict_interval(grid[:, None])
    counts = model.likelihood == "poisson"
    for expert in means[:: -(-len(means) // _EXPERTS)]:
        values = np.exp(np.minimum(expert, 300.0)) if counts else expert
        ax.plot(grid, values, color=SOFT, linewidth=0.7, alpha=0.5, zorder=1.5)
    ax.plot([], [], color=SOFT, linewidth=0.7, label="experts")
    _draw(ax, grid, mean, lower, upper, X, y)
    label(ax, short(name), "rate" if counts else "y")
    legend(ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, handlelength=1.2)
    return ax


def _draw(
    ax: Any, grid: Array, mean: Array, lower: Array, upper: Array, X: Any, y: Any
) -> None:  # fmt: skip
    if X is not None:
        ax.plot(
            np.ravel(X), y, ".", color=INK, markersize=2.5, alpha=0.45, zorder=1, label="rows"
        )  # fmt: skip
    ax.fill_between(
        grid, lower, upper, color=FIT, alpha=0.25, linewidth=0, zorder=2, label="95 % interval"
    )
    ax.plot(grid, mean, color=FIT, linewidth=1.6, zorder=4, label="committee")
