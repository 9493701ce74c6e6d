"""Evidence: left-out rows against models fitted without them; positions, coverage and reliability
against closed forms and loops."""

import numpy as np
import pytest
from scipy import integrate, stats

from healgp import ExpertGPClassifier, ExpertGPRegressor, diagnose
from healgp.evidence import Classes, Numbers, evidence, training_inputs
from healgp.likelihoods import Poisson

FIXED = dict(max_iter=0, kernel="rbf", standardize=False, noise_variance=0.05, n_jobs=1)


@pytest.mark.parametrize("rule", ["gpoe", "rbcm", "barycenter", "nested", "one expert"])
def test_left_out_rows_are_predicted_as_by_a_model_without_them(rng, rule):
    X = rng.uniform(-2, 2, (60, 2))
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.2 * rng.standard_normal(60)
    labels = np.zeros(60, int) if rule == "one expert" else rng.integers(0, 3, 60)
    how = dict(aggregation="gpoe" if rule == "one expert" else rule, temperature=7.0, **FIXED)
    model = ExpertGPRegressor(partition=labels, points_per_expert=20, **how).fit(X, y)
    found = evidence(model)
    assert found.left_out
    assert sorted(found.rows) == list(range(60))
    np.testing.assert_allclose(found.prediction.y, y[found.rows], rtol=1e-12)
    for i in (0, 17, 59):
        row, others = found.rows[i], np.arange(60) != found.rows[i]
        without = ExpertGPRegressor(partition=labels[others], points_per_expert=19, **how)
        mean, std = without.fit(X[others], y[others]).predict(X[[row]], return_std=True)
        assert found.prediction.mean[i] == pytest.approx(mean[0], rel=1e-6)
        assert found.prediction.std[i] == pytest.approx(std[0], rel=1e-6)


def test_grbcm_leaves_its_communication_set_out_of_the_question(rng):
    X = rng.uniform(-2, 2, (60, 1))
    y = np.sin(2 * X[:, 0])
    model = ExpertGPRegressor(points_per_expert=20, aggregation="grbcm", **FIXED).fit(X, y)
    found = evidence(model)
    assert len(found.rows) == 40
    assert np.abs(found.prediction.mean - y[found.rows]).max() < 0.3
    alone = ExpertGPRegressor(points_per_expert=None, aggregation="grbcm", **FIXED).fit(X, y)
    assert len(evidence(alone).rows) == 60


def test_given_rows_are_predicted_as_by_predict_many(wave):
    X, y, new = wave
    model = ExpertGPRegressor(points_per_expert=50, kernel="rbf", random_state=0).fit(X, y)
    settings = [{}, {"aggregation": "rbcm", "weighting": "entropy"}]
    found = evidence(model, new, np.zeros(len(new)), settings)
    for got, (mean, std) in zip(found.predictions, model.predict_many(new, settings), strict=True):
        np.testing.assert_array_equal(got.mean, mean)
        np.testing.assert_array_equal(got.std, std)
        np.testing.assert_allclose(got.up_to, stats.norm.cdf(0.0, mean, std))
    with pytest.raises(ValueError, match="together"):
        evidence(model, new)
    with pytest.raises(ValueError, match="several rules"):
        evidence(model, settings=settings)


def test_cdf_of_counts_is_the_integral_over_the_rate():
    likelihood = Poisson(0.4)
    for y, mean, var in ((-1.0, 0.1, 0.3), (0.0, 0.1, 0.3), (5.0, 1.2, 0.5), (40.0, 3.0, 0.1)):
        want = integrate.quad(
            lambda f, y=y, mean=mean, var=var: (
                stats.poisson.cdf(y, np.exp(0.4 + f)) * stats.norm.pdf(f, mean, np.sqrt(var))
            ),
            mean - 9 * np.sqrt(var), mean + 9 * np.sqrt(var),
        )[0]  # fmt: skip
        got = likelihood.cdf(np.array([y]), np.array([mean]), np.array([var]))[0]
        assert got == pytest.approx(want, abs=1e-6)


def test_counts_drawn_from_their_rates_are_covered_at_every_level(rng):
    rates = rng.uniform(0.2, 8.0, 20_000)
    y = rng.poisson(rates)
    found = Numbers(
        y, rates, np.sqrt(rates), stats.poisson.logpmf(y, rates),
        stats.poisson.cdf(y - 1, rates), stats.poisson.cdf(y, rates),
    )  # fmt: skip
    for level in (0.1, 0.5, 0.9, 0.95):
        assert abs(found.coverage(level) - level) < 4 * np.sqrt(level * (1 - level) / len(y))
    assert found.pit(10).sum() == pytest.approx(1.0)
    assert np.abs(found.pit(10) - 0.1).max() < 0.01


