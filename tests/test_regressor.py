"""The estimator: scikit-learn's law, determinism, interruption, and what users do with it."""

import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from healgp import ExpertGPClassifier, ExpertGPRegressor, calibration, metrics, selection
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee, ExpertError
from healgp.experts.sparse import SparseCommittee


@parametrize_with_checks([ExpertGPRegressor(), ExpertGPRegressor(points_per_expert=10)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_one_expert_trains_to_scikit_learns_optimum(wave):
    X, y, new = wave
    model = ExpertGPRegressor(points_per_expert=None, standardize=False).fit(X, y)
    kernel = ConstantKernel() * RBF(np.ones(2)) + WhiteKernel(0.1)
    reference = GaussianProcessRegressor(kernel).fit(X, y)
    assert model.log_marginal_likelihood_ == pytest.approx(
        reference.log_marginal_likelihood_value_, abs=1e-3
    )
    mean, std = reference.predict(new, return_std=True)
    ours = model.predict(new, return_std=True)
    np.testing.assert_allclose(ours[0], mean, atol=1e-3)
    np.testing.assert_allclose(ours[1], std, atol=1e-3)  # scikit-learn's includes WhiteKernel


@pytest.mark.parametrize("partition", ["random", "kmeans", "balanced"])
def test_same_seed_same_model_for_any_number_of_threads(wave, partition):
    X, y, new = wave
    models = [
        ExpertGPRegressor(
            points_per_expert=20, partition=partition, n_jobs=n_jobs, random_state=7
        ).fit(X, y)
        for n_jobs in (1, 2, 3, None)
    ]
    predictions = [m.predict(new, return_std=True) for m in models]
    for m, p in zip(models, predictions, strict=True):
        assert np.array_equal(m.lengthscales_, models[0].lengthscales_)
        assert np.array_equal(p, predictions[0])
    other = ExpertGPRegressor(points_per_expert=20, partition=partition, random_state=8).fit(X, y)
    assert partition == "balanced" or not np.array_equal(other.labels_, models[0].labels_)


def test_fitted_attributes(wave):
    X, y, _ = wave
    model = ExpertGPRegressor(
        points_per_expert=40, random_state=0, ard=False, kernel="rbf", temperature=100.0
    ).fit(X, y)
    assert model.n_experts_ == 5
    assert sorted(set(model.labels_)) == list(range(5))
    assert model.lengthscales_.shape == (2,)
    assert model.lengthscales_[0] == model.lengthscales_[1]
    assert model.temperature_ == 100.0
    assert model.n_iter_ >= 1
    assert not hasattr(model, "alpha_")
    model.set_params(temperature=5)
    assert model.temperature_ == 5.0
    model.set_params(kernel="rational_quadratic").fit(X, y)
    assert 0.01 <= model.alpha_ <= 1000
    assert not hasattr(model.set_params(kernel="rbf").fit(X, y), "alpha_")


def test_max_iter_zero_keeps_the_starting_values(wave):
    X, y, _ = wave
    model = ExpertGPRegressor(
        max_iter=0, lengthscale=[1e-3, 5.0], signal_variance=3.0, noise_variance=1e-7
    ).fit(X, y)
    assert model.lengthscales_.tolist() == [1e-3, 5.0]
    assert (model.signal_variance_, model.noise_variance_, model.n_iter_) == (3.0, 1e-7, 0)


def test_training_improves_and_stays_within_bounds(wave):
    X, y, _ = wave
    start = ExpertGPRegressor(points_per_expert=50, max_iter=0, random_state=0).fit(X, y)
    model = ExpertGPRegressor(points_per_expert=50, random_state=0).fit(X, y)
    assert model.log_marginal_likelihood_ > start.log_marginal_likelihood_ + 10
    noiseless = ExpertGPRegressor(points_per_expert=50, random_state=0).fit(X, X[:, 0])
    assert noiseless.noise_variance_ >= 1e-5 * (1 - 1e-9)
    assert (noiseless.lengthscales_ <= 200 * (1 + 1e-9)).all()
    np.testing.assert_allclose(noiseless.predict(X), X[:, 0], atol=0.02)


def test_units(wave):
    """Standardising makes the units of X and y irrelevant, and predictions come back in y's."""
    X, y, new = wave
    scale, shift = np.array([1e6, 1e-9]), np.array([-3e7, 1.0])
    a = ExpertGPRegressor(points_per_expert=50, random_state=0).fit(X, y)
    b = ExpertGPRegressor(points_per_expert=50, random_state=0).fit(X * scale + shift, 1e4 * y + 7)
    mean, std = a.predict(new, return_std=True)
    moved, wider = b.predict(new * scale + shift, return_std=True)
    np.testing.assert_allclose(moved, 1e4 * mean + 7, rtol=1e-4, atol=1)
    np.testing.assert_allclose(wider, 1e4 * std, rtol=1e-4)
    density = a.log_predictive_density(new, mean)
    np.testing.assert_allclose(density, -np.log(std * np.sqrt(2 * np.pi)))


def test_interval_latent_and_score(wave):
    X, y, new = wave
    model = ExpertGPRegressor(points_per_expert=50, random_state=0).fit(X, y)
    mean, std = model.predict(new, return_std=True)
    lower, upper = model.predict_interval(new, coverage=0.9)
    np.testing.assert_allclose((lower + upper) / 2, mean)
    np.testing.assert_allclose(upper - lower, 2 * 1.6448536269514722 * std)
    f_mean, f_var = model.predict_f(new)
    np.testing.assert_allclose(f_mean, mean)
    np.testing.assert_allclose(f_var + model.noise_variance_ * y.var(), std**2)
    assert model.score(X, y) > 0.9
    for coverage in (0, 1, 1.5, "x"):
        with pytest.raises(ValueError, match="coverage"):
            model.predict_interval(new, coverage)
    with pytest.raises(ValueError, match="space='f'"):
        model.set_params(space="y").predict_f(new)


def test_pipelines_searches_clones_and_pickles(wave):
    X, y, new = wave
    model = ExpertGPRegressor(points_per_expert=50, random_state=0)
    assert cross_val_score(make_pipeline(PolynomialFeatures(2), model), X, y, cv=3).min() > 0.5
    search = GridSearchCV(model, {"kernel": ["rbf", "matern32"], "temperature": [1.0, 100.0]}, cv=2)
    search.fit(X, y)
    assert search.best_score_ > 0.8
    assert "kernel" in search.best_params_
    model.fit(X, y)
    assert clone(model).get_params() == model.get_params()
    for aggregation in ("gpoe", "grbcm"):
        mean = model.set_params(aggregation=aggregation).predict(new)
        copy = pickle.loads(pickle.dumps(model))
        assert np.array_equal(copy.predict(new), mean)
    assert len(pickle.dumps(model)) < 20 * X.nbytes


def test_dataframes_check_names(wave):
    X, y, new = wave
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = ExpertGPRegressor(points_per_expert=50, random_state=0).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["a", "b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = model.predict(pd.DataFrame(new, columns=["a", "b"]))
    assert np.array_equal(ours, ExpertGPRegressor(50, random_state=0).fit(X, y).predict(new))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pd.DataFrame(new, columns=["b", "a"]))


def test_progress_is_shown_only_when_asked_for(wave, capsys):
    X, y, new = wave
    ExpertGPRegressor(50, random_state=0).fit(X, y).predict(new)
    quiet = capsys.readouterr()
    assert quiet.out == ""
    assert "training" not in quiet.err
    ExpertGPRegressor(50, random_state=0, verbose=1).fit(X, y).predict(new)
    shown = capsys.readouterr().err
    assert "training" in shown
    assert "log p per row" in shown
    assert "predicting" in shown


def test_control_c_keeps_the_best_so_far(wave, monkeypatch):
    X, y, new = wave
    evaluations = []
    objective = Committee.objective

    def interrupted(self, theta, engine):
        evaluations.append(theta)
        if len(evaluations) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return objective(self, theta, engine)

    monkeypatch.setattr(Committee, "objective", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = ExpertGPRegressor(50, random_state=0, kernel="rbf", ard=False).fit(X, y)
    assert len(evaluations) == 4
    assert any(t.noise_variance == model.noise_variance_ for t in evaluations)
    assert np.isfinite(model.predict(new)).all()


def interrupting(original, at):
    """A function that is interrupted when it is called for the at-th time; and its calls."""
    calls = []

    def function(*arguments):
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(*arguments)

    return function, calls


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
@pytest.mark.parametrize("during", ["the first kernel", "the last"])
def test_control_c_while_kernels_are_compared(wave, monkeypatch, during, likelihood, tmp_path):
    X, _, new = wave
    y = np.round(np.exp(X[:, 0])) if likelihood == "poisson" else np.sin(2 * X[:, 0])
    job = dict(points_per_expert=50, likelihood=likelihood, random_state=0, n_inducing=10)
    if likelihood == "gaussian":
        job["n_inducing"] = None
    whole = ExpertGPRegressor(**job).fit(X, y)
    first, *_, last = whole.kernel_scores_
    kernel = first if during == "the first kernel" else last
    objective, calls = Committee.objective, []

    def interrupted(self, theta, engine):
        calls.append(self.kernel)
        if calls.count(kernel) == 3:
            raise KeyboardInterrupt
        return objective(self, theta, engine)

    monkeypatch.setattr(Committee, "objective", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = ExpertGPRegressor(checkpoint=tmp_path / "c", **job).fit(X, y)
    assert model.n_iter_ == 0
    if during == "the first kernel":
        assert model.kernel_ == first
        assert model.kernel_scores_ == {}
        assert len(calls) < 8
    else:  # it was not trained, and is not compared
        others = {k: v for k, v in whole.kernel_scores_.items() if k != last}
        assert model.kernel_scores_ == others
        assert model.kernel_ == max(others, key=lambda k: others[k])
    assert np.isfinite(model.predict(new)).all()
    assert not (tmp_path / "c").exists()


def test_control_c_while_partitions_are_compared(wave, monkeypatch):
    X, y, _ = wave
    interrupted, _ = interrupting(selection.explains_better, 1)
    monkeypatch.setattr(selection, "explains_better", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = ExpertGPRegressor(50, kernel="rbf", random_state=0).fit(X, y)
    assert model.n_iter_ == 0
    assert metrics.rmse(model.predict(X), y) < 0.3  # with what the brief training found


def test_control_c_before_training_does_not_hide_heavy_tails(rng, monkeypatch):
    X = rng.uniform(-3, 3, (1500, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_t(3, 1500)
    interrupted, _ = interrupting(selection.explains_better, 1)
    monkeypatch.setattr(selection, "explains_better", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = ExpertGPRegressor(100, kernel="rbf", random_state=0).fit(X, y)
    assert model.n_iter_ == 0
    assert model.degrees_of_freedom_ < 6


@pytest.mark.parametrize("sparse", [{}, {"n_inducing": 10}])
def test_control_c_after_training_does_not_lose_it(wave, monkeypatch, sparse):
    X, y, _ = wave
    job = dict(points_per_expert=50, partition="random", kernel="rbf", random_state=0) | sparse
    whole = ExpertGPRegressor(**job).fit(X, y)
    kind = SparseCommittee if sparse else Committee
    interrupted, calls = interrupting(kind.prepare, 1)
    monkeypatch.setattr(kind, "prepare", interrupted)
    with pytest.warns(UserWarning, match="Interrupted"):
        model = ExpertGPRegressor(**job).fit(X, y)
    assert len(calls) == 2
    assert np.array_equal(model.lengthscales_, whole.lengthscales_)
    reached = "elbo_" if sparse else "log_marginal_likelihood_"
    assert getattr(model, reached) == getattr(whole, reached)


def test_control_c_while_inducing_inputs_are_chosen_keeps_the_kernel(wave, monkeypatch):
    X, y, _ = wave
    interrupted, calls = interrupting(SparseCommittee.from_groups, 1)
    monkeypatch.setattr(SparseCommittee, "from_groups", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = ExpertGPRegressor(50, n_inducing=10, random_state=0).fit(X, y)
    assert len(calls) == 2
    assert model.n_iter_ == 0
    assert len(model.kernel_scores_) > 1
    assert metrics.rmse(model.predict(X), y) < 0.3


def test_control_c_between_trainings_keeps_the_kernels_so_far(wave, monkeypatch):
    X, y, new = wave
    y = np.round(np.exp(y))
    objective, seen = Committee.objective, []

    def interrupted(self, theta, engine):
        seen.append(self.kernel)
        if len(set(seen)) == 3:  # the third kernel's first look at where to start
            raise KeyboardInterrupt
        return objective(self, theta, engine)

    monkeypatch.setattr(Committee, "objective", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = ExpertGPRegressor(
            points_per_expert=50, likelihood="poisson", n_inducing=10, random_state=0
        ).fit(X, y)
    assert list(model.kernel_scores_) == list(dict.fromkeys(seen))[:2]
    assert np.isfinite(model.predict(new)).all()


@pytest.mark.parametrize("kind", [ExpertGPRegressor, ExpertGPClassifier])
def test_control_c_while_the_temperature_is_chosen(wave, monkeypatch, kind):
    X, y, new = wave
    y = y if kind is ExpertGPRegressor else y > 0
    job = dict(points_per_expert=50, random_state=0)
    whole = kind(**job).fit(X, y)
    original = calibration.LeaveOneOut.__init__
    interrupted, _ = interrupting(original, 1)
    monkeypatch.setattr(calibration.LeaveOneOut, "__init__", interrupted)
    with pytest.warns(UserWarning, match="Training is done"):
        model = kind(**job).fit(X, y)
    monkeypatch.setattr(calibration.LeaveOneOut, "__init__", original)
    assert model.temperature_ == whole.temperature_  # chosen now
    assert np.array_equal(model.predict(new), whole.predict(new))


def test_a_fit_that_fails_at_its_end_leaves_the_earlier_one(wave, monkeypatch):
    X, y, new = wave
    model = ExpertGPRegressor(50, random_state=0).fit(X, y)
    before = model.predict(new, return_std=True)

    def fails(*arguments):
        raise MemoryError

    monkeypatch.setattr(calibration.LeaveOneOut, "__init__", fails)
    with pytest.raises(MemoryError):
        model.fit(np.c_[X, X], 10 * y)
    assert np.array_equal(model.predict(new, return_std=True), before)
    assert model.n_features_in_ == 2
    other = ExpertGPRegressor(50, random_state=0)
    with pytest.raises(MemoryError):
        other.fit(X, y)
    with pytest.raises(NotFittedError):
        other.predict(new)


def test_verbose_says_what_was_chosen(wave, capsys):
    X, y, _ = wave
    model = ExpertGPRegressor(5, random_state=0, verbose=1).fit(X, y)
    said = capsys.readouterr().out
    assert f"kernel: {model.kernel_};" in said
    assert all(f"{name} {score:.4f}" in said for name, score in model.kernel_scores_.items())
    temperatures, nlpd = model.temperature_curve_
    chosen = nlpd[temperatures == model.temperature_][0]
    assert f": {model.temperature_:.3g}, NLPD by leave-one-out {chosen:.4f}" in said


def test_a_failing_evaluation_keeps_the_best_so_far(wave, monkeypatch):
    X, y, new = wave
    objective, calls = Committee.objective, []

    def failing(self, theta, engine):
        calls.append(0)
        if len(calls) == 5:
            raise ExpertError("expert 3")
        return objective(self, theta, engine)

    monkeypatch.setattr(Committee, "objective", failing)
    with pytest.warns(ConvergenceWarning, match="best hyperparameters"):
        model = ExpertGPRegressor(50, random_state=0).fit(X, y)
    assert np.isfinite(model.predict(new)).all()


def test_stopping_early_warns(wave):
    X, y, _ = wave
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        ExpertGPRegressor(50, max_iter=2).fit(X, y)


def test_threads_that_fit_at_once(wave):
    X, y, new = wave
    make = lambda: ExpertGPRegressor(20, random_state=0).fit(X, y).predict(new)  # noqa: E731
    expected, results = make(), [None] * 4

    def work(i):
        results[i] = make()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(r, expected) for r in results)


def test_few_large_experts_give_blas_the_threads():
    for sizes, threads, blas in (
        ([5000], 1, 4), ([10, 5000, 20], 1, 4), ([5000] * 4, 4, 1), ([500], 1, 1), ([9] * 3, 3, 1)
    ):  # fmt: skip
        engine = LocalEngine(4, sizes)
        assert (engine.n_threads, engine._blas) == (threads, blas)


def test_unfitted_says_so(wave):
    for method in ("predict", "predict_f", "expert_moments", "expert_weights"):
        with pytest.raises(NotFittedError):
            getattr(ExpertGPRegressor(), method)(wave[2])


def test_healing_on_simulated_data():
    """What the library is for: with weak experts, healed rules beat the unhealed ones."""
    from healgp.datasets import robot_arm

    X, y = robot_arm(3300, seed=1)
    model = ExpertGPRegressor(points_per_expert=100, random_state=0).fit(X[:3000], y[:3000])
    rules = [
        dict(aggregation="gpoe"),
        dict(aggregation="barycenter"),
        dict(aggregation="poe"),
        dict(aggregation="gpoe", weighting="uniform"),
        dict(aggregation="bcm"),
    ]
    results = model.predict_many(X[3000:], rules)
    score = [metrics.nlpd(y[3000:], *r) for r in results]
    assert max(score[:2]) < min(score[2:])
    assert 0.92 < metrics.coverage(y[3000:], *results[0]) < 0.98
    assert metrics.coverage(y[3000:], *results[3]) > 0.97  # under-confident
