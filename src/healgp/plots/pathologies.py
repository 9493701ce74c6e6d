"""The paper's picture of what unhealed committees do wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from healgp.plots.fits import fit_1d
from healgp.plots.style import INK


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
