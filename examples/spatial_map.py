"""A map with its uncertainty: rainfall over a country, measured at stations that follow the valleys
and leave a large lake out.

    python examples/spatial_map.py            # writes spatial_map.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial import cKDTree

from healgp import ExpertGPRegressor, plots

NOISE = 0.15
LAKE, RADIUS = np.array([68.0, 34.0]), 11.0  # km


def rainfall(places: np.ndarray) -> np.ndarray:
    """The truth, in mm a day: hills catch rain, and the west has more of it."""
    x, y = places.T
    hills = [(20, 70, 12, 2.5), (45, 30, 9, 2.0), (80, 75, 15, 1.5), (62, 55, 6, 1.8)]
    rain = 3.0 - 0.015 * x + 0.4 * np.sin(x / 9) * np.cos(y / 11)
    for a, b, width, height in hills:
        rain += height * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * width**2))
    return rain


def stations(n: int, rng: np.random.Generator) -> np.ndarray:
    """Two thirds along three valleys, the others anywhere; none on the lake."""
    along = rng.uniform(0, 100, n)
    valley = rng.integers(0, 3, n)
    across = np.choose(valley, [25 + 0.4 * along, 85 - 0.3 * along, 50 + 12 * np.sin(along / 15)])
    places = np.column_stack([along, across + rng.normal(0, 3, n)])
    anywhere = rng.random(n) < 1 / 3
    places[anywhere] = rng.uniform(0, 100, (anywhere.sum(), 2))
    dry = np.linalg.norm(places - LAKE, axis=1) > RADIUS
    return places[dry & (places > 0).all(axis=1) & (places < 100).all(axis=1)]


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6000, help="stations")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    given = parser.parse_args(argv)

    rng = np.random.default_rng(0)
    X = stations(given.rows, rng)
    y = rainfall(X) + NOISE * rng.standard_normal(len(X))
    model = ExpertGPRegressor(points_per_expert=300, random_state=0).fit(X, y)

    side = np.linspace(0, 100, 100)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    mean, std = model.predict(grid, return_std=True)
    certainty = np.sqrt(np.maximum(std**2 - NOISE**2, 0.0))  # of the rainfall, without the noise
    truth = rainfall(grid)

    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    for ax, values, title, colours in (
        (axes[0], mean, "predicted rainfall, mm a day", "viridis"),
        (axes[1], certainty, "its standard deviation", "cividis"),
    ):
        picture = ax.pcolormesh(side, side, values.reshape(100, 100), cmap=colours, rasterized=True)
        figure.colorbar(picture, ax=ax, shrink=0.85)
        ax.set(title=title, aspect="equal", xlabel="km", ylabel="km")
    some = X[:: max(len(X) // 1500, 1)]
    axes[1].plot(*some.T, ".", color="white", markersize=1.2, alpha=0.7)
    plots.experts_map(model, columns=(0, 1), feature_names=["km", "km"], ax=axes[2])
    axes[2].set(title=f"{model.n_experts_} experts and their stations", aspect="equal")
    path = given.out / "spatial_map.png"
    figure.savefig(path, dpi=90)
    plt.close(figure)

    distance = cKDTree(X).query(grid)[0]
    result = {
        "rmse": float(np.sqrt(np.mean((mean - truth) ** 2))),
        "truth within two deviations": float(np.mean(np.abs(mean - truth) <= 2 * certainty)),
        "deviation near a station": float(certainty[distance < 1].mean()),
        "deviation far from any": float(certainty[distance > 5].mean()),
    }
    for name, value in result.items():
        print(f"{name}: {value:.3f}")
    print(f"written to {path}")
    return result


if __name__ == "__main__":
    main()
