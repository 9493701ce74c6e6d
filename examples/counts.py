"""Rates from counts: emergency calls per hour over a year. Hour, weekday and season go in; a rate
and an interval for the number of calls come out.

    python examples/counts.py                 # writes counts.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from healgp import ExpertGPRegressor, diagnose, plots

COLUMNS = ["hour, sine", "hour, cosine", "weekday, sine", "weekday, cosine", "day of the year"]


def features(hours: np.ndarray) -> np.ndarray:
    """A circle for the hour and for the weekday, so that midnight is beside midnight."""
    day, week = 2 * np.pi * hours / 24, 2 * np.pi * hours / (24 * 7)
    return np.column_stack([np.sin(day), np.cos(day), np.sin(week), np.cos(week), hours / 24])


def true_rate(hours: np.ndarray) -> np.ndarray:
    """Calls per hour: quiet nights, busy evenings, weekends later and more, a busy winter."""
    hour, weekday = hours % 24, (hours // 24) % 7
    daily = np.cos(2 * np.pi * (hour - 17 - 2 * (weekday >= 5)) / 24)
    weekend = 0.25 * np.exp(-(((hours / 24) % 7 - 6.0) ** 2))
    return np.exp(1.2 + 0.7 * daily + weekend + 0.3 * np.cos(2 * np.pi * hours / (24 * 365)))


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    given = parser.parse_args(argv)

    rng = np.random.default_rng(0)
    hours = np.arange(24 * given.days)
    calls = rng.poisson(true_rate(hours))
    train = rng.random(len(hours)) < 0.7
    X = features(hours)
    model = ExpertGPRegressor(
        likelihood="poisson", n_inducing=50, points_per_expert=500, kernel="rbf", random_state=0
    ).fit(X[train], calls[train])

    rate = model.predict(X)
    found = diagnose(model, X[~train], calls[~train])
    print(found)

    week = slice(24 * 7 * (given.days // 14), 24 * 7 * (given.days // 14 + 1))
    lower, upper = model.predict_interval(X[week], coverage=0.9)
    figure, axes = plt.subplots(
        1, 3, figsize=(15, 4.2), layout="constrained", width_ratios=[2.2, 1, 1.1]
    )
    days = hours[week] / 24 - hours[week][0] / 24
    axes[0].fill_between(days, lower, upper, step="mid", color=plots.FIT, alpha=0.2, linewidth=0,
                         label="90 % of counts")  # fmt: skip
    axes[0].plot(days, rate[week], color=plots.FIT, linewidth=2, label="predicted rate")
    axes[0].plot(days, true_rate(hours[week]), color=plots.FULL, linestyle=(0, (4, 2)),
                 label="true rate")  # fmt: skip
    axes[0].plot(days, calls[week], ".", color=plots.INK, markersize=4, alpha=0.6, label="calls")
    axes[0].set(title="a week in the middle of the year", xlabel="day", ylabel="calls per hour")
    axes[0].legend(frameon=False, ncols=4, fontsize=9, loc="upper center")
    axes[0].set_ylim(0, 1.2 * max(calls[week].max(), upper.max()))
    axes[0].spines[["top", "right"]].set_visible(False)
    plots.calibration(model, X[~train], calls[~train], ax=axes[1])
    axes[1].set_title("hours that were held out")
    plots.relevance(model, feature_names=COLUMNS, ax=axes[2])
    axes[2].set_title("what matters")
    path = given.out / "counts.png"
    figure.savefig(path, dpi=90)
    plt.close(figure)

    truth = true_rate(hours)[~train]
    result = {
        "error of the rate": float(np.mean(np.abs(rate[~train] / truth - 1))),
        "error of the mean": float(np.mean(np.abs(calls[train].mean() / truth - 1))),
        "within 95 %": found.coverage[0.95],
    }
    for name, value in result.items():
        print(f"{name}: {100 * value:.1f} %")
    print(f"written to {path}")
    return result


if __name__ == "__main__":
    main()
