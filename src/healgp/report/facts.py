"""What a report says: plain numbers and words about a fitted model, before they become a page."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from healgp import diagnosis
from healgp.calibration import INDIFFERENT
from healgp.estimators.base import ExpertGP
from healgp.estimators.classifier import ExpertGPClassifier
from healgp.estimators.regressor import ExpertGPRegressor
from healgp.evidence import Classes, Evidence, Numbers, evidence, spread
from healgp.plots.quality import GROUPS, LEVELS
from healgp.plots.style import names_of

Array = np.ndarray

#: Rows that are listed as the most uncertain, and standard errors from which on a difference is
#: worth a word.
_LISTED, _ERRORS = 10, 3.0

#: Training rows that the target's spread is told from, and classes whose share is told, at most.
_LOOKED, _CLASSES = 100_000, 12


@dataclass(frozen=True)
class Slider:
    """What each temperature would give: NLPD, what is said of it, and the calibration curve."""

    rule: str
    used: bool  # whether the rule that predicts has this temperature
    temperatures: Array
    chosen: int  # index
    nlpd: Array
    choice: tuple[Array, Array] | None  # temperatures and NLPD that the choice was made on
    curves: list[tuple[Array, Array]]
    words: list[str]
    n: int


@dataclass(frozen=True)
class Uncertain:
    """The most uncertain rows: what they are called, and a line of a table for each."""

    where: str
    head: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class Facts:
    """All that a report shows."""

    model: ExpertGP
    kind: str  # "measurements", "counts" or "classes"
    names: list[str]
    target: list[tuple[str, str]]
    evidence: Evidence
    where: str  # the rows that quality is judged on, in words
    quality: list[tuple[str, str]]
    words: list[str]
    slider: Slider | None
    uncertain: Uncertain


def number(value: float, digits: int = 4) -> str:
    """A number as people read it: few digits, a true minus, no exponent where it can be helped."""
    if value == 0 or not np.isfinite(value):
        return "0" if value == 0 else str(value)
    size = abs(value)
    if 1e-4 <= size < 1e7:
        decimals = max(digits - 1 - int(np.floor(np.log10(size))), 0)
        text = f"{value:,.{0 if value == round(value) else decimals}f}"
    else:
        text = f"{value:.{digits - 1}g}"
    return text.replace("-", "−")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def gather(model: ExpertGP, X: Any, y: Any, feature_names: Sequence[Any] | None) -> Facts:
    """Everything from a fitted model, and from rows it has not seen where they are given."""
    if not isinstance(model, ExpertGPRegressor | ExpertGPClassifier):
        raise ValueError(
            "A report is of a fitted ExpertGPRegressor or ExpertGPClassifier, not of a "
            f"{type(model).__name__}."
        )
    check_is_fitted(model)
    if X is None and y is not None:
        raise ValueError("y was given without X. Give both, X alone, or neither.")
    kind = "classes"
    if isinstance(model, ExpertGPRegressor):
        kind = "counts" if model._poisson() is not None else "measurements"
    names = names_of(model, feature_names)
    known = (X, y) if y is not None else (None, None)
    found = evidence(model, *known)
    n = f"{len(found.rows):,}"
    where = f"{n} training rows, each left out of its own expert" if found.left_out else (
        f"the {n} rows given"
    )  # fmt: skip
    if isinstance(found.prediction, Classes):
        quality, words = _of_classes(found.prediction)
    else:
        quality, words = _of_numbers(model, found.prediction, kind, known[0])
    return Facts(
        model, kind, names, _target(model, kind), found, where, quality, words,
        _slider(model, *known), _uncertain(model, kind, found, X),
    )  # fmt: skip


def _target(model: Any, kind: str) -> list[tuple[str, str]]:
    committee = model._committee
    y = committee.targets(spread(committee.n_rows, _LOOKED))
    if kind == "classes":
        n = np.bincount(y.astype(int), minlength=len(model.classes_))
        order = np.argsort(-n, kind="stable")
        shown = [(f"class {model.classes_[c]}", percent(n[c] / len(y))) for c in order[:_CLASSES]]
        left = order[_CLASSES:]
        more = [(f"{len(left)} more classes", percent(n[left].sum() / len(y)))] if len(left) else []
        return shown + more
    if kind == "measurements":
        y = model._scaling.mean(y)
    low, middle, high = np.quantile(y, [0.05, 0.5, 0.95])
    facts = [
        ("target: mean", number(float(y.mean()))),
        ("target: standard deviation", number(float(y.std()))),
        ("target: median", number(float(middle))),
        ("target: nine tenths lie between", f"{number(float(low))} and {number(float(high))}"),
    ]
    if kind == "counts":
        facts.append(("target: zeros", percent(float(np.mean(y == 0)))))
    return facts


def _of_numbers(
    model: Any, found: Numbers, kind: str, X: Any
) -> tuple[list[tuple[str, str]], list[str]]:
    voters = None if X is None else diagnosis.voters(model, X)
    said = diagnosis.of_numbers(found, voters)
    explained = 1.0 - said.rmse**2 / max(float(found.y.var()), 1e-300)
    figures = [
        ("within the 95 % interval", percent(said.coverage[0.95])),
        ("RMSE", number(said.rmse)),
        ("variance explained", percent(explained)),
        ("NLPD", number(said.nlpd)),
    ]
    if said.crps is not None:
        figures.append(("CRPS", number(said.crps)))
    if said.voters is not None:
        figures.append(("experts that vote per row", number(said.voters, 2)))
    return figures, list(said.warnings) or ["The intervals are as wide as they say."]


def _of_classes(found: Classes) -> tuple[list[tuple[str, str]], list[str]]:
    confidence = float(found.probabilities.max(axis=1).mean())
    n, accuracy = len(found.y), found.accuracy
    figures = [
        ("right", percent(accuracy)),
        ("mean confidence", percent(confidence)),
        ("NLPD", number(found.nlpd)),
        ("right by always saying the largest class",
         percent(np.bincount(found.y).max() / n)),
    ]  # fmt: skip
    words = "Predictions are right as often as they claim to be."
    if abs(confidence - accuracy) > _ERRORS * np.sqrt(max(accuracy * (1 - accuracy), 1 / n) / n):
        side = "more" if confidence > accuracy else "less"
        words = (
            f"Predictions are {side} confident than they should be: they claim to be right in "
            f"{percent(confidence)} of the rows, and are in {percent(accuracy)}."
        )
    return figures, [words]


def _slider(model: Any, X: Any, y: Any) -> Slider | None:
    """None where there is no temperature, or it makes no difference."""
    try:
        temperatures, nlpd = model.temperature_curve_
    except ValueError:  # the rule has none
        return None
    if np.ptp(nlpd) == 0:
        return None
    used = model.aggregation_ != "nested"
    chosen = model.temperature_ if used else float(temperatures[np.argmin(nlpd)])
    grid = np.unique(np.append(temperatures, chosen if chosen > 0 else INDIFFERENT))
    rule = model.aggregation_ if used else "gpoe"
    settings = [{"aggregation": rule, "temperature": float(t)} for t in grid]
    everyone = copy.copy(model)  # a route would be checked anew for every temperature
    everyone.routing = None
    if X is not None:
        some = spread(np.shape(X)[0], len(model._calibration_rows))
        X = X.iloc[some] if hasattr(X, "iloc") else np.asarray(X)[some]
        y = np.asarray(y)[some]
    found = evidence(everyone, X, y, settings)
    curves, words = [], []
    for t, at in zip(grid, found.predictions, strict=True):
        text = f"Temperature {number(float(t), 3)}: NLPD {number(at.nlpd)}"
        if isinstance(at, Classes):
            curves.append(at.reliability(GROUPS)[:2])
            words.append(f"{text}, {percent(at.accuracy)} right")
        else:
            curves.append((LEVELS, np.array([at.coverage(level) for level in LEVELS])))
            words.append(f"{text}, {percent(at.coverage(0.95))} within the 95 % interval")
    scale = 0.0 if isinstance(found.prediction, Classes) or model._committee.unit != 1.0 else (
        np.log(model._scaling.y_scale)  # of y in its own units
    )  # fmt: skip
    return Slider(
        rule, used, grid, int(np.argmin(np.abs(grid - chosen))),
        np.array([at.nlpd for at in found.predictions]),
        (temperatures, nlpd + scale) if X is not None else None,
        curves, words, len(found.rows),
    )  # fmt: skip


def _uncertain(model: Any, kind: str, found: Evidence, X: Any) -> Uncertain:
    """The rows with the widest error bars; of counts relative to the rate, which a larger rate
    widens of itself; of classes those whose probabilities say the least."""
    rows, names = found.rows, None
    if X is not None:
        index = getattr(X, "index", None)
        names = None if index is None or type(index).__name__ == "RangeIndex" else index
    if X is not None and found.left_out:  # X without y
        shown = model.predict_many(X, [{}])[0]
        rows = np.arange(np.shape(X)[0])
    elif isinstance(found.prediction, Classes):
        shown = found.prediction.probabilities
    else:
        shown = found.prediction.mean, found.prediction.std
    where = (
        f"Of {len(rows):,} training rows that were looked at, each left out of its own expert; "
        "numbers count from 0 in the training table."
        if X is None
        else f"Of the {len(rows):,} rows given; numbers count from 0."
    )
    lines = []
    if kind == "classes":
        p = np.asarray(shown)
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
        head = ["most probable", "probability", "next", "probability"]
        for i in np.argsort(-entropy, kind="stable")[:_LISTED]:
            best, second = np.argsort(-p[i], kind="stable")[:2]
            lines.append([
                *_called(rows[i], names),
                str(model.classes_[best]), percent(p[i, best]),
                str(model.classes_[second]), percent(p[i, second]),
            ])  # fmt: skip
    else:
        mean, std = shown
        head, spread = ["predicted", "standard deviation", "95 % interval"], std
        if kind == "counts":
            head = ["rate", "deviation of the rate"]
            spread = np.sqrt(np.maximum(std**2 - mean, 0.0)) / mean
        half = model._half_width(std, 0.95)
        for i in np.argsort(-spread, kind="stable")[:_LISTED]:
            cells = [
                number(mean[i]),
                number(std[i], 3),
                f"{number(mean[i] - half[i])} to {number(mean[i] + half[i])}",
            ]
            if kind == "counts":
                cells = [number(mean[i], 3), f"{100 * spread[i]:.0f} %"]
            lines.append([*_called(rows[i], names), *cells])  # fmt: skip
    return Uncertain(where, ["row", *(["name"] if names is not None else []), *head], lines)


def _called(row: int, names: Any) -> list[str]:
    return [f"{row:,}"] if names is None else [f"{row:,}", str(names[row])]
