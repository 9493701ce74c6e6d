"""Who knows what: where the experts' rows lie, and who votes at a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from healgp.estimators.base import ExpertGP
from healgp.evidence import spread, training_inputs
from healgp.plots.style import FIT, GROUPS, INK, SOFT, column_of, label, names_of, short, start

Array = np.ndarray

#: Rows that are looked at and drawn; experts up to which outlines and numbers are drawn; rows that
#: an expert must have for it; and experts whose weights are shown one by one.
_LOOKED, _DRAWN, _OUTLINED, _NUMBERED, _LEAST, _SHOWN = 20_000, 4000, 150, 30, 5, 10


def experts_map(
    model: ExpertGP,
    columns: tuple[int | str, int | str] | None = None,
    rows: bool = True,
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """The partition over two columns (numbers or names), or over the two principal axes of the
    scaled inputs: training rows in the colour of their expert, and an outline of each expert at one
    standard deviation. Without `rows`, only the outlines.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf").fit(*robot_arm(300))
    >>> plots.experts_map(model, columns=(0, 3)).get_ylabel()
    'column 3'
    """
    names = names_of(model, feature_names)
    if len(names) < 2:
        raise ValueError("A map needs two columns, and this model has one. See plots.fit(model).")
    Z, X, experts = training_inputs(model, _LOOKED)
    if columns is None:
        points, labels = _principal(Z, names)
    else:
        if len(columns) != 2:
            raise ValueError(f"columns={columns!r} must be two columns, numbers or names.")
        numbers = [column_of(model, column, feature_names) for column in columns]
        points, labels = X[:, numbers], [short(names[number]) for number in numbers]
    ax = start(ax, 4.8, 4.0)
    if rows:
        some = spread(len(points), _DRAWN)
        colours = np.array(GROUPS)[experts[some] % len(GROUPS)]
        ax.scatter(*points[some].T, s=4, c=colours, alpha=0.5, linewidths=0)
    _outlines(ax, points, experts, model.n_experts_)
    label(ax, *labels)
    return ax


def _principal(Z: Array, names: list[str]) -> tuple[Array, list[str]]:
    """Rows along their two widest directions, and the columns that these are mostly made of."""
    centred = Z - Z.mean(axis=0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    labels = []
    for number, axis in enumerate(axes.T, 1):
        largest = np.argsort(-np.abs(axis), kind="stable")[:2]
        labels.append(f"principal axis {number}: " + ", ".join(short(names[i]) for i in largest))
    return centred @ axes, labels


def _outlines(ax: Any, points: Array, experts: Array, J: int) -> None:
    from matplotlib.patches import Ellipse

    for j in range(J):
        own = points[experts == j]
        if len(own) < _LEAST:
            continue
        centre, colour = own.mean(axis=0), GROUPS[j % len(GROUPS)]
        if J > _OUTLINED:
            ax.plot(*centre, ".", color=colour, markersize=4)
            continue
        values, vectors = np.linalg.eigh(np.cov(own.T))
        angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
        width, height = 2.0 * np.sqrt(np.maximum(values[::-1], 0.0))
        for face, alpha, line in ((colour, 0.12, 0.0), ("none", 0.9, 1.0)):
            ax.add_patch(
                Ellipse(
                    centre, width, height, angle=angle, facecolor=face, edgecolor=colour,
                    alpha=alpha, linewidth=line,
                )
            )  # fmt: skip
        if J <= _NUMBERED:
            ax.text(*centre, str(j), fontsize=8, color=INK, ha="center", va="center")
    ax.autoscale_view()


def votes(model: ExpertGP, row: Any, ax: Any = None) -> Any:
    """The weights of the experts at one row (of an array or a DataFrame), the largest first: who is
    listened to. With several latent functions, the mean of theirs.

    >>> from healgp import ExpertGPRegressor, plots
    >>> from healgp.datasets import robot_arm
    >>> X, y = robot_arm(300)
    >>> model = ExpertGPRegressor(points_per_expert=50, kernel="rbf", aggregation="gpoe").fit(X, y)
    >>> plots.votes(model, X[0]).get_ylabel()
    'weight'
    """
    names = names_of(model)
    if np.size(row) != len(names):
        raise ValueError(
            f"plots.votes() draws the weights of one row of {len(names)} values; given were "
            f"{np.size(row)}."
        )
    if hasattr(row, "to_frame"):  # a row of a DataFrame keeps its names
        row = row.to_frame().T
    weights = model.expert_weights(row if hasattr(row, "iloc") else np.reshape(row, (1, -1)))[:, 0]
    weights = weights.reshape(len(weights), -1).mean(axis=1)
    total = weights.sum()
    shares = weights[weights > 0] / total
    effective = float(np.exp(-(shares * np.log(shares)).sum()))
    order = np.argsort(-weights, kind="stable")[:_SHOWN]
    heights, labels = list(weights[order]), [str(j) for j in order]
    colours = [FIT] * len(heights)
    if len(weights) > _SHOWN:
        heights.append(total - sum(heights))
        labels.append("rest")
        colours.append(SOFT)
    ax = start(ax)
    ax.bar(range(len(heights)), heights, color=colours, width=0.7)
    ax.set_xticks(range(len(heights)), labels)
    label(ax, f"expert (of {len(weights)}; effectively {effective:.1f} vote)", "weight")
    return ax
