"""How good a fitted model's error bars are on rows it has not seen, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from healgp import metrics
from healgp.estimators.regressor import ExpertGPRegressor
from healgp.evidence import Numbers, evidence
from healgp.weights import normalize

Array = np.ndarray

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)

#: Bins of the PIT histogram.
BINS = 10

#: A coverage counts as wrong from this many standard errors and this difference on.
_ERRORS, _DIFFERENCE = 3.0, 0.01

#: Rows whose weights are looked at, for the number of experts that vote, and at a time.
_VOTES, _AT_ONCE = 2000, 200


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found; `print` it for a summary."""

    n: int
    nlpd: float
    rmse: float
    crps: float | None  # of counts it has no closed form
    coverage: dict[float, float]  # share of rows within the central interval of each level
    pit: Array  # shares [10] of rows by where y falls in its predicted distribution; 0.1 is right
    voters: float | None  # experts that effectively vote per row, exp of the weights' entropy
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.n:,} rows: NLPD {self.nlpd:.4f}, RMSE {self.rmse:.4g}"
            + (f", CRPS {self.crps:.4g}" if self.crps is not None else ""),
            "within the interval of: "
            + ", ".join(f"{level:.0%} {share:.1%}" for level, share in self.coverage.items()),
        ]
        if self.voters is not None:
            lines.append(f"experts that effectively vote per row: {self.voters:.1f}")
        return "\n".join([*lines, *(self.warnings or ["The intervals are as wide as they say."])])


def diagnose(model: ExpertGPRegressor, X: Any = None, y: Any = None) -> Diagnosis:
    """NLPD, RMSE, CRPS, coverage, PIT histogram and the number of experts that vote, on rows that
    the model was not fitted to; and warnings in words where intervals are too narrow or too wide.
    Without X and y, on a sample of training rows, each left out of its own expert.

    >>> from healgp import ExpertGPRegressor, diagnose
    >>> from healgp.datasets import robot_arm
    >>> X, y = robot_arm(1500)
    >>> model = ExpertGPRegressor(kernel="rbf", random_state=0).fit(X[:1000], y[:1000])
    >>> 0.9 < diagnose(model, X[1000:], y[1000:]).coverage[0.95] < 0.99
    True
    """
    if not isinstance(model, ExpertGPRegressor):
        raise ValueError(
            "diagnose() is for an ExpertGPRegressor. For classes, see log_predictive_density(X, y) "
            "and healgp.plots.calibration(model, X, y)."
        )
    found = evidence(model, X, y)
    return of_numbers(found.prediction, None if X is None else voters(model, X))


def of_numbers(found: Numbers, voters: float | None = None) -> Diagnosis:
    """The diagnosis of predictions beside what was observed."""
    n = len(found.y)
    coverage = {level: found.coverage(level) for level in LEVELS}
    return Diagnosis(
        n=n,
        nlpd=found.nlpd,
        rmse=metrics.rmse(found.y, found.mean),
        crps=found.crps,
        coverage=coverage,
        pit=found.pit(BINS),
        voters=voters,
        warnings=tuple(_in_words(coverage, found.share(0.0, 0.5), n)),
    )


def voters(model: ExpertGPRegressor, X: Any) -> float | None:
    """Experts that effectively vote per row: the mean over rows of exp(−Σ_j β_j log β_j). The
    nested rule has no weights."""
    if model.aggregation_ == "nested":
        return None
    rows = np.linspace(0, len(X) - 1, min(len(X), _VOTES)).astype(int)
    X = X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
    counts = []
    for start in range(0, len(rows), _AT_ONCE):
        weights = model.expert_weights(X[start : start + _AT_ONCE])
        weights = normalize(weights)
        counts.append(np.exp(-(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=0)))
    return float(np.concatenate(counts).mean())


def _in_words(coverage: dict[float, float], below: float, n: int) -> list[str]:
    """Of coverage, and of the share of the rows below their median."""
    said = []
    for direction, word in ((-1, "narrow"), (1, "wide")):
        off = [
            level
            for level, share in coverage.items()
            if direction * (share - level)
            > max(_ERRORS * np.sqrt(level * (1 - level) / n), _DIFFERENCE)
        ]
        if off:
            shares = ", ".join(f"those of {level:.0%} hold {coverage[level]:.1%}" for level in off)
            said.append(f"Intervals are too {word}: {shares} of the rows.")
    if abs(below - 0.5) > max(_ERRORS * 0.5 / np.sqrt(n), _DIFFERENCE):
        side = "below" if below > 0.5 else "above"
        said.append(
            f"Predictions are off to one side: {max(below, 1 - below):.1%} of the rows lie {side} "
            "their predicted median."
        )
    return said
