"""A fitted model on one page, report.html: the data, what was chosen and why, how good it is, and a
slider over the temperature. The file opens offline and asks the network for nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import healgp
from healgp.estimators.base import ExpertGP
from healgp.report.facts import gather
from healgp.report.page import page


def write_report(
    model: ExpertGP,
    path: str | os.PathLike[str],
    X: Any = None,
    y: Any = None,
    feature_names: Sequence[Any] | None = None,
) -> Path:
    """Writes the report of a fitted regressor or classifier to `path` and returns it.

    Quality is judged on the rows X with targets y, which the model should not have seen; without
    them on a sample of its training rows, each left out of its own expert, and the report says so.
    With X alone the most uncertain rows are those of X. `feature_names` are the columns' names
    where the model was not fitted on a DataFrame. Of the data themselves the report holds numbers
    about all of them, and the numbers of the most uncertain rows.

    >>> import tempfile
    >>> from healgp import ExpertGPRegressor
    >>> from healgp.datasets import robot_arm
    >>> from healgp.report import write_report
    >>> X, y = robot_arm(600)
    >>> model = ExpertGPRegressor(points_per_expert=100, kernel="rbf").fit(X[:500], y[:500])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(model, folder + "/report.html", X[500:], y[500:]).name
    'report.html'
    """
    path = Path(path)
    text = page(gather(model, X, y, feature_names), healgp.__version__)
    unfinished = path.with_name(f".{secrets.token_hex(8)}-{path.name}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
