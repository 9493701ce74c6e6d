import numpy as np
import pytest

from healgp import partition
from healgp.partition import PARTITIONS


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize(("n", "J"), [(1, 1), (7, 7), (103, 10), (5000, 600)])
def test_every_row_has_an_expert_and_the_seed_decides(name, n, J, rng):
    X = rng.standard_normal((n, 3))
    labels = PARTITIONS[name](X, J, np.random.default_rng(5))
    again = PARTITIONS[name](X, J, np.random.default_rng(5))
    assert np.array_equal(labels, again)
    assert labels.shape == (n,)
    assert labels.min() >= 0
    assert labels.max() < J
    rows = np.concatenate(partition.groups(labels))
    assert np.array_equal(np.sort(rows), np.arange(n))


@pytest.mark.parametrize("name", ["random", "balanced"])
@pytest.mark.parametrize(("n", "J"), [(103, 10), (1000, 7), (64, 64), (10, 3)])
def test_sizes_differ_by_at_most_one(name, n, J, rng):
    sizes = np.bincount(PARTITIONS[name](rng.standard_normal((n, 2)), J, rng), minlength=J)
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1


def spread(X, labels):
    return sum(((X[g] - X[g].mean(0)) ** 2).sum() for g in partition.groups(labels))


def test_kmeans_and_balanced_are_local(rng):
    X = rng.standard_normal((4000, 3))
    scattered = spread(X, partition.random(X, 40, rng))
    assert spread(X, partition.kmeans(X, 40, rng)) < 0.2 * scattered
    assert spread(X, partition.balanced(X, 40, rng)) < 0.25 * scattered


def test_two_levels_of_kmeans_are_nearly_as_local_as_one(rng, monkeypatch):
    X = rng.standard_normal((6000, 3))
    one = spread(X, partition.kmeans(X, 400, np.random.default_rng(0)))
    monkeypatch.setattr(partition, "_ONE_LEVEL", 50)
    labels = partition.kmeans(X, 400, np.random.default_rng(0))
    assert 360 <= len(partition.groups(labels)) <= 400
    assert spread(X, labels) < 1.3 * one


def test_kmeans_with_fewer_distinct_rows_than_clusters(rng):
    X = np.repeat(rng.standard_normal((3, 2)), 50, axis=0)
    labels = partition.kmeans(X, 10, rng)
    assert len(partition.groups(labels)) <= 10


def test_labels_given_and_by_a_callable(rng):
    X = rng.standard_normal((6, 2))
    given = partition.labels_of(["b", "a", "b", "c", "a", "a"], X, X, 2, rng)
    assert given.tolist() == [1, 0, 1, 2, 0, 0]
    gaps = partition.labels_of(np.array([7, 7, -1, 100, 7, 7]), X, X, 2, rng)
    assert gaps.tolist() == [1, 1, 0, 2, 1, 1]
    called = partition.labels_of(lambda X, J, rng: np.arange(6) % J, X, X, 3, rng)
    assert called.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ValueError, match=r"shape \(5,\).*6 rows"):
        partition.labels_of(np.zeros(5), X, X, 2, rng)
    with pytest.raises(ValueError, match="kmeans"):
        partition.check("kmean")
