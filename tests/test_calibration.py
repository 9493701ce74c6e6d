"""Leave-one-out against refitting without the row; the temperature where the answer is known."""

import numpy as np
import pytest

from healgp import ExpertGPClassifier, ExpertGPRegressor, calibration, datasets, metrics
from healgp.deviations import GAUSSIAN
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.experts.sparse import SparseCommittee
from healgp.kernels import KERNELS, Hyperparameters
from healgp.likelihoods import Gaussian
from healgp.nested import nested
from healgp.prediction import Setting

THETA = Hyperparameters(np.array([0.7, 1.5]), 1.3, 0.2, 0.8)


@pytest.fixture
def rows(rng):
    X = rng.uniform(-2, 2, (60, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.3 * rng.standard_normal(60)


GROUPS = [np.arange(0, 25), np.arange(25, 26), np.arange(26, 60)]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("keep", [True, False])
def test_exact_experts_without_a_row(kernel, keep, rows, monkeypatch):
    X, y = rows
    if not keep:
        monkeypatch.setattr("healgp.experts.committee.FACTOR_BYTES", 0)
    committee = Committee.from_groups(X, y, GROUPS, kernel, THETA)
    asked = np.array([0, 3, 24, 25, 26, 41, 59])
    with LocalEngine(2, committee.work) as engine:
        committee.prepare(engine)
        owner, mean, var = committee.leave_one_out(asked, engine)
        assert owner.tolist() == [0, 0, 0, 1, 2, 2, 2]
        for i, j, m, v in zip(asked, owner, mean, var, strict=True):
            rest = GROUPS[j][GROUPS[j] != i]
            if not len(rest):
                assert (m, v) == (pytest.approx(0.0, abs=1e-9), pytest.approx(1.3))
                continue
            other = Committee.from_groups(X, y, [rest], kernel, THETA)
            other.prepare(engine)
            expected = other.moments(X[[i]], 0, 1, engine)
            np.testing.assert_allclose([m, v], np.ravel(expected), rtol=1e-7, atol=1e-9)
        # the mean is the combination of the other rows' y that it says it is
        mean, _, a = committee.without(np.array([30, 26]), 2, engine, True)
        np.testing.assert_allclose(a @ y[26:], mean, rtol=1e-9)
        assert a[0, 4] == a[1, 0] == 0.0


def test_nested_without_a_row_in_several_blocks(rows, monkeypatch):
    X, y = rows
    committee = Committee.from_groups(X, y, GROUPS, "rbf", THETA)
    asked, answers = np.arange(0, 60, 3), []
    with LocalEngine(1, committee.work) as engine:
        committee.prepare(engine)
        without = calibration.LeaveOneOut(committee, asked, engine)
        for limit in (4096, 7):
            monkeypatch.setattr("healgp.nested._ROWS", limit)
            answers.append(nested(without, X[asked], 2, engine))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-9)


def test_sparse_experts_without_a_row(rows):
    """With a Gaussian likelihood: at the same inducing inputs, q from the other rows alone."""
    X, y = rows
    rng = np.random.default_rng(1)
    with LocalEngine(1, [60]) as engine:
        committee = SparseCommittee.from_groups(
            X, y, [np.arange(60)], "matern32", THETA, Gaussian(np.log(0.2)), 15, rng, engine
        )
        committee.prepare(engine)
        asked = np.array([0, 17, 59])
        owner, mean, var = committee.leave_one_out(asked, engine)
        assert owner.tolist() == [0, 0, 0]
        for i, m, v in zip(asked, mean, var, strict=True):
            rest = np.delete(np.arange(60), i)
            other = SparseCommittee.from_groups(
                X[rest], y[rest], [np.arange(59)], "matern32", THETA, Gaussian(np.log(0.2)), 15,
                np.random.default_rng(1), engine,
            )  # fmt: skip
            other.Z = committee.Z
            other.prepare(engine)
            expected = other.moments(X[[i]], 0, 1, engine)
            np.testing.assert_allclose([m, v], np.ravel(expected), rtol=1e-6)


@pytest.mark.parametrize("space", ["f", "y"])
@pytest.mark.parametrize("rule", ["gpoe", "rbcm", "barycenter", "wasserstein", "grbcm", "nested"])
def test_curve_is_that_of_refitting_without_each_row(rule, space, rows):
    X, y = rows
    labels = np.arange(60) % 3
    fixed = dict(
        kernel="rbf", lengthscale=[0.7, 1.5], signal_variance=1.3, noise_variance=0.2, max_iter=0,
        standardize=False, points_per_expert=10, random_state=0, aggregation=rule, space=space,
        temperature=3.0,
    )  # fmt: skip
    model = ExpertGPRegressor(partition=labels, **fixed).fit(X, y)
    committee, left = model._committee, []
    asked = np.setdiff1d(np.arange(60), model._communication)[::9]
    if rule == "grbcm":  # the communication set is drawn: give the smaller model the same one
        chosen = model._communication
    for i in asked:
        ends = np.cumsum(committee.sizes - (np.arange(3) == i // 20))
        other = Committee.from_groups(
            committee.inputs(np.delete(np.arange(60), i)), np.delete(committee.y, i),
            np.split(np.arange(59), ends[:-1]), "rbf", committee.theta,
        )  # fmt: skip
        smaller = ExpertGPRegressor(partition=np.delete(labels, i), **fixed).fit(
            np.delete(X, i, 0), np.delete(y, i)
        )
        smaller._committee, smaller._grbcm = other, None
        if rule == "grbcm":
            smaller._communication = chosen - (chosen > i)
        left.append(smaller.log_predictive_density(committee.inputs([i]), committee.y[[i]])[0])
    model._calibration_rows = asked
    setting = model._setting({})
    if rule == "nested":
        with LocalEngine(1, committee.work) as engine:
            committee.prepare_once(engine)
            without = calibration.LeaveOneOut(committee, asked, engine)
            from healgp.nested import nested

            mean, var = nested(without, committee.inputs(asked), 8, engine)
        values = metrics.log_density(committee.y[asked], mean, np.sqrt(var + 0.2))
        np.testing.assert_allclose(values, left, rtol=1e-6)
        return
    original = calibration.GRID
    try:
        calibration.GRID = np.array([3.0, 3.0])
        curve = model._leave_one_out(setting)
    finally:
        calibration.GRID = original
    assert curve.nlpd[0] == pytest.approx(-np.mean(left), rel=1e-7)


def test_one_good_expert_among_bad_ones_is_left_to_speak(rng):
    # all that is known about x is with the expert that owns its half of the line
    X = np.sort(rng.uniform(0, 1, 400))[:, None]
    y = np.sin(40 * X[:, 0]) + 0.05 * rng.standard_normal(400)
    model = ExpertGPRegressor(
        points_per_expert=100, partition=np.arange(400) // 100, kernel="rbf",
        aggregation="barycenter",
    ).fit(X, y)  # fmt: skip
    temperatures, nlpd = model.temperature_curve_
    assert model.temperature_ > 10 * temperatures[0]
    assert nlpd[0] > nlpd.min() + 0.1
    weights = model.expert_weights(X)
    assert np.mean(weights.argmax(axis=0) == model.labels_) > 0.98
    assert weights.max(axis=0).mean() > 0.98
    assert model.temperature_ == temperatures[nlpd.argmin()]


def test_equal_experts_do_not_care(capsys):
    X = np.tile(np.linspace(0, 1, 20)[:, None], (3, 1))
    y = np.sin(5 * X[:, 0])
    model = ExpertGPRegressor(
        points_per_expert=20, partition=np.repeat([0, 1, 2], 20), kernel="rbf", max_iter=0,
        aggregation="gpoe", random_state=0, lengthscale=0.5, noise_variance=0.5, verbose=1,
    ).fit(X, y)  # fmt: skip
    mean, _ = model.expert_moments(X[:5])
    np.testing.assert_allclose(mean - mean[0], 0.0, atol=1e-12)
    flat = calibration.Curve(calibration.GRID, np.full(len(calibration.GRID), 0.3))
    assert not flat.matters
    assert flat.chosen(2) == calibration.INDIFFERENT
    alone = ExpertGPRegressor(points_per_expert=None, verbose=1).fit(X, y)
    assert alone.temperature_ == calibration.INDIFFERENT
    assert "does not matter" in capsys.readouterr().out


def test_every_rule_and_weighting_finds_a_temperature(rows):
    X, y = rows
    model = ExpertGPRegressor(points_per_expert=12, random_state=0, kernel="rbf").fit(X, y)
    for rule in ("gpoe", "rbcm", "grbcm", "barycenter", "wasserstein"):
        for weighting in ("softmax_variance", "softmax_entropy", "softmax_wasserstein"):
            for space in "fy":
                model.set_params(aggregation=rule, weighting=weighting, space=space)
                assert model.temperature_ in calibration.GRID
                assert np.isfinite(model.predict(X)).all()
    model.set_params(weighting="entropy", aggregation="rbcm", space="f").predict(X)
    with pytest.raises(ValueError, match="has no temperature"):
        _ = model.temperature_curve_


def test_calibrate_on_held_out_rows():
    X, y = datasets.robot_arm(1500, seed=3)
    model = ExpertGPRegressor(
        points_per_expert=100, random_state=0, aggregation="gpoe", kernel="rbf"
    ).fit(X[:1000], y[:1000])
    by_loo = model.temperature_
    assert model.calibrate(X[1000:], y[1000:]) is model
    best = min(
        calibration.GRID,
        key=lambda t: metrics.nlpd(
            y[1000:], *model.predict_many(X[1000:], [dict(temperature=float(t))])[0]
        ),
    )
    assert model.temperature_ == best
    assert 0.1 < by_loo / best < 10
    with pytest.raises(ValueError, match="shape"):
        model.calibrate(X[:5], y[:4])
    with pytest.raises(ValueError, match="set_params"):
        model.set_params(temperature=5.0).calibrate(X[1000:], y[1000:])


def test_classes_and_counts_too(rng):
    X = rng.uniform(-2, 2, (300, 2))
    classes = (np.sin(2 * X[:, 0]) > X[:, 1]).astype(int) + (X[:, 1] > 1)
    classifier = ExpertGPClassifier(
        points_per_expert=60, n_inducing=20, temperature="auto", random_state=0, max_iter=30
    ).fit(X, classes)
    assert classifier.temperature_ in calibration.GRID
    assert classifier.calibrate(X[:50], classes[:50]).temperature_ in calibration.GRID
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1.0)
    counts = rng.poisson(np.exp(1 + np.sin(2 * X[:, 0])))
    model = ExpertGPRegressor(
        points_per_expert=100, n_inducing=20, likelihood="poisson", random_state=0
    ).fit(X, counts)
    assert model.temperature_ in calibration.GRID
    assert model.aggregation_ == "gpoe"


def test_wrong_temperatures_are_refused(rows):
    for wrong in ("hot", -1.0, None, np.nan):
        with pytest.raises(ValueError, match="temperature"):
            ExpertGPRegressor(temperature=wrong).fit(*rows)


def test_setting_keys_do_not_depend_on_the_temperature():
    a = Setting("gpoe", "softmax_variance", 1.0, None, "f")
    assert calibration.has_temperature(a)
    assert not calibration.has_temperature(Setting("poe", "softmax_variance", 1.0, None, "f"))
    assert not calibration.has_temperature(Setting("gpoe", "entropy", 1.0, None, "f"))


def test_many_experts_take_the_largest_temperature_that_is_about_as_good():
    curve = calibration.Curve(np.array([1.0, 10.0, 100.0, 1000.0]), np.array([1, 0.5, 0.501, 0.6]))
    assert curve.chosen(10) == 10.0
    assert curve.chosen(100) == 100.0


def test_deviations_follow_what_is_left_out(rng):
    # noise is bounded below, and here there is none: the deviations are ten times too large
    X = rng.uniform(-2, 2, (1200, 2))
    y = np.sin(X[:, 0]) * np.cos(X[:, 1])
    model = ExpertGPRegressor(points_per_expert=300, kernel="rbf", random_state=0)
    model.fit(X[:900], y[:900])
    assert model.deviation_scale_ < 0.8
    mean, std = model.predict(X[900:], return_std=True)
    plain = model.predict_many(X[900:], [{"aggregation": model.aggregation_}])[0]
    np.testing.assert_array_equal(mean, plain[0])
    said = model._setting({}).deviations
    known = plain[1] <= said.known  # beyond what left-out rows have, the rest is the model's own
    assert known.mean() > 0.98
    np.testing.assert_allclose(std[known], model.deviation_scale_ * plain[1][known], rtol=1e-12)
    np.testing.assert_allclose(std, said.reported(plain[1]), rtol=1e-12)
    assert metrics.nlpd(y[900:], mean, std) < metrics.nlpd(y[900:], *plain) - 0.05
    np.testing.assert_allclose(
        np.diag(model.predict(X[900:950], return_cov=True)[1]), std[:50] ** 2
    )
    # with noise that the model can have, and with a rule that was given, it leaves them alone
    noisy = y + 0.3 * rng.standard_normal(len(y))
    assert model.fit(X[:900], noisy[:900]).deviation_scale_ == 1.0
    assert model.set_params(aggregation="gpoe").fit(X[:900], y[:900]).deviation_scale_ == 1.0


def test_the_nested_rule_must_gain_more_where_it_costs_more():
    def judged(gain):
        return {"gpoe": (np.zeros(9), GAUSSIAN), "nested": (np.full(9, gain), GAUSSIAN)}

    for gain, n_experts, chosen in (
        (0.001, 10, "gpoe"), (0.003, 10, "nested"), (0.009, 1000, "gpoe"), (0.011, 1000, "nested"),
    ):  # fmt: skip
        found = calibration.Comparison.of(judged(gain), n_experts)
        assert found.chosen == chosen
        assert found.scores == {"gpoe": 0.0, "nested": pytest.approx(-gain)}


def test_calibration_holds_when_what_it_does_not_depend_on_changes(rng):
    X = rng.uniform(-3, 3, (400, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(400)
    model = ExpertGPRegressor(points_per_expert=50, kernel="rbf", aggregation="gpoe")
    model.fit(X[:300], y[:300]).calibrate(X[300:], y[300:])
    found = model.temperature_curve_[1]
    model.set_params(n_nearest=4)
    np.testing.assert_array_equal(model.temperature_curve_[1], found)
