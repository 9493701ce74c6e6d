import numpy as np
import pytest
from scipy import integrate, stats

from healgp import metrics


@pytest.fixture
def predictions(rng):
    return rng.standard_normal(30), rng.standard_normal(30), rng.uniform(0.2, 2, 30)


def test_nlpd_and_rmse(predictions):
    y, mean, std = predictions
    expected = -np.mean([stats.norm(m, s).logpdf(v) for v, m, s in zip(*predictions, strict=True)])
    assert metrics.nlpd(y, mean, std) == pytest.approx(expected, rel=1e-12)
    assert metrics.rmse(y, mean) == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-12)


def test_crps_is_the_integral_of_squared_differences_of_distributions(predictions):
    def one(y, m, s):
        below = integrate.quad(lambda t: stats.norm.cdf(t, m, s) ** 2, m - 12 * s, y)[0]
        above = integrate.quad(lambda t: stats.norm.sf(t, m, s) ** 2, y, m + 12 * s)[0]
        return below + above

    expected = np.mean([one(*row) for row in zip(*predictions, strict=True)])
    assert metrics.crps(*predictions) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.99])
def test_coverage_of_calibrated_predictions(rng, level):
    mean, std = rng.standard_normal(100_000), rng.uniform(0.2, 2, 100_000)
    y = mean + std * rng.standard_normal(100_000)
    assert metrics.coverage(y, mean, std, level) == pytest.approx(level, abs=0.006)
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.coverage(y, mean, std, 95)


def test_shapes_that_would_spread_out_are_refused(predictions):
    y, mean, std = predictions
    for metric in (metrics.nlpd, metrics.coverage, metrics.crps):
        with pytest.raises(ValueError, match="shape"):
            metric(y[:, None], mean, std)
    with pytest.raises(ValueError, match="shape"):
        metrics.rmse(y[:, None], mean)
    assert metrics.nlpd(y, mean, 1.0) == metrics.nlpd(y, mean, np.ones(30))


def test_top_k_accuracy_against_scikit_learn(rng):
    from sklearn.metrics import top_k_accuracy_score

    p = rng.dirichlet(np.ones(6), 200)
    y = rng.integers(0, 6, 200)
    for k in (1, 2, 3):
        expected = top_k_accuracy_score(y, p, k=k, labels=range(6))
        assert metrics.top_k_accuracy(y, p, k) == pytest.approx(expected)
    with pytest.raises(ValueError, match="y has shape"):
        metrics.top_k_accuracy(y[:3], p)
