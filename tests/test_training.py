"""Training in stages against training on everything."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from healgp import ExpertGPRegressor, metrics, training
from healgp.datasets import robot_arm
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee, ExpertError
from healgp.kernels import Hyperparameters


def committee_of(rng, n_experts, rows=30):
    X = rng.uniform(-3, 3, (n_experts * rows, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.standard_normal(len(X))
    groups = np.array_split(np.argsort(X[:, 0]), n_experts)
    return Committee.from_groups(X, y, groups, "rbf", Hyperparameters(np.ones(2), 1.0, 0.1))


def test_progressive_training_finds_what_full_training_finds(rng):
    committee = committee_of(rng, 300)
    start = committee.theta
    limits = True, 100, np.ones(2), 1.0
    with LocalEngine(1, committee.work) as engine:
        full = training.train(committee, *limits, engine)
        best = committee.objective(full.theta, engine)[0] / len(committee.y)
        for seed in range(3):
            committee.theta = start
            some = np.random.default_rng(seed)
            found = training.train_progressively(committee, *limits, some, engine)
            value = committee.objective(found.theta, engine)[0] / len(committee.y)
            assert best - value < 0.002


def test_few_experts_are_all_trained_from_the_start(rng):
    committee = committee_of(rng, 20)
    limits = True, 100, np.ones(2), 1.0
    with LocalEngine(1, committee.work) as engine:
        full = training.train(committee, *limits, engine)
        found = training.train_progressively(committee, *limits, rng, engine)
    assert np.array_equal(found.theta.to_log(True, False), full.theta.to_log(True, False))


def test_stages_touch_fewer_experts_than_full_training(rng, monkeypatch):
    asked = []
    objective = Committee.objective

    def counting(self, theta, engine):
        asked.append(self.n_experts)
        return objective(self, theta, engine)

    monkeypatch.setattr(Committee, "objective", counting)
    committee = committee_of(rng, 640)
    with LocalEngine(1, committee.work) as engine:
        training.train_progressively(committee, True, 100, np.ones(2), 1.0, rng, engine)
    assert asked[0] == 32
    assert sum(asked) < 0.5 * 640 * len(asked)


def test_control_c_in_a_stage_ends_training(rng, monkeypatch):
    objective, calls = Committee.objective, []

    def interrupting(self, theta, engine):
        calls.append(self.n_experts)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return objective(self, theta, engine)

    monkeypatch.setattr(Committee, "objective", interrupting)
    committee = committee_of(rng, 300)
    with LocalEngine(1, committee.work) as engine, pytest.warns(UserWarning, match="interrupted"):
        training.train_progressively(committee, True, 100, np.ones(2), 1.0, rng, engine)
    assert len(calls) == 5


def test_an_unknown_way_to_train_is_refused(wave):
    with pytest.raises(ValueError, match=r"training='half'.*progressive, full"):
        ExpertGPRegressor(training="half").fit(wave[0], wave[1])


@pytest.mark.parametrize("rows", [None, 2000])
def test_lengthscales_too_short_for_many_columns(rng, rows):
    # in 40 columns nothing is near anything, and the gradient is that of noise alone
    X = rng.standard_normal((600, 40))
    y = X.sum(axis=1) / np.sqrt(40) + 0.5 * rng.standard_normal(600)
    job = dict(points_per_expert=rows, kernel="rbf", random_state=0)
    model = ExpertGPRegressor(**job).fit(X[:400], y[:400])
    near = ExpertGPRegressor(lengthscale=10.0, noise_variance=0.3, **job).fit(X[:400], y[:400])
    best = near.log_marginal_likelihood_
    assert model.log_marginal_likelihood_ == pytest.approx(best, rel=1e-4)
    assert metrics.rmse(model.predict(X[400:]), y[400:]) < 0.8 * y.std()


@pytest.mark.filterwarnings("ignore:Training stopped")  # the search in 20 columns is long
@pytest.mark.parametrize(
    ("n", "D", "seed", "parameters"),
    [(300, 10, 0, {}), (300, 10, 1, {}), (1000, 20, 1, {}), (300, 1, 0, {}),
     (1000, 10, 0, {"kernel": "rbf", "partition": "random"}),
     (2000, 10, 0, {"kernel": "rbf", "partition": "random"})],
)  # fmt: skip
def test_noise_alone_is_known_to_be_that(n, D, seed, parameters):
    rng = np.random.default_rng(seed)
    X, y, again = rng.standard_normal((n, D)), rng.standard_normal(n), rng.standard_normal(n)
    model = ExpertGPRegressor(random_state=0, **parameters).fit(X, y)
    mean, std = model.predict(X, return_std=True)  # where short lengthscales would know y
    z = (again - mean) / std
    assert model.noise_variance_ > 0.9
    assert 0.85 < np.sqrt(np.mean(z**2)) < 1.15
    assert abs(np.mean(np.abs(z) < 1.96) - 0.95) < 3 * np.sqrt(0.95 * 0.05 / n)


def test_noise_alone_for_want_of_iterations_is_said(rng):
    X, y = rng.standard_normal((300, 10)), rng.standard_normal(300)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 "):
        model = ExpertGPRegressor(kernel="rbf", max_iter=1, random_state=0).fit(X, y)
    assert model.noise_variance_ > 0.9


@pytest.mark.parametrize(("seed", "kernel"), [(0, "rbf"), (1, "rbf"), (0, "auto")])
def test_a_weak_signal_is_not_noise(seed, kernel):
    """A hundredth of y's variance: the gain per row is tiny, that of all rows is not."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.7, 1.7, (7000, 3))
    f = 0.17 * np.sin(5 * X[:, 0])
    y = f + rng.standard_normal(7000)
    model = ExpertGPRegressor(
        points_per_expert=250, partition="random", kernel=kernel, random_state=0
    )
    mean = model.fit(X[:4000], y[:4000]).predict(X[4000:])
    assert np.sqrt(np.mean((mean - f[4000:]) ** 2)) < 0.8 * f.std()


