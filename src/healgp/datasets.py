"""Data: a simulator that needs no download, and the sets of the paper from a folder of yours."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

Array = np.ndarray

#: The sets of the paper: where each can be had and what its arrays are.
SOURCES = {
    "concrete": "UCI Machine Learning Repository, Concrete Compressive Strength: X 1030 × 8, y",
    "airfoil": "UCI Machine Learning Repository, Airfoil Self-Noise: X 1503 × 5, y",
    "parkinsons": "UCI Machine Learning Repository, Parkinsons Telemonitoring: X 5875 × 20, y",
    "power": "UCI Machine Learning Repository, Combined Cycle Power Plant: X 9568 × 4, y",
    "kin40k": "the kin family of the Delve archive, forward dynamics of an 8-link arm: "
    "X 40000 × 8, y",
    "protein": "UCI Machine Learning Repository, Physicochemical Properties of Protein Tertiary "
    "Structure: X 45730 × 9, y = log(1 + RMSD)",
    "airline": "US Bureau of Transportation Statistics, flights of January to April 2008 with a "
    "departure delay of 6 minutes or more: X 726439 × 7, y = arrival delay",
    "airline_all": "US Bureau of Transportation Statistics, all completed flights of January to "
    "April 2008: X 2319121 × 7, y = arrival delay",
    "mnist": "the MNIST database of handwritten digits: X_train 60000 × 784, y_train, "
    "X_test 10000 × 784, y_test",
}


def load(name: str, split: int | None = None, standardize: bool = False) -> tuple[Array, ...]:
    """A data set of the paper, as (X, y), from NAME.npz in the folder that HEALGP_DATA names.

    With `split` (0 to 9 in the paper) it is (X_train, X_test, y_train, y_test): the rows shuffled
    by that seed, the first 90 % to train. `standardize` scales X and y over all rows before the
    split, as the paper does. MNIST comes with its training images first.
    """
    if name not in SOURCES:
        raise ValueError(f"name={name!r} is not known. Choose one of: {', '.join(SOURCES)}.")
    folder = os.environ.get("HEALGP_DATA")
    path = Path(folder or ".") / f"{name}.npz"
    if folder is None or not path.is_file():
        where = "HEALGP_DATA is not set" if folder is None else f"{path} does not exist"
        raise FileNotFoundError(
            f"The data set {name!r} is not here: {where}. It can be had from {SOURCES[name]}. Save "
            f"these arrays with numpy.savez as {name}.npz into a folder, and set the environment "
            "variable HEALGP_DATA to that folder."
        )
    with np.load(path, allow_pickle=False) as arrays:
        if "X_train" in arrays:
            X = np.concatenate([arrays["X_train"], arrays["X_test"]])
            y = np.concatenate([arrays["y_train"], arrays["y_test"]])
        else:
            X, y = arrays["X"], arrays["y"]
    y = y.reshape(-1)
    if standardize:
        X = np.asarray(X, dtype=float)
        X = (X - X.mean(axis=0)) / (1e-6 + X.std(axis=0))
        y = (y - y.mean()) / (1e-6 + y.std())
    if split is None:
        return X, y
    order = np.arange(len(X))
    np.random.RandomState(split).shuffle(order)
    n = int(0.9 * len(X))
    return X[order[:n]], X[order[n:]], y[order[:n]], y[order[n:]]


def robot_arm(n: int, noise: float = 0.05, seed: int = 0) -> tuple[Array, Array]:
    """The distance from the origin to the end of an 8-link arm in the plane, plus Gaussian noise.

    X [n, 8] are the joint angles, within ±60° of the link before; links shrink towards the end,
    and their lengths add up to one.
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(-np.pi / 3, np.pi / 3, (n, 8))
    lengths = 0.9 ** np.arange(8)
    links = (lengths / lengths.sum()) * np.exp(1j * np.cumsum(X, axis=1))
    return X, np.abs(links.sum(axis=1)) + noise * rng.standard_normal(n)
