"""Where to sample next: a batch of new measurements is chosen where the model is least sure, each
one taking the ones before it into account, and compared with a random batch.

    python examples/active_learning.py        # writes active_learning.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from healgp import ExpertGPRegressor, metrics

NOISE, START, BATCH = 0.05, 150, 50


def truth(X: np.ndarray) -> np.ndarray:
    return np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1]) + 0.5 * np.sin(5 * X[:, 0] + 3 * X[:, 1])


def places(n: int, rng: np.random.Generator) -> np.ndarray:
    """What could be measured: most of it in one corner, where measuring is easy."""
    easy = rng.beta(1.2, 4.0, (n, 2))
    anywhere = rng.random(n) < 0.3
    easy[anywhere] = rng.random((anywhere.sum(), 2))
    return 4 * easy


def least_sure(model: ExpertGPRegressor, pool: np.ndarray, n: int) -> np.ndarray:
    """Numbers of n rows of the pool, one after another the one with the largest variance given
    those before it: Cov ← Cov − c cᵀ / c_i, c being column i."""
    covariance = model.predict(pool, return_cov=True)[1]
    chosen = []
    for _ in range(n):
        variance = covariance.diagonal().copy()
        variance[chosen] = -np.inf
        i = int(variance.argmax())
        column = covariance[:, i].copy()
        covariance -= np.outer(column, column) / column[i]
        chosen.append(i)
    return np.array(chosen)


def learn(
    active: bool, rounds: int, seed: int
) -> tuple[list[int], list[float], np.ndarray, ExpertGPRegressor]:
    """Numbers of measurements and RMSE after each round, the rows measured, and the last model."""
    rng = np.random.default_rng(seed)
    pool, test = places(800, rng), 4 * rng.random((1000, 2))
    y = truth(pool) + NOISE * rng.standard_normal(len(pool))
    known = rng.choice(len(pool), START, replace=False)
    sizes, errors = [], []
    while True:
        model = ExpertGPRegressor(
            points_per_expert=150, kernel="matern52", aggregation="gpoe", random_state=0
        ).fit(pool[known], y[known])
        sizes.append(len(known))
        errors.append(metrics.rmse(truth(test), model.predict(test)))
        if len(sizes) > rounds:
            return sizes, errors, pool[known], model
        left = np.setdiff1d(np.arange(len(pool)), known)
        new = least_sure(model, pool[left], BATCH) if active else rng.permutation(len(left))[:BATCH]
        known = np.concatenate([known, left[new]])


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="batches of measurements")
    parser.add_argument("--repeats", type=int, default=4, help="times that it is done anew")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    given = parser.parse_args(argv)

    runs = {
        name: [learn(active, given.rounds, seed) for seed in range(given.repeats)]
        for name, active in (("least sure", True), ("random", False))
    }
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    side = np.linspace(0, 4, 70)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    spreads = [found[0][3].predict(grid, return_std=True)[1] for found in runs.values()]
    for ax, (name, found), std in zip(axes, runs.items(), spreads, strict=False):
        picture = ax.pcolormesh(
            side, side, std.reshape(70, 70), cmap="cividis", vmin=0, vmax=max(map(np.max, spreads)),
            rasterized=True,
        )  # fmt: skip
        measured = found[0][2]
        ax.plot(*measured[:START].T, ".", color="white", markersize=3, label="first")
        ax.plot(*measured[START:].T, ".", color="#ffab4a", markersize=4, label="added")
        ax.set(title=f"{name}: deviation at the end", aspect="equal", xlim=(0, 4), ylim=(0, 4))
    axes[0].legend(
        loc="upper right", fontsize=9, markerscale=3, facecolor="#222222", labelcolor="white"
    )
    figure.colorbar(picture, ax=axes[1], shrink=0.85)
    for (name, found), colour in zip(runs.items(), ("#e07b00", "#1f6fb4"), strict=True):
        errors = np.array([run[1] for run in found])
        axes[2].plot(found[0][0], errors.mean(axis=0), "o-", color=colour, label=name)
        axes[2].fill_between(found[0][0], errors.min(0), errors.max(0), color=colour, alpha=0.2)
    axes[2].set(xlabel="measurements", ylabel="RMSE over the whole square", yscale="log",
                title=f"mean and range of {given.repeats} repeats")  # fmt: skip
    axes[2].spines[["top", "right"]].set_visible(False)
    axes[2].legend(frameon=False)
    path = given.out / "active_learning.png"
    figure.savefig(path, dpi=90)
    plt.close(figure)

    result = {name: float(np.mean([run[1][-1] for run in found])) for name, found in runs.items()}
    for name, value in result.items():
        print(f"RMSE at the end, {name}: {value:.4f}")
    print(f"written to {path}")
    return result


if __name__ == "__main__":
    main()