def test_few_small_experts_do_not_speak_for_all():
    """The first 32 of 200 experts of ten rows show less than chance might."""
    X, y = robot_arm(3000)
    model = ExpertGPRegressor(10, partition="random", kernel="rbf", random_state=0)
    assert model.fit(X[:2000], y[:2000]).score(X[2000:], y[2000:]) > 0.7
    alone = ExpertGPRegressor(1, kernel="rbf", random_state=0).fit(X[:2000], y[:2000])
    assert alone.noise_variance_ < 0.2 * alone.signal_variance_  # as it began


def test_y_that_is_constant():
    constant = ExpertGPRegressor(points_per_expert=None).fit(np.arange(9.0)[:, None], np.ones(9))
    np.testing.assert_allclose(constant.predict([[3.5]]), 1.0)


def test_a_second_start_that_fails_leaves_what_was_found(rng, monkeypatch):
    X, y = rng.standard_normal((200, 5)), rng.standard_normal(200)
    theta = Hyperparameters(np.ones(5), 1.0, 0.1)
    committee = Committee.from_groups(X, y, np.split(np.arange(200), 4), "rbf", theta)
    assert committee.squares() == pytest.approx([(part**2).sum() for part in np.split(y, 4)])
    objective, failed = Committee.objective, []

    def failing(self, theta, engine):
        if (theta.lengthscales == np.exp(0.5 * np.log(5))).all():
            failed.append(theta)
            raise ExpertError("it is singular")
        return objective(self, theta, engine)

    monkeypatch.setattr(Committee, "objective", failing)
    with LocalEngine(1, committee.work) as engine:
        found = training.train(committee, True, 100, np.ones(5), 1.0, engine)
        assert len(failed) == 1
        assert not found.stopped
        assert found.is_noise
        expected = objective(committee, found.theta, engine)[0] / 200
        assert found.value == pytest.approx(expected, rel=1e-4)
        found = training.train(
            committee, True, 100, np.ones(5), 1.0, engine, asked=0.0
        )  # fmt: skip
        assert len(failed) == 2
        expected = objective(committee, found.theta, engine)[0] / 200
    assert found.value == pytest.approx(expected, rel=1e-12)
