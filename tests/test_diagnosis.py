"""Diagnosis: what it says of a good model and of bad ones; coverage on data from the prior."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import poisson

from healgp import ExpertGPClassifier, ExpertGPRegressor, diagnose, metrics
from healgp.datasets import robot_arm
from healgp.diagnosis import LEVELS, of_numbers
from healgp.evidence import Numbers
from naive import kernel as covariance


@pytest.fixture(scope="module")
def arm():
    X, y = robot_arm(6000)
    model = ExpertGPRegressor(
        points_per_expert=200, kernel="rbf", aggregation="gpoe", random_state=0
    )
    return model.fit(X[:2000], y[:2000]), X[2000:], y[2000:]


def test_numbers_are_those_of_metrics(arm):
    model, X, y = arm
    found = diagnose(model, X, y)
    mean, std = model.predict(X, return_std=True)
    assert found.nlpd == metrics.nlpd(y, mean, std)
    assert found.rmse == metrics.rmse(y, mean)
    assert found.crps == metrics.crps(y, mean, std)
    assert found.coverage == {level: metrics.coverage(y, mean, std, level) for level in LEVELS}
    assert found.pit.sum() == pytest.approx(1.0)
    assert 1.0 <= found.voters <= model.n_experts_
    assert "4,000 rows" in str(found)
    model.set_params(aggregation="gpoe", weighting="uniform")
    assert diagnose(model, X[:100], y[:100]).voters == pytest.approx(model.n_experts_)
    model.set_params(aggregation="nested", weighting="softmax_variance")
    assert diagnose(model, X[:100], y[:100]).voters is None
    model.set_params(aggregation="gpoe")


def test_what_is_wrong_is_said_in_words(arm):
    model, X, y = arm
    mean = model.predict(X)
    narrow = diagnose(model, X, mean + 2.0 * (y - mean))
    assert any("too narrow" in text for text in narrow.warnings)
    wide = diagnose(model, X, mean + 0.4 * (y - mean))
    assert any("too wide" in text for text in wide.warnings)
    aside = diagnose(model, X, y + 0.05)
    assert any("lie above" in text for text in aside.warnings)


def test_coverage_on_draws_from_the_prior_is_right_at_every_level():
    """Rows of one expert each, at the true θ: the intervals are exact, so coverage is within the
    binomial error."""
    rng = np.random.default_rng(5)
    inside, n = dict.fromkeys(LEVELS, 0), 0
    for _ in range(8):
        X = rng.uniform(-2, 2, (400, 2))
        K = covariance("matern32", X, X, np.array([0.8, 0.8]), 1.0)
        y = np.linalg.cholesky(K + 1e-9 * np.eye(400)) @ rng.standard_normal(400)
        y += 0.3 * rng.standard_normal(400)
        model = ExpertGPRegressor(
            points_per_expert=None, kernel="matern32", lengthscale=0.8, noise_variance=0.09,
            max_iter=0, standardize=False,
        ).fit(X[:300], y[:300])  # fmt: skip
        found = diagnose(model, X[300:], y[300:])
        n += 100
        for level in LEVELS:
            inside[level] += 100 * found.coverage[level]
    for level, count in inside.items():
        # rows of one draw are not independent: twice the binomial error at three deviations
        assert abs(count / n - level) < 6 * np.sqrt(level * (1 - level) / n)


def test_other_models_are_refused(arm):
    _, X, y = arm
    with pytest.raises(ValueError, match="ExpertGPRegressor"):
        diagnose(ExpertGPClassifier(), X, y)
    with pytest.raises(ValueError, match="4000 rows"):
        diagnose(arm[0], X, y[:5])


def test_rows_at_which_no_expert_has_a_weight(arm):
    model, X, y = arm
    X = X[:50].copy()
    X[0] = 1e4
    model.set_params(aggregation="rbcm", weighting="entropy")
    assert 1.0 <= diagnose(model, X, y[:50]).voters <= model.n_experts_
    model.set_params(aggregation="gpoe", weighting="softmax_variance")


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0, 3.0, 10.0])
def test_counts_with_their_true_rates_are_said_to_be_right(rate):
    y = np.random.default_rng(0).poisson(rate, 5000)
    below, up_to, density = poisson.cdf(y - 1, rate), poisson.cdf(y, rate), poisson.logpmf(y, rate)
    mean = np.full(5000, rate)
    found = Numbers(y.astype(float), mean, np.sqrt(mean), density, below, up_to)
    assert of_numbers(found).warnings == ()
    aside = replace(found, below=0.7 * below, up_to=0.7 * up_to)
    assert any("lie below" in text for text in of_numbers(aside).warnings)
