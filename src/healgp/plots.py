"""Pictures, with matplotlib (the extra `plots`); every function takes an Axes and returns it."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray

INK, FIT, FULL = "#222222", "#1f6fb4", "#e07b00"


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
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1]
    grid = np.ravel(grid)
    if X is not None:
        ax.plot(np.ravel(X), y, ".", color=INK, markersize=2.5, alpha=0.45, zorder=1, label="rows")
    ax.fill_between(
        grid, mean - 1.96 * std, mean + 1.96 * std, color=FIT, alpha=0.25, linewidth=0, zorder=2,
        label="95 % interval",
    )  # fmt: skip
    ax.plot(grid, mean, color=FIT, linewidth=1.6, zorder=4, label="committee")
    if full is not None:
        m, s = full
        for values, width in ((m, 1.3), (m - 1.96 * s, 0.8), (m + 1.96 * s, 0.8)):
            ax.plot(grid, values, color=FULL, linewidth=width, linestyle=(0, (4, 2)), zorder=3)
        ax.plot([], [], color=FULL, linestyle=(0, (4, 2)), label="full GP")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def pathologies(path: str, seed: int = 0) -> None:
    """Draws what unhealed rules do with weak experts (300 rows, three to an expert), and the healed
    ones below, beside the full GP; saves it as `path`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from healgp.estimators.regressor import ExpertGPRegressor

    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-1, 1, 300))[:, None]
    y = np.sin(5 * X[:, 0]) + 0.3 * np.cos(11 * X[:, 0]) + 0.12 * rng.standard_normal(300)
    grid = np.linspace(-2, 2, 601)[:, None]
    full = ExpertGPRegressor(points_per_expert=None).fit(X, y)
    shared: dict[str, Any] = dict(
        lengthscale=full.lengthscales_,
        signal_variance=full.signal_variance_,
        noise_variance=full.noise_variance_,
        max_iter=0,
    )
    model = ExpertGPRegressor(points_per_expert=3, random_state=seed, **shared).fit(X, y)
    panels: list[tuple[str, str, dict[str, Any]]] = [
        ("PoE", "over-confident", dict(aggregation="poe")),
        ("gPoE, uniform", "under-confident", dict(aggregation="gpoe", weighting="uniform")),
        ("BCM", "erratic at the edge", dict(aggregation="bcm")),
        ("rBCM, entropy", "erratic at the edge", dict(aggregation="rbcm", weighting="entropy")),
        ("gPoE = rBCM", "softmax of the variance", dict(aggregation="gpoe")),
        ("barycenter", "softmax of the variance", dict(aggregation="barycenter")),
        ("Wasserstein", "softmax of the variance", dict(aggregation="wasserstein")),
        ("gPoE", "softmax of the entropy", dict(weighting="softmax_entropy", temperature=10.0)),
    ]
    results = model.predict_many(grid, [setting for *_, setting in panels])
    reference = full.predict_many(grid, [{}])[0]
    figure, axes = plt.subplots(
        2, 4, figsize=(14, 6.4), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (name, comment, _), (mean, std) in zip(axes.flat, panels, results, strict=True):
        fit_1d(grid, mean, std, X, y, reference, ax)
        ax.set_title(f"{name}\n", fontsize=12, fontweight="bold", color=INK)
        ax.text(
            0.5, 1.03, comment, transform=ax.transAxes, ha="center", fontsize=10, color="#666666"
        )
    axes[0, 0].set(xlim=(-2, 2), ylim=(-2.7, 2.7))
    axes[0, 0].set_ylabel("unhealed", fontsize=13)
    axes[1, 0].set_ylabel("healed", fontsize=13)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
    figure.suptitle(
        "Committees of Gaussian processes, unhealed and healed: 300 rows, three to an expert",
        fontsize=14,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
