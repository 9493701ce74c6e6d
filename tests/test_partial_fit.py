"""Rows that come in batches against the same rows at once."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import naive
from healgp import ExpertGPRegressor, partition
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee, ExpertError
from healgp.linalg import extend
from healgp.routing import Guide

PLAIN = dict(
    points_per_expert=40, kernel="matern32", max_iter=0, lengthscale=[0.6, 1.0],
    noise_variance=0.02, aggregation="gpoe", temperature=30.0, random_state=0,
)  # fmt: skip
RULES = ("poe", "gpoe", "bcm", "rbcm", "grbcm", "barycenter", "wasserstein", "nested")


def function(X):
    return np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.2 * X[:, 1]


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, function(X) + 0.1 * rng.standard_normal(n)


def stream(X, y, first=300, batch=50, **parameters):
    model = ExpertGPRegressor(**PLAIN | parameters).fit(X[:first], y[:first])
    for start in range(first, len(X), batch):
        model.partial_fit(X[start : start + batch], y[start : start + batch])
    return model


def at_once(model, X, y):
    """The model with a committee made of all rows at once, by its labels, θ and scaling."""
    old = model._committee
    new = Committee.from_groups(
        model._scaling.inputs(X), model._scaling.targets(y), partition.groups(model.labels_),
        old.kernel, old.theta,
    )  # fmt: skip
    places = old.places(np.arange(len(X)))
    other = copy.deepcopy(model)
    other._committee, other._centres, other._grbcm, other._guide = new, None, None, None
    other._communication = np.searchsorted(places, model._communication)
    other._calibration_rows = np.searchsorted(places, model._calibration_rows)
    assert np.array_equal(places[other._communication], model._communication)
    return other


def drifting():
    """Batches that crowd one corner, then a region that no row of the fit was near."""
    X, y = rows(600)
    corner = X[300:450] * 0.3 + 1.3
    far = X[450:600] + 12.0
    X = np.concatenate([X[:450], corner, far])
    return X, np.append(y[:450], function(X[450:]))


@pytest.fixture(scope="module", params=["kmeans", "random", "own labels"])
def streamed(request):
    X, y = drifting()
    how = request.param
    first = np.arange(300) // 60 if how == "own labels" else how
    return X, y, stream(X, y, batch=37, partition=first)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("space", ["f", "y"])
def test_predictions_are_those_of_all_rows_at_once(streamed, rule, space):
    X, y, model = streamed
    new = np.concatenate([rows(60, 1)[0], rows(20, 2)[0] + 12.0, X[:5], X[-5:]])
    settings = [
        dict(aggregation=rule, space=space),
        dict(aggregation=rule, space=space, weighting="entropy", normalize_weights=True),
    ]
    for ours, expected in zip(
        model.predict_many(new, settings),
        at_once(model, X, y).predict_many(new, settings),
        strict=True,
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-10)


def test_each_expert_is_the_gp_of_its_rows(streamed):
    X, y, model = streamed
    new, theta = rows(30, 1)[0], model._committee.theta
    mean, var = model.expert_moments(new)
    Z, t = model._scaling.inputs(X), model._scaling.targets(y)
    total = 0.0
    for j in range(model.n_experts_):
        own = model.labels_ == j
        m, v, log_likelihood = naive.gp(
            "matern32", Z[own], t[own], model._scaling.inputs(new), theta.lengthscales,
            theta.signal_variance, theta.noise_variance,
        )  # fmt: skip
        np.testing.assert_allclose(mean[j], model._scaling.mean(m), rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(var[j], model._scaling.var(v), rtol=1e-6, atol=1e-10)
        total += log_likelihood
    assert model.log_marginal_likelihood_ == pytest.approx(total, rel=1e-9)


def test_sizes_are_bounded_and_no_row_is_lost(streamed):
    X, _, model = streamed
    sizes = np.bincount(model.labels_)
    assert len(model.labels_) == len(X)
    assert len(sizes) == model.n_experts_
    np.testing.assert_array_equal(sizes, model._committee.sizes)
    assert sizes.min() > 0
    assert sizes.max() <= 80
    own = model._committee.inputs(model._committee.places(np.arange(len(X))))
    order = np.argsort(model.labels_, kind="stable")
    np.testing.assert_array_equal(own, model._scaling.inputs(X[order]))


def test_joint_predictions_and_leave_one_out(streamed):
    X, y, model = streamed
    other = at_once(model, X, y)
    new = rows(7, 1)[0]
    for rule in ("gpoe", "grbcm", "nested"):
        ours, expected = (
            m.set_params(aggregation=rule).predict(new, return_cov=True) for m in (model, other)
        )
        np.testing.assert_allclose(ours[0], expected[0], rtol=1e-8)
        np.testing.assert_allclose(ours[1], expected[1], rtol=1e-7, atol=1e-9)
        if rule != "nested":
            curves = [m._leave_one_out(m._setting({})).nlpd for m in (model, other)]
            np.testing.assert_allclose(*curves, rtol=1e-8)
    model.set_params(aggregation="gpoe")


@pytest.fixture(scope="module")
def many():
    X, y = rows(3000)
    return X, y, stream(X, y, first=1500, batch=111, points_per_expert=30)


@pytest.mark.parametrize("rule", ["gpoe", "rbcm", "barycenter", "nested"])
def test_with_routing(many, rule):
    X, y, model = many
    settings, new = [dict(aggregation=rule, n_nearest=3)], rows(200, 1)[0]
    assert model._route(model._setting(settings[0])).experts > 0
    (ours,), (expected,) = (m.predict_many(new, settings) for m in (model, at_once(model, X, y)))
    np.testing.assert_allclose(ours, expected, rtol=1e-8)


def test_the_guide_is_the_one_made_at_once(many):
    _, _, model = many
    new = model._scaling.inputs(rows(100, 1)[0])
    with LocalEngine(2, [1, 1]) as engine:
        ours, fresh = model._guided(engine), Guide(model._committee, engine)
    for name in ("ZT", "W", "alpha", "centres", "radii"):
        np.testing.assert_allclose(
            getattr(ours.brief, name), getattr(fresh.brief, name), rtol=1e-6, atol=1e-9
        )
    np.testing.assert_array_equal(ours.order(new), fresh.order(new))


def test_new_rows_go_to_the_nearest_centre():
    X, y = rows(320)
    model = stream(X, y, first=300, batch=20)
    Z = model._scaling.inputs(X) / model.lengthscales_
    assert model.n_experts_ == 300 // 40
    centres = np.array([Z[:300][model.labels_[:300] == j].mean(axis=0) for j in range(7)])
    nearest = ((Z[300:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(model.labels_[300:], nearest)


def test_far_rows_found_an_expert_and_near_ones_do_not():
    X, y = rows(300)
    model = stream(X, y)
    J = model.n_experts_
    model.partial_fit(X[:3] + 100.0, y[:3])
    assert model.n_experts_ == J + 1
    assert (model.labels_[-3:] == J).all()
    model.partial_fit(X[3:5] + 100.0, y[3:5])
    assert model.n_experts_ == J + 1
    assert (model.labels_[-2:] == J).all()


def test_a_batch_much_larger_than_the_fit():
    X, y = rows(1000)
    model = stream(X, y, first=20, batch=980)
    sizes = np.bincount(model.labels_)
    assert len(sizes) >= 12
    assert sizes.min() >= 20
    assert sizes.max() <= 80
    new = rows(50, 1)[0]
    np.testing.assert_allclose(model.predict(new), at_once(model, X, y).predict(new), rtol=1e-9)


def test_one_exact_gp_stays_one():
    X, y = drifting()
    model = stream(X, y, batch=29, points_per_expert=None)
    assert model.n_experts_ == 1
    theta, new = model._committee.theta, rows(30, 1)[0]
    mean, _, _ = naive.gp(
        "matern32", model._scaling.inputs(X), model._scaling.targets(y), model._scaling.inputs(new),
        theta.lengthscales, theta.signal_variance, theta.noise_variance,
    )  # fmt: skip
    np.testing.assert_allclose(model.predict(new), model._scaling.mean(mean), rtol=1e-8)


def test_a_random_partition_is_decided_by_its_seed():
    X, y = rows(500)
    one, two = (stream(X, y, partition="random", batch=1, first=400) for _ in range(2))
    np.testing.assert_array_equal(one.labels_, two.labels_)
    assert len(np.unique(one.labels_[400:])) == 10


def test_the_first_rows_are_a_fit():
    X, y = rows(100)
    one = ExpertGPRegressor(**PLAIN).partial_fit(X, y)
    two = ExpertGPRegressor(**PLAIN).fit(X, y)
    assert np.array_equal(one.predict(X), two.predict(X))


def test_fitting_again_forgets_the_stream():
    X, y = rows(400)
    model = stream(X, y).fit(X[:300], y[:300])
    other = ExpertGPRegressor(**PLAIN).fit(X[:300], y[:300])
    assert np.array_equal(model.labels_, other.labels_)
    assert np.array_equal(model.predict(X), other.predict(X))


@pytest.mark.parametrize("budget", [0.0, 60_000.0, 300_000.0, 800_000.0])
def test_the_memory_budget_holds(budget):
    X, y = drifting()
    new = rows(40, 1)[0]
    model = stream(X, y, batch=37, memory_budget=budget)
    assert model._committee._factors.nbytes <= budget
    assert (budget == 0) == (model._committee._factors.nbytes == 0)
    for rule in ("gpoe", "nested", "grbcm"):
        ours, free = (
            m.set_params(aggregation=rule).predict(new, return_std=True)
            for m in (model, at_once(model, X, y))
        )
        np.testing.assert_allclose(ours, free, rtol=1e-9)


def test_many_batches_copy_little():
    X, y = rows(900)
    model = ExpertGPRegressor(**PLAIN).fit(X[:300], y[:300])
    arrays, buffers, changed = set(), set(), []
    kept = []  # alive, so that no address is used twice
    for i in range(300, 900):
        before = model._committee._factors.addresses if i > 300 else None
        before = None if before is None else before.copy()
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        kept += [model._committee.XT, model._arrivals.labels]
        arrays.add(id(model._committee.XT))
        buffers.add(id(model._arrivals.labels))
        if before is not None:
            after = model._committee._factors.addresses[: len(before)]
            changed.append(int((before != after).sum()))
    assert model.n_experts_ > 10
    assert len(arrays) <= 4
    assert len(buffers) <= model.n_experts_ + 4
    assert max(changed) == 1


def test_labels_that_were_handed_out_stay():
    X, y = rows(600)
    model = stream(X[:320], y[:320])
    before = model.labels_
    expected = before.copy()
    model.partial_fit(X[320:], y[320:])
    np.testing.assert_array_equal(before, expected)
    assert (model.labels_[:320] != expected).any()  # some experts were divided


def test_what_was_chosen_stays_until_it_is_asked_again():
    X, y = rows(700)
    model = ExpertGPRegressor(**PLAIN | dict(temperature="auto", aggregation="auto"))
    model.fit(X[:300], y[:300])
    chosen, scores = model.temperature_, model.aggregation_scores_
    curve = model.temperature_curve_[1]
    model.partial_fit(X[300:], y[300:])
    assert model.temperature_ == chosen
    assert model.aggregation_scores_ == scores
    np.testing.assert_array_equal(model.temperature_curve_[1], curve)
    model.set_params(temperature="auto")
    assert (model.temperature_curve_[1] != curve).any()
    assert model.aggregation_scores_ != scores
    other = at_once(model, X, y)
    other._curves = {}
    np.testing.assert_allclose(model.temperature_curve_[1], other.temperature_curve_[1], rtol=1e-8)


@pytest.mark.parametrize("rule", ["gpoe", "grbcm"])
def test_a_pickled_model_goes_on(rule):
    X, y = rows(700)
    model = stream(X[:400], y[:400], aggregation=rule)
    again = pickle.loads(pickle.dumps(model))
    for m in (model, again):
        m.partial_fit(X[400:], y[400:])
    np.testing.assert_array_equal(model.labels_, again.labels_)
    np.testing.assert_allclose(model.predict(X), again.predict(X), rtol=1e-10)


def test_threads_do_not_matter():
    X, y = rows(600)
    one, two = (stream(X, y, n_jobs=n) for n in (1, 2))
    assert np.array_equal(one.predict(X), two.predict(X))


# ---- input ---------------------------------------------------------------------------------

X0, Y0 = rows(120)
BAD = X0[:4].copy()
BAD[1, 1] = np.nan

REFUSED = {
    "wide": (np.c_[X0, X0], Y0, "4 features.*2 features"),
    "NaN in X": (BAD, Y0[:4], "NaN"),
    "NaN in y": (X0[:4], BAD[:, 1], "NaN"),
    "empty": (X0[:0], Y0[:0], "0 sample"),
    "lengths": (X0, Y0[:-1], "inconsistent numbers"),
    "no y": (X0, None, "requires y"),
    "two outputs": (X0, np.c_[Y0, Y0], "2 columns"),
    "one-dimensional": (X0[:, 0], Y0, "2D array"),
    "string": (np.full((2, 2), "a"), Y0[:2], "convert"),
    "overflow": (np.full((2, 2), 1.7e308), Y0[:2], "X has values that are too large"),
    "overflow in y": (X0[:2], np.full(2, 1e200), "y has values that are too large"),
    "no factor": (X0[:4], Y0[:4], "new rows were not taken.*positive definite"),
}


def state(model):
    """All that a model holds but for what is made again."""
    committee = model._committee
    others = ("_committee", "_centres", "_guide")
    held = {k: v for k, v in model.__dict__.items() if k not in others}
    held |= {k: v for k, v in committee.__dict__.items() if k not in ("_factors", "_tasks")}
    return {k: pickle.dumps(v) for k, v in held.items()} | {"U": list(committee.factors.addresses)}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("streaming", [False, True])
def test_refused_and_the_model_is_as_it_was(name, streaming):
    X, y, message = REFUSED[name]
    model = ExpertGPRegressor(**PLAIN).fit(X0, Y0)
    if streaming:
        model.partial_fit(X0[:9], Y0[:9])
    theta, answer = model._committee.theta, model.predict(X0)
    if name == "no factor":  # no covariance is so bad that jitter does not help, but this one
        model._committee.theta = replace(theta, noise_variance=-0.9)
    before = state(model)
    with pytest.raises((ValueError, ExpertError), match=message):
        model.partial_fit(X, y)
    assert state(model) == before
    model._committee.theta = theta
    assert np.array_equal(model.predict(X0), answer)
    model.partial_fit(X0[:1], Y0[:1])
    assert len(model.labels_) == 121 + 9 * streaming


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


@pytest.mark.parametrize(
    "convert",
    [
        lambda X, y: (X.astype(np.float32).astype(float), y),
        lambda X, y: (X.astype(np.float32), y.astype(np.float64)),
        lambda X, y: (read_only(X), read_only(y)),
        lambda X, y: (np.asfortranarray(X), y[:, None][:, 0]),
        lambda X, y: (X.tolist(), y.tolist()),
    ],
)
def test_kinds_of_arrays(convert):
    model = ExpertGPRegressor(**PLAIN).fit(X0, Y0)
    X, y = convert(X0[:30], Y0[:30])
    model.partial_fit(X, y)
    expected = ExpertGPRegressor(**PLAIN).fit(X0, Y0).partial_fit(np.array(X, float), np.array(y))
    assert np.array_equal(model.predict(X0), expected.predict(X0))


def test_data_frames():
    frame = pd.DataFrame(X0, columns=["a", "b"])
    model = ExpertGPRegressor(**PLAIN).fit(frame, Y0).partial_fit(frame[:20], pd.Series(Y0[:20]))
    assert len(model.labels_) == 140
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(frame[["b", "a"]], Y0)


def test_equal_rows_again_and_again():
    model = ExpertGPRegressor(**PLAIN | dict(noise_variance=1e-12)).fit(X0, Y0)
    for _ in range(30):
        model.partial_fit(X0[:10], Y0[:10])  # jitter, and experts of equal rows to divide
    mean, std = model.predict(X0[:10], return_std=True)
    np.testing.assert_allclose(mean, Y0[:10], atol=1e-2)
    assert np.isfinite(std).all()
    X, y = np.concatenate([X0, np.tile(X0[:10], (30, 1))]), np.append(Y0, np.tile(Y0[:10], 30))
    np.testing.assert_allclose(mean, at_once(model, X, y).predict(X0[:10]), atol=1e-3)


def test_sparse_experts_are_refused():
    counts = ExpertGPRegressor(likelihood="poisson")
    model = ExpertGPRegressor(**PLAIN | dict(n_inducing=10))
    for unfitted in (counts, model):
        with pytest.raises(AttributeError, match=r"exact experts.*Fit again"):
            unfitted.partial_fit(X0, Y0)
        assert not hasattr(unfitted, "partial_fit")
    model.fit(X0, Y0).set_params(n_inducing=None)
    with pytest.raises(AttributeError, match=r"exact experts.*Fit again"):
        model.partial_fit(X0, Y0)


def test_experts_elsewhere_are_refused():
    model = ExpertGPRegressor(**PLAIN)
    for _ in range(2):
        with pytest.raises(AttributeError, match=r"engine='local'.*Fit again"):
            model.set_params(engine="dask").partial_fit(X0, Y0)
        model.set_params(engine="local").fit(X0, Y0)


def test_a_clone_has_no_stream():
    other = clone(stream(*rows(350)))
    assert not hasattr(other, "_committee")
    assert other.set_params(temperature="auto") is other


@pytest.mark.parametrize(("known", "m"), [(1, 2), (5, 40), (32, 33), (100, 101), (90, 230)])
def test_an_extended_factor_is_the_factor(rng, known, m):
    B = rng.standard_normal((m, m + 5))
    K = B @ B.T + np.eye(m)
    U = K.copy()
    U[:known, :known] = np.linalg.cholesky(K[:known, :known]).T
    assert extend(U.reshape(-1), known, m)
    np.testing.assert_allclose(np.triu(U), np.linalg.cholesky(K).T, rtol=1e-9, atol=1e-9)
    U[:, known:] = K[:, known:]
    U[-1, -1] = -1.0
    assert not extend(U.reshape(-1), known, m)


def test_what_is_chosen_after_a_stream_is_chosen_on_its_rows():
    X, y = rows(2500)
    how = dict(points_per_expert=60, kernel="rbf", max_iter=20, random_state=0)
    model = ExpertGPRegressor(**how, aggregation="gpoe", temperature=50.0).fit(X[:2100], y[:2100])
    model.partial_fit(X[2100:2400], y[2100:2400])
    model.predict(X[2400:])  # asks about left-out rows, for its route
    model.set_params(aggregation="auto")
    found = model.aggregation_scores_
    for kept in (model._left_out, model._confident, model._rules):
        kept.clear()
    assert model.aggregation_scores_ == found


def test_one_expert_that_has_become_several_has_a_temperature():
    X, y = rows(600)
    model = ExpertGPRegressor(points_per_expert=50, kernel="rbf", aggregation="gpoe")
    model.fit(X[:90], y[:90])
    assert model.n_experts_ == 1
    assert model.temperature_ > 0
    for start in range(90, 600, 100):
        model.partial_fit(X[start : start + 100], y[start : start + 100])
    assert model.n_experts_ > 3
    assert np.ptp(model.temperature_curve_[1]) > 0
