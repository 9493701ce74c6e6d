"""One look for all pictures: few colours, which colour-blind people can tell apart, no needless
lines, and labels that are taken as they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sklearn.utils.validation import check_is_fitted

INK, SOFT, FIT, FULL = "#222222", "#8a8a8a", "#1f6fb4", "#e07b00"

#: For groups that are beside one another (after Okabe and Ito).
GROUPS = ("#1f6fb4", "#e07b00", "#009e73", "#a6499e", "#56b4e9", "#8a6d00")

_LONGEST = 28  # letters of a column's name


def start(ax: Any, width: float = 4.8, height: float = 3.4) -> Any:
    """The Axes to draw on, made if there is none, in the common style."""
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(width, height), layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(SOFT)
    ax.tick_params(labelsize=9, color=SOFT, labelcolor=INK)
    return ax


def label(ax: Any, x: str, y: str) -> None:
    """Labels of both axes; a $ in a column's name is no formula."""
    ax.set_xlabel(x, fontsize=10, color=INK, parse_math=False)
    ax.set_ylabel(y, fontsize=10, color=INK, parse_math=False)


def legend(ax: Any, **where: Any) -> None:
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, **where)


def names_of(model: Any, feature_names: Sequence[Any] | None = None) -> list[str]:
    """The columns' names: those given, those of the DataFrame that the model was fitted on, or
    "column 0" and so on."""
    check_is_fitted(model)
    D = model.n_features_in_
    if feature_names is None:
        feature_names = getattr(model, "feature_names_in_", None)
    if feature_names is None:
        return [f"column {d}" for d in range(D)]
    if len(feature_names) != D:
        raise ValueError(f"feature_names has {len(feature_names)} names for {D} columns.")
    return [str(name) for name in feature_names]


@contextmanager
def unnamed() -> Iterator[None]:
    """Where a model that knows columns' names is asked about a grid that has none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        yield


def short(name: str) -> str:
    """A name that fits beside a picture, without letters that cannot be drawn."""
    name = "".join(letter if letter.isprintable() else " " for letter in name)
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def column_of(model: Any, column: int | str, feature_names: Sequence[Any] | None = None) -> int:
    """The number of a column that is given by number or by name."""
    names = names_of(model, feature_names)
    if isinstance(column, str):
        if column in names:
            return names.index(column)
        raise ValueError(f"No column is called {column!r}. There are: {', '.join(names)}.")
    if not 0 <= column < len(names):
        raise ValueError(f"column={column} is not there: they are 0 to {len(names) - 1}.")
    return int(column)
