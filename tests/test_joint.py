"""Joint predictions against naive ones and closed forms."""

import tracemalloc

import numpy as np
import pytest
from scipy.linalg import sqrtm

from healgp import ExpertGPRegressor, joint
from naive import kernel as covariance

RULES = ["poe", "gpoe", "bcm", "rbcm", "grbcm", "barycenter", "wasserstein", "nested"]
FIXED = dict(
    kernel="matern32", lengthscale=[0.7, 1.5], signal_variance=1.3, noise_variance=0.2, max_iter=0,
    standardize=False, temperature=5.0,
)  # fmt: skip


@pytest.fixture
def rows(rng):
    X = rng.uniform(-2, 2, (60, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.3 * rng.standard_normal(60)


def exact(X, y, new):
    """Mean and covariance of y by the exact GP."""
    ell = np.array([0.7, 1.5])
    K = covariance("matern32", X, X, ell, 1.3) + 0.2 * np.eye(len(X))
    k = covariance("matern32", X, new, ell, 1.3)
    cov = covariance("matern32", new, new, ell, 1.3) - k.T @ np.linalg.solve(K, k)
    return k.T @ np.linalg.solve(K, y), cov + 0.2 * np.eye(len(new))


@pytest.mark.parametrize("space", ["f", "y"])
@pytest.mark.parametrize("rule", RULES)
def test_the_diagonal_is_the_marginal_variance(rule, space, rows, rng):
    X, y = rows
    new = rng.uniform(-2.5, 2.5, (12, 2))
    model = ExpertGPRegressor(
        partition=np.arange(60) % 4, points_per_expert=15, aggregation=rule, space=space,
        random_state=0, **FIXED,
    ).fit(X, y)  # fmt: skip
    mean, std = model.predict(new, return_std=True)
    joint_mean, cov = model.predict(new, return_cov=True)
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-7)
    np.testing.assert_array_equal(cov, cov.T)
    assert np.linalg.eigvalsh(cov)[0] > -1e-9
    one, alone = model.predict(new[:1], return_cov=True)
    np.testing.assert_allclose([one[0], alone[0, 0]], [mean[0], std[0] ** 2], rtol=1e-7)


@pytest.mark.parametrize("rule", ["poe", "gpoe", "bcm", "barycenter", "wasserstein", "nested"])
def test_one_expert_is_the_exact_gp(rule, rows, rng):
    X, y = rows
    new = rng.uniform(-2, 2, (10, 2))
    model = ExpertGPRegressor(points_per_expert=None, aggregation=rule, **FIXED).fit(X, y)
    mean, cov = model.predict(new, return_cov=True)
    expected = exact(X, y, new)
    np.testing.assert_allclose(mean, expected[0], atol=1e-7)
    np.testing.assert_allclose(cov, expected[1], atol=1e-6)


def low_noise(X, new):
    """Covariances between new rows: of a posterior, a millionth of its prior, and of the prior."""
    K = covariance("rbf", X, X, np.ones(1), 9.0) + 1e-5 * np.eye(len(X))
    k, prior = (covariance("rbf", A, new, np.ones(1), 9.0) for A in (X, new))
    return prior - k.T @ np.linalg.solve(K, k), prior


@pytest.mark.parametrize(
    ("rule", "partition"),
    [("auto", "kmeans"), ("poe", "random"), ("gpoe", "random"), ("bcm", "random"),
     ("grbcm", "random")],
)  # fmt: skip
def test_posteriors_as_small_as_the_rounding_of_their_prior(rule, partition, rng):
    X, new = rng.uniform(-3, 3, (300, 1)), np.linspace(-3, 3, 60)[:, None]
    size = None if rule == "auto" else 100
    model = ExpertGPRegressor(
        kernel="rbf", aggregation=rule, partition=partition, points_per_expert=size, max_iter=0,
        lengthscale=1.0, signal_variance=9.0, noise_variance=1e-5, standardize=False, n_jobs=1,
        random_state=0,
    ).fit(X, np.sin(2 * X[:, 0]))  # fmt: skip
    mean, cov = model.predict(new, return_cov=True)
    np.testing.assert_allclose(np.diag(cov), model.predict(new, return_std=True)[1] ** 2)
    assert np.linalg.eigvalsh(cov)[0] > 0.5e-5  # the noise is on top
    assert np.abs(model.sample_y(new, 100) - mean[:, None]).max() < 0.05
    if size is None:
        expected = low_noise(X, new)[0] + 1e-5 * np.eye(60)
        np.testing.assert_allclose(cov, expected, atol=1e-9)


@pytest.mark.parametrize("rule", ["gpoe", "bcm", "rbcm", "grbcm"])
def test_experts_of_one_opinion(rule):
    """Half the weight each leaves what one says, be it nearly nothing or the prior itself."""
    posterior, prior = low_noise(*(np.linspace(-3, 3, n)[:, None] for n in (100, 60)))
    weights = np.full((2, 60), 0.5)
    for S in (posterior, prior):
        found = joint.covariance(rule, lambda experts, S=S: [S, S], weights, prior, 9.0, np.diag(S))
        np.testing.assert_allclose(found, S, atol=1e-4 * S.max())


def test_nested_with_every_row_its_own_expert_is_the_exact_gp(rows, rng):
    X, y = rows
    new = rng.uniform(-2, 2, (8, 2))
    model = ExpertGPRegressor(
        partition=np.arange(60), aggregation="nested", n_nearest=60, **FIXED
    ).fit(X, y)
    mean, cov = model.predict(new, return_cov=True)
    expected = exact(X, y, new)
    np.testing.assert_allclose(mean, expected[0], atol=1e-5)
    np.testing.assert_allclose(cov, expected[1], atol=1e-5)


def test_nested_among_several_experts_is_the_error_of_its_linear_combination(rows, rng):
    X, y = rows
    new = rng.uniform(-2, 2, (9, 2))
    model = ExpertGPRegressor(
        partition=np.arange(60) % 6, aggregation="nested", n_nearest=2, routing=None, **FIXED
    )
    A = np.column_stack([model.fit(X, one).predict(new) for one in np.eye(60)])
    ell = np.array([0.7, 1.5])
    K = covariance("matern32", X, X, ell, 1.3) + 0.2 * np.eye(60)
    Ak = A @ covariance("matern32", X, new, ell, 1.3)
    expected = covariance("matern32", new, new, ell, 1.3) - Ak - Ak.T + A @ K @ A.T
    found = model.fit(X, y).predict(new, return_cov=True)[1]
    np.testing.assert_allclose(found, expected + 0.2 * np.eye(9), atol=1e-9)


def peak(function):
    """Bytes that a call holds at most beside what was there before."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_nested_does_not_grow_with_the_experts(rng):
    new, peaks = rng.uniform(-2, 2, (300, 2)), []
    for experts in (10, 80):
        X = rng.uniform(-2, 2, (25 * experts, 2))
        model = ExpertGPRegressor(
            partition=np.arange(len(X)) % experts, aggregation="nested", n_nearest=2, n_jobs=1,
            routing=None, **FIXED,
        ).fit(X, X[:, 0])  # fmt: skip
        model.predict(new[:2], return_cov=True)  # all code is there
        peaks.append(peak(lambda model=model: model.predict(new, return_cov=True)))
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("rule", ["gpoe", "bcm", "barycenter", "wasserstein"])
def test_memory_does_not_grow_with_the_experts(rule):
    n, asked = 100, []

    def covariances(experts):
        asked.extend(experts)
        return (np.eye(n) for _ in experts)

    def of(experts):
        weights = np.full((experts, n), 1.0 / experts)
        return joint.covariance(rule, covariances, weights, 2 * np.eye(n), 2.0, np.ones(n))

    of(4)  # all code is there
    assert peak(lambda: of(40)) < 1.2 * peak(lambda: of(4))
    # nobody asks an expert without a say
    asked.clear()
    weights = np.repeat(
        [[0.5], [0.0], [0.5], [1e-14 if rule in ("barycenter", "wasserstein") else 0.0]], n, axis=1
    )
    joint.covariance(rule, covariances, weights, 2 * np.eye(n), 2.0, np.ones(n))
    assert set(asked) == {0, 2}


@pytest.mark.parametrize("rule", [r for r in RULES if r != "nested"])
def test_rules_against_naive_ones(rule, rows, rng):
    X, y = rows
    labels = np.arange(60) % 3
    new = rng.uniform(-2, 2, (6, 2))
    model = ExpertGPRegressor(
        partition=labels, points_per_expert=20, aggregation=rule, random_state=0, **FIXED
    ).fit(X, y)
    noise = 0.2 * np.eye(6)
    groups, K = [labels == j for j in range(3)], covariance("matern32", new, new, [0.7, 1.5], 1.3)
    if rule == "grbcm":  # every expert knows the communication set, which stands for the prior
        in_order = np.argsort(labels, kind="stable")  # as the committee has its rows
        shared = np.isin(np.arange(60), in_order[model._communication])
        groups = [g | shared for g in groups]
        K = exact(X[shared], y[shared], new)[1] - noise
    parts = [exact(X[g], y[g], new)[1] - noise for g in groups]
    roots = [np.diag(np.sqrt(b)) for b in model.expert_weights(new)]

    def framed(matrices):
        return sum(r @ p @ r for r, p in zip(roots, matrices, strict=True))

    var, inverse = model.predict_f(new)[1], np.linalg.inv
    if rule in ("poe", "gpoe"):
        S = inverse(framed([inverse(p) for p in parts]))
    elif rule == "barycenter":
        S = framed(parts)
    elif rule == "wasserstein":  # from an iteration of its own: S ← Σ B^½ (S^½ S_j S^½)^½ B^½
        S = np.eye(6)
        for _ in range(2000):
            root = np.real(sqrtm(S))
            S = framed([np.real(sqrtm(root @ p @ root)) for p in parts])
    else:
        S = inverse(framed([inverse(p) - inverse(K) for p in parts]) + inverse(K))
    S *= np.sqrt(np.outer(var / np.diag(S), var / np.diag(S)))
    np.testing.assert_allclose(model.predict(new, return_cov=True)[1], S + noise, atol=1e-6)


def test_the_fixed_point(rng):
    # diagonal covariances: the one-dimensional closed form, σ = Σβσ, entry by entry
    parts = [np.diag(v) for v in rng.uniform(0.5, 2, (3, 4))]
    beta = np.array([0.2, 0.3, 0.5])
    roots = np.sqrt(beta)[:, None] * np.ones((3, 4))
    expected = (beta @ np.sqrt([np.diag(p) for p in parts])) ** 2
    np.testing.assert_allclose(
        joint.wasserstein(lambda: parts, roots), np.diag(expected), atol=1e-7
    )
    # two Gaussians, equal weights: the known closed form on the geodesic
    A, B = (M @ M.T + np.eye(3) for M in rng.standard_normal((2, 3, 3)))
    root, inverse = joint._root(A)
    transport = inverse @ joint._root(root @ B @ root)[0] @ inverse
    half = 0.5 * (np.eye(3) + transport)
    found = joint.wasserstein(lambda: [A, B], np.full((2, 3), np.sqrt(0.5)))
    np.testing.assert_allclose(found, half @ A @ half, rtol=1e-6)
    # and it is a fixed point
    root, _ = joint._root(found)
    again = sum(0.5 * joint._root(root @ S @ root)[0] for S in (A, B))
    np.testing.assert_allclose(again, found, rtol=1e-6)


def test_draws_are_as_correlated_as_they_should(rows):
    X, y = rows
    model = ExpertGPRegressor(partition=np.arange(60) % 3, aggregation="gpoe", **FIXED).fit(X, y)
    new = np.array([[0.0, 0.0], [0.1, 0.0], [1.5, -1.5]])
    mean, cov = model.predict(new, return_cov=True)
    draws = model.sample_y(new, 40_000, random_state=1)
    assert draws.shape == (3, 40_000)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.03)
    np.testing.assert_array_equal(draws, model.sample_y(new, 40_000, random_state=1))


def test_sparse_experts(rows, rng):
    X, y = rows
    new = rng.uniform(-2, 2, (7, 2))
    model = ExpertGPRegressor(
        points_per_expert=None, n_inducing=60, aggregation="gpoe", **FIXED
    ).fit(X, y)
    mean, cov = model.predict(new, return_cov=True)
    expected = exact(X, y, new)
    np.testing.assert_allclose(mean, expected[0], atol=1e-4)
    np.testing.assert_allclose(cov, expected[1], atol=1e-4)


def test_units_and_refusals(rows):
    X, y = rows
    model = ExpertGPRegressor(points_per_expert=20, random_state=0, kernel="rbf").fit(X, 100 * y)
    std = model.predict(X[:5], return_std=True)[1]
    cov = model.predict(X[:5], return_cov=True)[1]
    np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-7)
    with pytest.raises(ValueError, match="not for both"):
        model.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="n_samples"):
        model.sample_y(X, 0)
    with pytest.raises(ValueError, match="5000 at most"):
        model.predict(np.zeros((5001, 2)), return_cov=True)
    counts = ExpertGPRegressor(likelihood="poisson").fit(X, np.arange(60) % 3)
    with pytest.raises(ValueError, match="counts"):
        counts.sample_y(X)
