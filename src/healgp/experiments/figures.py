"""The paper's illustrations, drawn with the library's public interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from healgp import ExpertGPRegressor, aggregation, plots, weights
from healgp.experiments.tables import Entry

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Array = np.ndarray

_COLOURS = {"barycenter": "#1f6fb4", "gPoE": "#2a9d55", "rBCM": "#b4371f"}


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _shared(full: ExpertGPRegressor) -> dict[str, Any]:
    """The full GP's hyperparameters, for experts that are not trained themselves."""
    return dict(
        lengthscale=full.lengthscales_,
        signal_variance=full.signal_variance_,
        noise_variance=full.noise_variance_,
        max_iter=0,
    )


def pathologies(folder: Path) -> list[Path]:
    """PoE, gPoE, BCM and rBCM with three points per expert, and the healed rules below them."""
    path = folder / "fig-pathologies.png"
    plots.pathologies(str(path))
    return [path]


def points_per_expert(folder: Path) -> list[Path]:
    """Three rules with ever weaker experts, beside the full GP; T = 15."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-1, 1, 300))[:, None]
    y = np.sin(5 * X[:, 0]) + 0.3 * np.cos(11 * X[:, 0]) + 0.12 * rng.standard_normal(300)
    grid = np.linspace(-2, 2, 601)[:, None]
    full = ExpertGPRegressor(points_per_expert=None).fit(X, y)
    reference = full.predict_many(grid, [{}])[0]
    settings: dict[str, dict[str, Any]] = {
        "rBCM, entropy": dict(aggregation="rbcm", weighting="entropy"),
        "gPoE, softmax-variance": dict(aggregation="gpoe", temperature=15.0),
        "barycenter, softmax-variance": dict(aggregation="barycenter", temperature=15.0),
    }
    figure, axes = plt.subplots(
        3, 4, figsize=(14, 9), sharex=True, sharey=True, layout="constrained"
    )
    for column, m in zip(axes.T, (100, 20, 4, 2), strict=True):
        model = ExpertGPRegressor(points_per_expert=m, random_state=0, **_shared(full)).fit(X, y)
        results = model.predict_many(grid, list(settings.values()))
        for ax, result in zip(column, results, strict=True):
            plots.fit_1d(grid, *result, X, y, reference, ax)
        column[0].set_title(f"{m} points per expert", fontsize=12)
    for ax, title in zip(axes[:, 0], settings, strict=True):
        ax.set_ylabel(title, fontsize=12)
    axes[0, 0].set(xlim=(-2, 2), ylim=(-2.7, 2.7))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
    path = folder / "fig-points-per-expert.png"
    _save(figure, path)
    return [path]


def barycenter(folder: Path) -> list[Path]:
    """Three experts at one place, and their barycenter as the temperature grows."""
    mean, var = np.array([[-2.0], [1.2], [2.4]]), np.array([[0.09], [0.8], [1.1]])
    grid = np.linspace(-4, 6, 600)

    def density(m: float, v: float) -> Array:
        return np.exp(-0.5 * (grid - m) ** 2 / v) / np.sqrt(2 * np.pi * v)

    figure, axes = plt.subplots(
        1, 4, figsize=(14, 3.4), sharex=True, sharey=True, layout="constrained"
    )
    for ax, temperature in zip(axes, (0.0, 1.0, 3.0, 15.0), strict=True):
        beta = weights.softmax_variance(mean, var, temperature=temperature)
        m, v = aggregation.barycenter(mean, var, beta)
        for i in range(3):
            ax.plot(
                grid, density(mean[i, 0], var[i, 0]), color=plots.INK, alpha=0.5, linewidth=1.1,
                label="experts" if i == 0 else None,
            )  # fmt: skip
            x = mean[i, 0]
            top = density(x, var[i, 0]).max()
            ax.annotate(f"β = {beta[i, 0]:.2f}", (x, top + 0.04), ha="center", fontsize=9)
        ax.fill_between(
            grid, density(m[0], v[0]), color=plots.FIT, alpha=0.35, linewidth=0, label="barycenter"
        )
        ax.set_title(f"T = {temperature:g}", fontsize=12)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylim=(0, 1.6), ylabel="density at x*")
    axes[0].legend(frameon=False, fontsize=10, loc="upper right")
    path = folder / "fig-barycenter.png"
    _save(figure, path)
    return [path]


def liu(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Rows of the one-dimensional test function of Liu et al. (2018), with noise of variance ¼."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, n)
    f = 5 * x**2 * np.sin(12 * x) + (x**3 - 0.5) * np.sin(3 * x - 0.5) + 4 * np.cos(2 * x)
    return x[:, None], f + 0.5 * rng.standard_normal(n)


def f_against_y(folder: Path) -> Path:
    """Barycenter and rBCM with averages in f- and in y-space, in one dimension."""
    X, y = liu(1000)
    grid = np.linspace(-0.2, 1.2, 500)[:, None]
    full = ExpertGPRegressor(points_per_expert=None, ard=False).fit(X, y)
    model = ExpertGPRegressor(
        points_per_expert=20, partition="random", random_state=0, **_shared(full)
    ).fit(X, y)
    rules: dict[str, dict[str, Any]] = {
        "barycenter, softmax-variance": dict(aggregation="barycenter"),
        "rBCM, entropy": dict(aggregation="rbcm", weighting="entropy"),
    }
    reference = full.predict_many(grid, [{}])[0]
    figure, axes = plt.subplots(
        2, 2, figsize=(11, 7), sharex=True, sharey=True, layout="constrained"
    )
    for column, (title, setting) in zip(axes.T, rules.items(), strict=True):
        results = model.predict_many(grid, [dict(setting, space=space) for space in "fy"])
        for ax, result in zip(column, results, strict=True):
            plots.fit_1d(grid, *result, X, y, reference, ax)
        column[0].set_title(title, fontsize=12)
    for ax, space in zip(axes[:, 0], "fy", strict=True):
        ax.set_ylabel(f"{space}-averaging", fontsize=12)
    axes[0, 0].set(xlim=(-0.2, 1.2), ylim=(-9, 9))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
    path = folder / "fig-f-vs-y.png"
    _save(figure, path)
    return path


def bars(folder: Path, scores: Mapping[str, Mapping[str, float]]) -> Path:
    """NLPD under f- and y-averaging over the data sets; `scores[data][setting]`."""
    styles = {
        "gpoe 100": ("gPoE softmax-variance, f", "#1f6fb4"),
        "gpoe 100, y": ("gPoE softmax-variance, y", "#8fbbe0"),
        "rbcm entropy": ("rBCM entropy, f", "#b4371f"),
        "rbcm entropy, y": ("rBCM entropy, y", "#e5a593"),
    }
    figure, ax = plt.subplots(figsize=(11, 4.5), layout="constrained")
    top, low = 4.5, -0.5
    for i, (setting, (label, colour)) in enumerate(styles.items()):
        x = np.arange(len(scores)) + 0.2 * (i - 1.5)
        heights = np.array([here[setting] for here in scores.values()])
        ax.bar(x, np.clip(heights, low, top), 0.19, color=colour, label=label)
        for at, height in zip(x, heights, strict=True):
            if height > top:
                ax.annotate(f"↑ {height:.3g}", (at, top), ha="center", va="bottom", fontsize=8)
    ax.axhline(0.0, color=plots.INK, linewidth=0.8)
    ax.set(xticks=np.arange(len(scores)), xticklabels=list(scores), ylabel="NLPD", ylim=(low, top))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper left", ncols=2, bbox_to_anchor=(0.0, 1.18))
    path = folder / "fig-f-vs-y-bars.png"
    _save(figure, path)
    return path


def temperature(folder: Path, found: Mapping[str, list[Entry]]) -> Path:
    """NLPD against the temperature, ours as lines and the paper's as rings."""
    sets = [
        name
        for name in ("parkinsons", "kin40k", "airfoil", "concrete", "power", "protein")
        if any(e.data == name for entries in found.values() for e in entries)
    ]
    columns = min(len(sets), 3)
    rows = -(-len(sets) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.2 * columns, 3.3 * rows), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes.flat, sets, strict=False):
        for label, entries in found.items():
            here = [e for e in entries if e.data == name]
            T = [float(e.column.removeprefix("T = ")) for e in here]
            colour = _COLOURS[label]
            ax.plot(T, [e.ours[0] for e in here], "-", color=colour, label=f"{label}, ours")
            ax.plot(
                T, [e.printed[0] for e in here], "o", color=colour, fillstyle="none", markersize=5,
                label=f"{label}, the paper",
            )  # fmt: skip
        ax.set(title=name, xlabel="T", ylabel="NLPD")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[len(sets) :]:
        ax.set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    path = folder / "temperature.png"
    _save(figure, path)
    return path
