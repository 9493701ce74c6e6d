"""Likelihoods against dense numerical integration, closed forms and finite differences."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid
from scipy.special import log_ndtr, ndtr, softmax

from healgp.likelihoods import Bernoulli, Gaussian, Poisson, RobustMax, Softmax

GRID = np.linspace(-12.0, 12.0, 20001)


def integrate(g, mean, var):
    """E[g(f)] by the trapezium rule."""
    density = np.exp(-0.5 * GRID**2) / np.sqrt(2 * np.pi)
    return trapezoid(g(mean + np.sqrt(var) * GRID) * density, GRID)


LOG_P = {
    "gaussian": (Gaussian(np.log(0.3)), lambda y, f: stats.norm.logpdf(y, f, np.sqrt(0.3))),
    "poisson": (Poisson(0.4), lambda y, f: stats.poisson.logpmf(y, np.exp(0.4 + f))),
    "bernoulli": (Bernoulli(), lambda y, f: log_ndtr((2 * y - 1) * f)),
}


@pytest.mark.parametrize("name", LOG_P)
def test_expectations_against_dense_integration(name, rng):
    likelihood, log_p = LOG_P[name]
    y = rng.integers(0, 2, 30).astype(float)
    mean, var = rng.normal(0, 1.5, (30, 1)), rng.uniform(0.05, 2.0, (30, 1))
    expected = [integrate(lambda f, i=i: log_p(y[i], f), mean[i, 0], var[i, 0]) for i in range(30)]
    found = likelihood.expectations(y, mean, var).value
    np.testing.assert_allclose(found, expected, atol=1e-6)


def cases(rng):
    n, C = 25, 4
    mean, var = rng.normal(0, 2.0, (n, C)), rng.uniform(0.05, 3.0, (n, C))
    classes = rng.integers(0, C, n).astype(float)
    yield Gaussian(np.log(0.3)), rng.standard_normal(n), mean[:, :1], var[:, :1]
    yield Poisson(0.4), rng.poisson(3.0, n).astype(float), mean[:, :1], var[:, :1]
    yield Bernoulli(), (classes > 1).astype(float), mean[:, :1], var[:, :1]
    yield RobustMax(n_classes=C), classes, mean, var
    yield Softmax(n_classes=C), classes, mean, var


def test_derivatives_against_finite_differences(rng):
    h = 1e-5
    for likelihood, y, mean, var in cases(rng):
        found = likelihood.expectations(y, mean, var)
        tolerance = 1e-7
        for c in range(mean.shape[1]):
            shift = h * (np.arange(mean.shape[1]) == c)
            for name, up, down in (
                ("mean", (mean + shift, var), (mean - shift, var)),
                ("var", (mean, var + shift), (mean, var - shift)),
            ):
                difference = (
                    likelihood.expectations(y, *up).value - likelihood.expectations(y, *down).value
                ) / (2 * h)
                np.testing.assert_allclose(
                    getattr(found, name)[:, c], difference, atol=tolerance, rtol=1e-5
                )
        if likelihood.parameter is not None:
            up, down = (
                likelihood.with_parameter(likelihood.parameter + s).expectations(y, mean, var)
                for s in (h, -h)
            )
            difference = (up.value.sum() - down.value.sum()) / (2 * h)
            assert found.parameter == pytest.approx(difference, rel=1e-6)


def simulate(mean, var, n=400_000):
    """Draws [n, C] of the latent functions at one row."""
    rng = np.random.default_rng(5)
    return mean + np.sqrt(var) * rng.standard_normal((n, len(mean)))


def test_multiclass_probabilities_against_simulation(rng):
    mean, var = rng.normal(0, 1.5, (6, 4)), rng.uniform(0.1, 3.0, (6, 4))
    largest = RobustMax(n_classes=4, epsilon=1e-12).probabilities(mean, var)
    smooth = Softmax(n_classes=4).probabilities(mean, var)
    for i in range(6):
        f = simulate(mean[i], var[i])
        np.testing.assert_allclose(largest[i], np.bincount(f.argmax(1), minlength=4) / len(f),
                                   atol=4e-3)  # fmt: skip
        np.testing.assert_allclose(smooth[i], softmax(f, axis=1).mean(axis=0), atol=6e-3)
    np.testing.assert_allclose(smooth.sum(axis=1), 1.0)


def test_robustmax_training_sum_against_dense_integration(rng):
    mean, var = rng.normal(0, 1.0, (20, 3)), rng.uniform(0.3, 1.5, (20, 3))
    y = rng.integers(0, 3, 20)
    likelihood = RobustMax(n_classes=3)
    for i, value in enumerate(likelihood.expectations(y.astype(float), mean, var).value):
        others = [k for k in range(3) if k != y[i]]
        p = integrate(
            lambda f, i=i, others=others: np.prod(
                [ndtr((f - mean[i, k]) / np.sqrt(var[i, k])) for k in others], axis=0
            ),
            mean[i, y[i]],
            var[i, y[i]],
        )
        expected = p * np.log(1 - 1e-3) + (1 - p) * np.log(1e-3 / 2)
        assert value == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("m", [-2.0, 0.0, 0.7, 3.0])
@pytest.mark.parametrize("s", [0.2, 1.0, 2.5])
def test_robustmax_of_two_classes_in_closed_form(m, s):
    likelihood = RobustMax(n_classes=2, epsilon=1e-13)
    p = likelihood.probabilities(np.array([[m, 0.0]]), np.array([[s**2, 1.0]]))
    assert p[0, 0] == pytest.approx(ndtr(m / np.sqrt(1 + s**2)), abs=1e-6)


def test_softmax_expectation_is_a_bound_and_close(rng):
    mean, var = rng.normal(0, 1.5, (8, 4)), rng.uniform(0.1, 3.0, (8, 4))
    y = rng.integers(0, 4, 8)
    bound = Softmax(n_classes=4).expectations(y.astype(float), mean, var).value
    for i in range(8):
        f = simulate(mean[i], var[i])
        logs = f[:, y[i]] - np.log(np.exp(f).sum(axis=1))
        error = 4 * logs.std() / np.sqrt(len(logs))
        assert bound[i] <= logs.mean() + error
        assert bound[i] >= logs.mean() - 0.25


@pytest.mark.parametrize("kind", [RobustMax, Softmax])
def test_permuting_classes_permutes_probabilities(kind, rng):
    likelihood = kind(n_classes=5)
    mean, var = rng.normal(0, 1.5, (10, 5)), rng.uniform(0.1, 3.0, (10, 5))
    order = rng.permutation(5)
    np.testing.assert_allclose(
        likelihood.probabilities(mean[:, order], var[:, order]),
        likelihood.probabilities(mean, var)[:, order],
        atol=1e-12,
    )


def test_bernoulli_probabilities(rng):
    mean, var = rng.normal(0, 1.5, (6, 1)), rng.uniform(0.1, 3.0, (6, 1))
    p = Bernoulli().probabilities(mean, var)
    expected = [integrate(ndtr, mean[i, 0], var[i, 0]) for i in range(6)]
    np.testing.assert_allclose(p[:, 1], expected, atol=1e-8)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)


def test_poisson_predictions_against_dense_integration(rng):
    mean, var = rng.normal(0, 1.0, 6), rng.uniform(0.05, 0.8, 6)
    likelihood, y = Poisson(0.7), np.array([0.0, 1, 2, 5, 9, 30])
    for i in range(6):

        def rate(f):
            return np.exp(0.7 + f)

        def pmf(k, i=i):
            return integrate(lambda f: stats.poisson.pmf(k, rate(f)), mean[i], var[i])

        first = integrate(rate, mean[i], var[i])
        second = integrate(lambda f: rate(f) + rate(f) ** 2, mean[i], var[i])
        one = slice(i, i + 1)
        assert likelihood.rate(mean, var)[i] == pytest.approx(first, rel=1e-8)
        assert likelihood.variance(mean, var)[i] == pytest.approx(second - first**2, rel=1e-7)
        found = likelihood.log_density(y[one], mean[one], var[one])[0]
        assert found == pytest.approx(np.log(pmf(y[i])), abs=1e-6)
        for probability in (0.025, 0.5, 0.975):
            cdf = np.cumsum([pmf(k) for k in range(400)])
            k = int(np.argmax(cdf >= probability))
            assert likelihood.quantile(probability, mean[one], var[one])[0] == k


def test_the_normal_tail_to_all_digits_that_matter():
    from healgp.quadrature import _TAIL

    z = np.linspace(0.0, 37.0, 5001)
    tail = np.polyval(_TAIL, (z - 3) / (z + 3)) * np.exp(-0.5 * z**2)
    np.testing.assert_allclose(tail, ndtr(-z), rtol=1e-12)


def test_poisson_beyond_all_bounds_stays_finite():
    likelihood, one = Poisson(0.0), np.ones(2)
    for mean, var in ((38.0, 0.01), (0.0, 1e4), (700.0, 1.0), (-700.0, 1.0)):
        m, v = mean * one, var * one
        for value in (
            likelihood.rate(m, v), likelihood.variance(m, v), likelihood.quantile(0.975, m, v),
            likelihood.log_density(np.array([0.0, 3.0]), m, v),
        ):  # fmt: skip
            assert np.isfinite(value).all()
    assert likelihood.quantile(0.5, np.zeros(1), np.full(1, 1e4))[0] in (0, 1, 2)
    large = likelihood.quantile(0.975, np.full(1, 20.0), np.full(1, 0.01))[0]
    assert large == pytest.approx(np.exp(20.0 + 0.1 * 1.96), rel=1e-3)


def test_classes_that_nothing_tells_apart_are_equally_probable():
    for kind in (Softmax, RobustMax):
        for C in (3, 5, 40):
            p = kind(n_classes=C).probabilities(np.zeros((1, C)), np.full((1, C), 100.0))
            np.testing.assert_allclose(p, 1 / C, rtol=1e-9)


def test_bernoulli_far_from_its_label():
    found = Bernoulli().expectations(np.array([1.0]), np.array([[-1e9]]), np.array([[1.0]]))
    assert found.mean[0, 0] == pytest.approx(1e9, rel=1e-6)