def test_a_count_on_the_edge_of_an_interval_belongs_to_it_in_part():
    # from P(Y < y) = 0.2 to P(Y ≤ y) = 0.6: of these 0.4, 0.35 are within 0.25 to 0.75
    one = Numbers(*(np.array([v]) for v in (1.0, 1.0, 1.0, 0.0, 0.2, 0.6)))
    assert one.coverage(0.5) == pytest.approx(0.35 / 0.4)
    np.testing.assert_allclose(one.pit(5), [0.0, 0.5, 0.5, 0.0, 0.0], atol=1e-12)


def test_diagnosis_of_counts_and_of_left_out_rows(rng):
    X = rng.uniform(-2, 2, (600, 1))
    y = rng.poisson(np.exp(1 + np.sin(2 * X[:, 0])))
    model = ExpertGPRegressor(
        points_per_expert=200, likelihood="poisson", n_inducing=15, kernel="rbf", random_state=0
    ).fit(X, y)
    found = diagnose(model)
    assert found.n == 600
    assert found.crps is None
    assert found.nlpd == pytest.approx(-model.log_predictive_density(X, y).mean(), abs=0.05)
    for level, share in found.coverage.items():
        assert abs(share - level) < 3.5 * np.sqrt(level * (1 - level) / 600)
    assert "CRPS" not in str(found)


def test_reliability_is_that_of_a_loop(rng):
    p = rng.dirichlet(np.ones(3), 500)
    y = np.array([rng.choice(3, p=row) for row in p])
    found = Classes(y, p)
    confidence, right, n = found.reliability(5)
    order = np.argsort(p.max(axis=1))
    assert n.sum() == 500
    start = 0
    for c, r, size in zip(confidence, right, n, strict=True):
        group = order[start : start + size]
        assert c == pytest.approx(np.mean([max(p[i]) for i in group]))
        assert r == pytest.approx(np.mean([np.argmax(p[i]) == y[i] for i in group]))
        start += size
    sure = Classes(np.zeros(50, int), np.tile([1.0, 0.0], (50, 1)))
    assert [len(part) for part in sure.reliability(5)] == [1, 1, 1]


def test_classes_of_left_out_rows(rng):
    X = rng.normal(size=(300, 2))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(300) > 0, "up", "down")
    model = ExpertGPClassifier(points_per_expert=100, n_inducing=10, random_state=0).fit(X, y)
    found = evidence(model)
    np.testing.assert_array_equal(model.classes_[found.prediction.y], y[found.rows])
    assert 0.8 < found.prediction.accuracy < 0.98
    _, inputs, experts = training_inputs(model, 1000)
    order = np.argsort(model.labels_, kind="stable")
    np.testing.assert_allclose(inputs, X[order], atol=1e-12)
    np.testing.assert_array_equal(np.unique(model.labels_)[experts], model.labels_[order])


@pytest.mark.parametrize("rule", ["gpoe", "nested", "grbcm"])
def test_left_out_rows_of_a_model_that_has_grown(rng, rule):
    X = rng.uniform(-3, 3, (400, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(400)
    weighting = "entropy" if rule == "grbcm" else "softmax_variance"
    model = ExpertGPRegressor(
        points_per_expert=50, kernel="rbf", aggregation=rule, weighting=weighting, random_state=0
    )
    model.fit(X[:200], y[:200])
    for start in range(200, 400, 40):
        model.partial_fit(X[start : start + 40], y[start : start + 40])
        found = evidence(model)
        assert len(np.unique(found.rows)) == len(found.rows)
        np.testing.assert_allclose(found.prediction.y, y[found.rows], rtol=1e-9)
    assert diagnose(model).rmse < 0.3
    _, inputs, experts = training_inputs(model, 100)
    assert len(np.unique(inputs, axis=0)) == 100
    for place, expert in zip(inputs, experts, strict=True):
        (row,) = np.flatnonzero(np.isclose(X, place).all(axis=1))
        assert model.labels_[row] == expert


def test_every_setting_of_the_nested_rule_has_its_own_number_of_experts(rng):
    X = rng.uniform(-3, 3, (300, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(300)
    model = ExpertGPRegressor(
        points_per_expert=50, kernel="rbf", aggregation="nested", random_state=0
    ).fit(X, y)
    settings = [{"n_nearest": 1}, {"n_nearest": 6}]
    both = [p.nlpd for p in evidence(model, settings=settings).predictions]
    assert both == [evidence(model, settings=[s]).prediction.nlpd for s in settings]
    assert both[0] != both[1]
