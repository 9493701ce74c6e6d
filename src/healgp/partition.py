"""Rows to experts: every rule gives each row a label, loses none, and is decided by its seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin
from threadpoolctl import threadpool_limits

Partition = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

#: Above this number of clusters k-means works in two levels; its cost grows with their number.
_ONE_LEVEL = 512


def random(X: np.ndarray, n_experts: int, rng: np.random.Generator) -> np.ndarray:
    """Every row to a random expert; sizes differ by at most one."""
    labels = np.empty(len(X), dtype=np.intp)
    labels[rng.permutation(len(X))] = np.arange(len(X)) % n_experts
    return labels


def kmeans(X: np.ndarray, n_experts: int, rng: np.random.Generator) -> np.ndarray:
    """Lloyd's algorithm on a sample of max(10,000, 20·J) rows; the rest go to the nearest centre.

    Beyond some hundred clusters it divides coarsely first, and each part again in proportion to
    its rows. Clusters are uneven and may be empty; those of more than four times the mean size, as
    rows that are equal make them, are cut into equal parts, for cost grows with the cube.
    """
    labels = _clusters(X, n_experts, rng)
    size = -(-len(X) // n_experts)
    n = n_experts
    for group in groups(labels):
        if len(group) > 4 * size:
            parts = len(group) // size
            labels[group] = n + balanced(X[group], parts, rng)
            n += parts
    return labels


def _clusters(X: np.ndarray, n_experts: int, rng: np.random.Generator) -> np.ndarray:
    if n_experts == 1:
        return np.zeros(len(X), dtype=np.intp)
    if n_experts <= _ONE_LEVEL:
        size = min(len(X), max(10_000, 20 * n_experts))
        sample = X if size == len(X) else X[rng.choice(len(X), size, replace=False)]
        seed = int(rng.integers(2**31))
        # More than one thread would add up in an order that differs from run to run, and OpenMP's
        # threads do not survive a fork.
        with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
            centres = KMeans(n_experts, n_init=1, random_state=seed).fit(sample).cluster_centers_
            return pairwise_distances_argmin(X, centres).astype(np.intp)
    parts = groups(_clusters(X, int(np.sqrt(n_experts)), rng))
    # Shares of n_experts in proportion to the rows, whose sum is exact.
    ends = np.cumsum([0] + [len(part) for part in parts])
    bounds = np.round(ends * n_experts / len(X)).astype(int)
    labels = np.empty(len(X), dtype=np.intp)
    first = 0
    for part, share in zip(parts, np.diff(bounds), strict=True):
        share = min(max(share, 1), len(part))
        labels[part] = first + _clusters(X[part], share, rng)
        first += share
    return labels


def balanced(X: np.ndarray, n_experts: int, rng: np.random.Generator) -> np.ndarray:
    """Local experts of equal size (they differ by at most one): the rows are cut in two across
    their principal axis, in proportion to the experts on each side, until one expert is left."""
    labels = np.empty(len(X), dtype=np.intp)
    # The sizes are fixed beforehand, whatever the cuts.
    ends = np.arange(1, n_experts + 1) * len(X) // n_experts
    parts = [(np.arange(len(X)), 0, n_experts)]
    while parts:
        rows, first, last = parts.pop()
        if last - first == 1:
            labels[rows] = first
            continue
        middle = (first + last) // 2
        left = ends[middle - 1] - (ends[first - 1] if first else 0)
        sample = rows if len(rows) <= 10_000 else rng.choice(rows, 10_000, replace=False)
        axis = np.linalg.eigh(np.atleast_2d(np.cov(X[sample], rowvar=False)))[1][:, -1]
        order = np.argsort(X[rows] @ axis, kind="stable")
        parts.append((rows[order[:left]], first, middle))
        parts.append((rows[order[left:]], middle, last))
    return labels


PARTITIONS: dict[str, Partition] = {"random": random, "kmeans": kmeans, "balanced": balanced}


def groups(labels: np.ndarray) -> list[np.ndarray]:
    """The rows of each expert, in the order of the labels; labels without rows are dropped."""
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(order, ends)


def check(partition: Any) -> None:
    """An error if it is a name that is not known; arrays and callables show when they are used."""
    if isinstance(partition, str) and partition not in PARTITIONS:
        raise ValueError(
            f"partition={partition!r} is not known. Choose one of: {', '.join(PARTITIONS)}; or "
            "give an array with one label per row, or a callable (X, n_experts, rng) → labels."
        )


def labels_of(
    partition: Any, X: np.ndarray, Z: np.ndarray, n_experts: int, rng: np.random.Generator
) -> np.ndarray:
    """Labels 0 … J − 1 of the rows, none without rows. Named rules cluster the scaled rows Z; a
    callable gets the rows X as they were given."""
    if isinstance(partition, str):
        labels = PARTITIONS[partition](Z, n_experts, rng)
    else:
        given = partition(X, n_experts, rng) if callable(partition) else partition
        labels = np.asarray(given)
        if labels.shape != (len(X),):
            raise ValueError(
                f"partition gives labels of shape {labels.shape}, but there are {len(X)} rows: one "
                "label per row is needed."
            )
        if np.ma.is_masked(given) or (labels != labels).any():
            raise ValueError("partition has labels that are missing (NaN, NaT or masked).")
    try:
        return np.unique(labels, return_inverse=True)[1]
    except TypeError as error:
        raise ValueError(f"partition has labels that cannot be sorted: {error}.") from None
