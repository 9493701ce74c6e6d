"""Exact experts against scikit-learn, a naive loop and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from healgp.engines.local import LocalEngine
from healgp.experts import committee as committee_module
from healgp.experts.committee import Committee, ExpertError
from healgp.kernels import KERNELS, Hyperparameters
from naive import gp

SKLEARN = {
    "rbf": lambda l: sk.RBF(l),
    "matern12": lambda l: sk.Matern(l, nu=0.5),
    "matern32": lambda l: sk.Matern(l, nu=1.5),
    "matern52": lambda l: sk.Matern(l, nu=2.5),
}


def make(X, y, groups, kernel="rbf", **theta):
    values = {"signal_variance": 1.3, "noise_variance": 0.05, "shape": 0.8} | theta
    values.setdefault("lengthscales", np.linspace(0.7, 1.4, X.shape[1]))
    return Committee.from_groups(X, y, groups, kernel, Hyperparameters(**values))


def ask(committee, new, n_jobs=1):
    with LocalEngine(n_jobs, committee.sizes) as engine:
        log_likelihood = committee.prepare(engine)
        return *committee.moments(new, 0, committee.n_experts, engine), log_likelihood


# scikit-learn has no rational quadratic with ARD; the naive loop covers it.
@pytest.mark.parametrize(
    ("kernel", "isotropic"),
    [(name, False) for name in SKLEARN] + [(name, True) for name in KERNELS],
)
def test_one_expert_equals_sklearn(wave, kernel, isotropic):
    X, y, new = wave
    l = np.full(2, 0.9) if isotropic else np.array([0.7, 1.4])
    base = SKLEARN[kernel](l) if kernel in SKLEARN else sk.RationalQuadratic(0.9, alpha=0.8)
    reference = GaussianProcessRegressor(1.3 * base, alpha=0.05, optimizer=None).fit(X, y)
    mean, var, log_likelihood = ask(make(X, y, [np.arange(200)], kernel, lengthscales=l), new)
    expected, std = reference.predict(new, return_std=True)
    np.testing.assert_allclose(mean[0], expected, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(var[0]), std, atol=1e-8)
    assert log_likelihood == pytest.approx(reference.log_marginal_likelihood(), abs=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_several_experts_equal_a_naive_loop(wave, kernel):
    X, y, new = wave
    groups = np.split(np.arange(200), [3, 50, 51, 120])
    committee = make(X, y, groups, kernel)
    t = committee.theta
    mean, var, total = ask(committee, new)
    with LocalEngine(2, committee.sizes) as engine:
        objective, _ = committee.objective(t, engine)
    expected = 0.0
    for j, rows in enumerate(groups):
        m, v, l = gp(
            kernel, X[rows], y[rows], new, t.lengthscales, t.signal_variance, t.noise_variance,
            t.shape,
        )  # fmt: skip
        np.testing.assert_allclose(mean[j], m, atol=1e-10)
        np.testing.assert_allclose(var[j], v, atol=1e-10)
        expected += l
    assert total == pytest.approx(expected, abs=1e-9)
    assert objective == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_against_finite_differences(rng, kernel):
    X, y = rng.standard_normal((60, 3)), rng.standard_normal(60)
    committee = make(X, y, np.split(np.arange(60), [1, 20, 45]), kernel)
    point = committee.theta.to_log(ard=True, shaped=True)

    def value_and_gradient(log_theta):
        with LocalEngine(1, [15] * 4) as engine:
            return committee.objective(Hyperparameters.from_log(log_theta, 3, True), engine)

    h = 1e-5
    numeric = [
        (value_and_gradient(point + h * e)[0] - value_and_gradient(point - h * e)[0]) / (2 * h)
        for e in np.eye(len(point))
    ]
    gradient = value_and_gradient(point)[1]
    np.testing.assert_allclose(gradient[: len(point)], numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_with_nearly_equal_rows(rng, kernel):
    """Differences, not products: rows that differ in the tenth digit keep the gradient exact."""
    X = rng.standard_normal((20, 2)) + 50.0
    X = np.concatenate([X, X + 1e-10])
    y = rng.standard_normal(40)
    committee = make(X, y, [np.arange(40)], kernel)
    point = committee.theta.to_log(True, False)
    with LocalEngine(1, [40]) as engine:
        f = lambda p: committee.objective(Hyperparameters.from_log(p, 2, True), engine)  # noqa: E731
        numeric = [(f(point + 1e-5 * e)[0] - f(point - 1e-5 * e)[0]) / 2e-5 for e in np.eye(4)]
        np.testing.assert_allclose(f(point)[1][:4], numeric, rtol=1e-5, atol=1e-4)


def test_moments_do_not_depend_on_threads_or_kept_factors(wave, monkeypatch):
    X, y, new = wave
    groups = np.split(np.arange(200), [40, 90, 170])
    reference = ask(make(X, y, groups), new)
    # none kept, two kept as triangles, all as triangles
    for budget in (
        0,
        8 * (40 * 41 + 50 * 51) // 2,
        8 * sum(m * (m + 1) for m in (40, 50, 80, 30)) // 2,
    ):
        monkeypatch.setattr(committee_module, "FACTOR_BYTES", budget)
        for n_jobs in (1, 2, 3):
            for ours, expected in zip(ask(make(X, y, groups), new, n_jobs), reference, strict=True):
                assert np.array_equal(ours, expected)


def test_objective_is_bitwise_the_same_for_any_number_of_threads(rng):
    X, y = rng.standard_normal((700, 4)), rng.standard_normal(700)
    committee = make(X, y, np.split(np.arange(700), [10, 300, 305, 500]))
    results = []
    for n_jobs in (1, 2, 4):
        with LocalEngine(n_jobs, committee.sizes) as engine:
            results.append(committee.objective(committee.theta, engine))
    assert all(r[0] == results[0][0] and np.array_equal(r[1], results[0][1]) for r in results)


def test_equal_rows_without_noise_get_jitter_not_a_failure(rng):
    X = np.repeat(rng.standard_normal((30, 2)), 4, axis=0)
    y = np.sin(X[:, 0])
    mean, var, log_likelihood = ask(make(X, y, [np.arange(120)], noise_variance=1e-300), X)
    assert np.isfinite(log_likelihood)
    np.testing.assert_allclose(mean[0], y, atol=1e-4)
    assert (var > 0).all()


def test_failure_names_the_expert_and_says_what_to_do(rng):
    X, y = rng.standard_normal((20, 2)), np.ones(20)
    X[13] = np.nan
    with pytest.raises(ExpertError, match=r"expert 1 \(10 rows\).*Raise noise_variance"):
        ask(make(X, y, np.split(np.arange(20), 2)), X[:1])


def test_gradient_with_jitter(rng):
    """Jitter grows with the signal variance, so that signal and noise together scale all of K:
    log p(c) = −yᵀα/2c − m/2 log c + const. Scaling K by 4 and ¼, U by 2 and ½, is exact."""
    X = rng.uniform(-3, 3, (60, 1))
    committee = make(X, np.sin(X[:, 0]), [np.arange(60)], signal_variance=1.0, noise_variance=1e-30)
    with LocalEngine(1, [60]) as engine:
        log_p = {}
        for c in (0.25, 1.0, 4.0):
            theta = replace(committee.theta, signal_variance=c, noise_variance=c * 1e-30)
            log_p[c], gradient = committee.objective(theta, engine)
            if c == 1.0:
                scale = gradient[1] + gradient[2]
    quadratic = 8 / 15 * (log_p[4.0] - log_p[0.25] + 60 * np.log(4))
    assert scale == pytest.approx(0.5 * (quadratic - 60), rel=1e-9)


def test_small_experts_are_shared_out(rng):
    X = rng.standard_normal((6000, 2))
    assert len(make(X, X[:, 0], np.split(np.arange(6000), 2000))._tasks) >= 2
