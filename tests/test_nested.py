"""The nested rule against a naive one and against the exact GP."""

import tracemalloc

import numpy as np
import pytest

from healgp import ExpertGPRegressor, linalg
from healgp.kernels import KERNELS
from healgp.nested import _solved
from naive import gp
from naive import kernel as covariance

FIXED = dict(
    lengthscale=[0.7, 1.5], signal_variance=1.3, noise_variance=0.2, max_iter=0, standardize=False,
    aggregation="nested",
)  # fmt: skip


@pytest.fixture
def rows(rng):
    X = rng.uniform(-2, 2, (60, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.3 * rng.standard_normal(60)


def naive(kernel, X, y, labels, new, n_nearest):
    """One row at a time, with whole matrices."""
    lengthscales, signal, noise = np.array([0.7, 1.5]), 1.3, 0.2
    groups = [np.flatnonzero(labels == j) for j in np.unique(labels)]
    K = covariance(kernel, X, X, lengthscales, signal, 1.0)
    out = []
    for x in new:
        k = covariance(kernel, X, x[None], lengthscales, signal, 1.0)[:, 0]
        # every expert's mean is Aᵀy; the rows that an expert does not own have coefficient 0
        A = np.zeros((len(X), len(groups)))
        for j, g in enumerate(groups):
            A[g, j] = np.linalg.solve(K[np.ix_(g, g)] + noise * np.eye(len(g)), k[g])
        variances = signal - np.einsum("ij,i->j", A, k)
        A = A[:, np.argsort(variances, kind="stable")[:n_nearest]]
        C = A.T @ (K + noise * np.eye(len(X))) @ A
        w = np.linalg.solve(C, A.T @ k)
        out.append((w @ (A.T @ y), signal - w @ (A.T @ k)))
    return np.array(out).T


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n_nearest", [1, 2, 3, 50])
def test_against_a_naive_one(kernel, n_nearest, rows, rng):
    X, y = rows
    labels = np.r_[np.zeros(20), np.ones(5), np.full(25, 2), np.full(10, 3)].astype(int)
    new = rng.uniform(-2.5, 2.5, (40, 2))
    model = ExpertGPRegressor(partition=labels, kernel=kernel, n_nearest=n_nearest, **FIXED)
    mean, var = model.fit(X, y).predict_f(new)
    expected = naive(kernel, X, y, labels, new, n_nearest)
    np.testing.assert_allclose(mean, expected[0], atol=1e-7)
    np.testing.assert_allclose(var, expected[1], atol=1e-7)
    own = model.expert_moments(new)[1].min(axis=0)
    assert (var <= own + 1e-9).all()
    # the same whatever the blocks and the threads
    other = ExpertGPRegressor(
        partition=labels, kernel=kernel, n_nearest=n_nearest, n_jobs=1, **FIXED
    ).fit(X, y)
    np.testing.assert_array_equal(other.predict_f(new)[0], mean)


def test_with_every_row_its_own_expert_it_is_the_exact_gp(rows, rng):
    X, y = rows
    new = rng.uniform(-2, 2, (30, 2))
    model = ExpertGPRegressor(partition=np.arange(60), kernel="matern52", n_nearest=60, **FIXED)
    mean, var = model.fit(X, y).predict_f(new)
    exact = gp("matern52", X, y, new, np.array([0.7, 1.5]), 1.3, 0.2, 1.0)
    np.testing.assert_allclose(mean, exact[0], atol=1e-6)
    np.testing.assert_allclose(var, exact[1], atol=1e-6)


def test_experts_that_repeat_one_another(rows):
    X, y = rows
    twice = np.concatenate([X, X + 1e-9])
    labels = np.repeat([0, 1], 60)
    fixed = FIXED | dict(noise_variance=1e-5)
    model = ExpertGPRegressor(partition=labels, kernel="rbf", **fixed).fit(twice, np.r_[y, y])
    mean, var = model.predict_f(X)
    own_mean, own_var = model.expert_moments(X)
    np.testing.assert_allclose(mean, own_mean[0], atol=1e-3)
    assert (var > 0).all()
    assert (var <= own_var.min(axis=0)).all()


def test_smooth_data_without_noise(rng):
    # the prior's variance is 4·10⁸ times the noise, and what experts know is as much smaller
    X, new = rng.uniform(-1, 1, (400, 2)), rng.uniform(-1, 1, (100, 2))
    model = ExpertGPRegressor(
        partition=np.arange(400) % 8, kernel="rbf", lengthscale=10.0, signal_variance=4000.0,
        noise_variance=1e-5, max_iter=0, standardize=False, aggregation="nested",
    )  # fmt: skip
    mean, var = model.fit(X, 2 * X[:, 0] - X[:, 1]).predict_f(new)
    assert (var <= model.expert_moments(new)[1].min(axis=0) * (1 + 1e-9)).all()
    assert np.sqrt(np.mean((mean - 2 * new[:, 0] + new[:, 1]) ** 2)) < 5e-5
    std = np.sqrt(np.diag(model.predict(new, return_cov=True)[1]))
    np.testing.assert_allclose(std, model.predict(new, return_std=True)[1], rtol=1e-9)


def test_where_rounding_leaves_less_than_the_best_expert_knows():
    # the first two say the same but for rounding, which makes the system indefinite
    own = np.array([[0.9, 0.9, 0.5]])
    C = np.array([[[0.9, 0.9 + 1e-13, 0.5], [0.9 + 1e-13, 0.9, 0.5], [0.5, 0.5, 0.5]]])
    coefficients, known = _solved(C, own)
    assert known[0] >= 0.9
    assert known[0] <= 0.9 + 1e-9
    assert coefficients[0] @ [0.9, 0.9, 0.5] == pytest.approx(0.9)


def test_memory_does_not_grow_with_the_square_of_the_experts(rng, monkeypatch):
    X = rng.uniform(-2, 2, (300, 2))
    model = ExpertGPRegressor(
        partition=np.arange(300) % 60, n_nearest=60, kernel="rbf", n_jobs=1, **FIXED
    ).fit(X, X[:, 0])
    new = rng.uniform(-2, 2, (400, 2))
    model.predict_f(new[:2])
    monkeypatch.setattr("healgp.nested._BLOCK", 2**20)  # 8 MB
    tracemalloc.start()
    model.predict_f(new)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 8 * 2**20


def test_far_away_and_one_expert(rows):
    X, y = rows
    model = ExpertGPRegressor(partition=np.arange(60) % 4, kernel="rbf", **FIXED).fit(X, y)
    mean, var = model.predict_f(np.full((3, 2), 1e6))
    np.testing.assert_allclose(mean, 0.0, atol=1e-9)
    np.testing.assert_allclose(var, 1.3)
    alone = ExpertGPRegressor(points_per_expert=None, kernel="rbf", **FIXED).fit(X, y)
    one = alone.predict_f(X)
    other = alone.set_params(aggregation="gpoe").predict_f(X)
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_blocks_of_rows(rows, rng, monkeypatch):
    X, y = rows
    new = rng.uniform(-2, 2, (200, 2))
    model = ExpertGPRegressor(partition=np.arange(60) % 4, kernel="rbf", **FIXED).fit(X, y)
    whole = model.predict_f(new)
    monkeypatch.setattr("healgp.nested._BLOCK", 1)
    np.testing.assert_allclose(model.predict_f(new), whole, rtol=1e-10)
    a, b = model.predict_many(new, [dict(space="f"), dict(space="y")])
    np.testing.assert_allclose(a, b)


def test_what_is_refused(rows):
    X, y = rows
    model = ExpertGPRegressor(partition=np.arange(60) % 4, kernel="rbf", **FIXED).fit(X, y)
    with pytest.raises(ValueError, match="no weights"):
        model.expert_weights(X)
    with pytest.raises(ValueError, match="n_nearest"):
        model.set_params(n_nearest=0).predict(X)
    with pytest.raises(ValueError, match="exact experts"):
        ExpertGPRegressor(n_inducing=5, aggregation="nested").fit(X, y)


def test_back_substitution(rng):
    for m in (1, 5, 32, 33, 100, 257):
        A = rng.standard_normal((m, m + 5))
        U = np.linalg.cholesky(A @ A.T).T.copy()
        B = rng.standard_normal((m, 7))
        x = B.copy().reshape(-1)
        linalg.solve_back(U.reshape(-1), m, x, 7)
        np.testing.assert_allclose(U @ x.reshape(m, 7), B, atol=1e-8)
