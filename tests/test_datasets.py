import numpy as np
import pytest

from healgp import datasets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "power.npz", X=rng.standard_normal((101, 4)) * 3 + 1, y=np.arange(101.0))
    np.savez(
        tmp_path / "mnist.npz", X_train=np.zeros((6, 4), np.uint8), y_train=np.arange(6),
        X_test=np.ones((2, 4), np.uint8), y_test=np.arange(2),
    )  # fmt: skip
    monkeypatch.setenv("HEALGP_DATA", str(tmp_path))
    return tmp_path


def test_load(folder):
    X, y = datasets.load("power")
    assert X.shape == (101, 4)
    assert y.tolist() == list(range(101))
    X, y = datasets.load("mnist")
    assert X.shape == (8, 4)
    assert y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


def test_split_is_the_papers(folder):
    np.random.seed(3)  # noqa: NPY002
    order = np.arange(101)
    np.random.shuffle(order)  # noqa: NPY002
    X, y = datasets.load("power")
    Z = (X - X.mean(0)) / (1e-6 + X.std(0))
    X_train, X_test, y_train, y_test = datasets.load("power", 3, standardize=True)
    assert len(X_train) == 90
    np.testing.assert_allclose(X_train, Z[order[:90]])
    np.testing.assert_allclose(X_test, Z[order[90:]])
    t = (y - y.mean()) / (1e-6 + y.std())
    np.testing.assert_allclose(np.concatenate([y_train, y_test]), t[order])


def test_what_is_missing_is_explained(folder, monkeypatch):
    with pytest.raises(ValueError, match="concrete, airfoil"):
        datasets.load("powr")
    with pytest.raises(FileNotFoundError, match=r"protein.npz does not exist.*UCI.*savez"):
        datasets.load("protein")
    monkeypatch.delenv("HEALGP_DATA")
    with pytest.raises(FileNotFoundError, match="HEALGP_DATA is not set"):
        datasets.load("power")


def test_robot_arm_is_the_end_of_a_chain_of_links():
    X, y = datasets.robot_arm(20, noise=0.0, seed=4)
    lengths = np.array([0.9**i for i in range(8)])
    lengths /= lengths.sum()
    for row, value in zip(X, y, strict=True):
        position, angle = np.zeros(2), 0.0
        for joint, length in zip(row, lengths, strict=True):
            angle += joint
            position += length * np.array([np.cos(angle), np.sin(angle)])
        assert value == pytest.approx(np.linalg.norm(position), abs=1e-12)
    again = datasets.robot_arm(20, noise=0.1, seed=4)
    assert np.array_equal(again[0], X)
    assert 0.01 < np.std(again[1] - y) < 0.3
