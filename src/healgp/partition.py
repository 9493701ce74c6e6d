"""Rows to experts: every rule gives each row a label, loses none, and is decided by its seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
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
    n = int(labels.max()) + 1
    for group in groups(labels):
        if len(group) > 4 * size:
            parts = len(group) // size
            labels[group] = n + balanced(X[group], parts, rng)
            n += parts
    return labels


def _clusters(X: Any, n_experts: int, rng: np.random.Generator) -> np.ndarray:
    """Labels of clusters. X is an array, or rows that lie elsewhere and give a sample of themselves
    and a function of their blocks."""
    labels, shares = np.zeros(len(X), dtype=np.intp), [n_experts]
    while max(shares) > 1:
        parts = groups(labels)
        numbers = [int(np.sqrt(share)) if share > _ONE_LEVEL else share for share in shares]
        centres = [_centres(X, part, n, rng) for part, n in zip(parts, numbers, strict=True)]
        first = np.cumsum([0, *numbers])
        found = first[labels] + _nearest_of(X, labels, centres)
        used, labels = np.unique(found, return_inverse=True)
        sizes = np.bincount(labels)
        inside = np.split(np.arange(len(used)), np.searchsorted(used, first[1:-1]))
        # Where a part was divided coarsely, shares of its number in proportion to the rows, whose
        # sum is exact.
        shares_of = zip(inside, shares, numbers, strict=True)
        shares = []
        for some, share, n in shares_of:
            ends = np.cumsum(np.concatenate([[0], sizes[some]]))
            parts_of = np.diff(np.round(ends * share / ends[-1]).astype(int))
            each = parts_of if share > n else np.ones(len(some), dtype=int)
            shares += np.clip(each, 1, sizes[some]).tolist()
    return labels


def _centres(X: Any, part: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Centres of n clusters of some rows, from a sample of them."""
    from sklearn.cluster import KMeans  # it takes longer to load than all of healgp

    if n == 1:
        return np.zeros((1, X.shape[1]))
    size = min(len(part), max(10_000, 20 * n))
    if size < len(part):
        part = part[rng.choice(len(part), size, replace=False)]
    sample = X if len(part) == len(X) and isinstance(X, np.ndarray) else X[part]
    seed = int(rng.integers(2**31))
    # More than one thread would add up in an order that differs from run to run, and OpenMP's
    # threads do not survive a fork.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        return KMeans(n, n_init=1, random_state=seed).fit(sample).cluster_centers_


def _nearest_of(X: Any, labels: np.ndarray, centres: list[np.ndarray]) -> np.ndarray:
    """For each row the nearest of the centres of its part."""
    if isinstance(X, np.ndarray):
        return _nearest(X, labels, centres)
    return np.concatenate(X.each(partial(_nearest, centres=centres), labels))


def _nearest(X: np.ndarray, labels: np.ndarray, centres: list[np.ndarray]) -> np.ndarray:
    from sklearn.metrics import pairwise_distances_argmin

    with threadpool_limits(1, user_api="openmp"):
        if len(centres) == 1:
            return pairwise_distances_argmin(X, centres[0]).astype(np.intp)
        nearest = np.zeros(len(X), dtype=np.intp)
        for part in groups(labels):
            if len(part) and len(centres[labels[part[0]]]) > 1:
                nearest[part] = pairwise_distances_argmin(X[part], centres[labels[part[0]]])
        return nearest


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
    partition: Any, X: Any, Z: Any, n_experts: int, rng: np.random.Generator
) -> np.ndarray:
    """Labels 0 … J − 1 of the rows, none without rows. Named rules cluster the scaled rows Z; a
    callable gets the rows X as they were given."""
    elsewhere = not isinstance(X, np.ndarray)
    if elsewhere and (callable(partition) or str(partition) == "balanced"):
        raise ValueError(
            f"partition={partition!r} needs all rows in one place, and these are in a Dask "
            "collection. Choose 'kmeans' or 'random', or give an array of labels."
        )
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
