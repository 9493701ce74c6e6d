"""Streaming over experts and rows equals doing it all at once; settings mean what they say."""

import itertools

import numpy as np
import pytest

import naive
from healgp import ExpertGPRegressor, prediction
from healgp import weights as w
from healgp.aggregation import RULES
from healgp.experts.asking import Experts
from healgp.prediction import Setting

ALL = [
    dict(aggregation=a, weighting=b, normalize_weights=c, space=s)
    for a, b, c, s in itertools.product(RULES, w.WEIGHTINGS, (None, True, False), "fy")
    if not (c is False and (a in ("barycenter", "wasserstein") or b.startswith("softmax_")))
]
RAW_SOFTMAX = [
    dict(aggregation=a, weighting="softmax_variance", normalize_weights=False, space=s)
    for a, s in itertools.product(("gpoe", "rbcm", "grbcm"), "fy")
]


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (300, 2))
    y = 5 + 3 * np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.3 * rng.standard_normal(300)
    return ExpertGPRegressor(points_per_expert=7, temperature=4.0, random_state=0, n_jobs=2).fit(
        X, y
    )


@pytest.fixture(scope="module")
def new():
    return np.random.default_rng(4).uniform(-3, 3, (50, 2))


def grbcm_moments(model, new):
    """Experts on their own rows and D_c, and the communication expert, by the naive GP."""
    c, theta = model._committee, model._committee.theta
    X, y, chosen = c.XT.T, c.y, model._communication
    Z = (new - model._scaling.x_center) / model._scaling.x_scale

    def ask(rows):
        l, signal, noise = theta.lengthscales, theta.signal_variance, theta.noise_variance
        return naive.gp("rbf", X[rows], y[rows], Z, l, signal, noise)[:2]

    moments = []
    for a, b in itertools.pairwise(c.offsets):
        own = np.setdiff1d(np.arange(a, b), chosen)
        if len(own):
            moments.append(ask(np.concatenate([own, chosen])))
    mean, var = map(np.array, zip(*moments, strict=True))
    return mean, var, *ask(chosen)


def expected(model, new, setting):
    """The whole of design: moments, noise, weights, normalisation, rule, noise, units."""
    rule, weighting = setting["aggregation"], setting["weighting"]
    theta = model._committee.theta
    if rule == "grbcm":
        mean, var, prior_mean, prior_var = grbcm_moments(model, new)
    else:
        mean, var = model.expert_moments(new)
        mean = (mean - model._scaling.y_center) / model._scaling.y_scale
        var = var / model._scaling.y_scale**2
        prior_mean, prior_var = 0.0, theta.signal_variance
    if setting["space"] == "y":
        var, prior_var = var + theta.noise_variance, prior_var + theta.noise_variance
    weighting = "ones" if rule in ("poe", "bcm") else weighting
    normalized = setting["normalize_weights"]
    if normalized is None:
        normalized = rule in ("gpoe", "barycenter", "wasserstein") or "softmax" in weighting
    beta = naive.weights(weighting, mean, var, prior_var, 4.0, False, prior_mean)
    if rule == "grbcm" and weighting == "entropy" and setting["normalize_weights"] is not False:
        beta[0] = 1.0
    if normalized:
        beta = beta / beta.sum(axis=0)
    m, v = naive.aggregate(rule, mean, var, beta, prior_var, prior_mean)
    v = v + (theta.noise_variance if setting["space"] == "f" else 0.0)
    return (
        m * model._scaling.y_scale + model._scaling.y_center,
        np.sqrt(v) * model._scaling.y_scale,
        beta,
    )


@pytest.mark.parametrize("blocks", [(4096, None), (7, 3)])
def test_every_setting_streamed_equals_the_naive_whole(model, new, blocks, monkeypatch):
    monkeypatch.setattr(prediction, "BLOCK", blocks[0])
    if blocks[1]:
        monkeypatch.setattr(
            Experts, "blocks",
            lambda self: [
                (a, min(a + blocks[1], self.n_experts))
                for a in range(0, self.n_experts, blocks[1])
            ],
        )  # fmt: skip
    chosen = ALL + RAW_SOFTMAX
    results = model.predict_many(new, chosen)
    for setting, (mean, std) in zip(chosen, results, strict=True):
        m, s, _ = expected(model, new, setting)
        np.testing.assert_allclose(mean, m, rtol=1e-7, atol=1e-7, err_msg=str(setting))
        np.testing.assert_allclose(std, s, rtol=1e-7, atol=1e-7, err_msg=str(setting))


@pytest.mark.parametrize("setting", [s for s in ALL if s["normalize_weights"] is None], ids=str)
def test_predict_many_equals_set_params_and_predict(model, new, setting):
    before = model.get_params()
    mean, std = model.predict_many(new, [{}, setting])[1]
    try:
        model.set_params(**setting)
        m, s = model.predict(new, return_std=True)
        beta = expected(model, new, setting)[2]
        np.testing.assert_allclose(model.expert_weights(new), beta, rtol=1e-7, atol=1e-9)
    finally:
        model.set_params(**before)
    assert np.array_equal(mean, m)
    assert np.array_equal(std, s)


def test_grbcm_with_one_local_expert_is_the_exact_gp(wave):
    X, y, new = wave
    model = ExpertGPRegressor(
        points_per_expert=50, partition=np.zeros(200), max_iter=0, standardize=False,
        aggregation="grbcm", random_state=0,
    )  # fmt: skip
    model.fit(X, y)
    assert len(model._communication) == 50
    mean, var, _ = naive.gp("rbf", X, y, new, np.ones(2), 1.0, 0.1)
    for weighting in ("entropy", "ones", "softmax_variance", "uniform"):
        ours = model.set_params(weighting=weighting).predict_f(new)
        np.testing.assert_allclose(ours[0], mean, atol=1e-9)
        np.testing.assert_allclose(ours[1], var, atol=1e-9)


def test_far_from_the_data_normalised_rules_return_to_the_prior(model):
    far = np.full((1, 2), 1e6)
    J, theta, scale = model.n_experts_, model._committee.theta, model._scaling.y_scale
    names = ("gpoe", "rbcm", "barycenter", "wasserstein", "poe")
    results = model.predict_many(far, [dict(aggregation=name) for name in names])
    for name, (mean, std) in zip(names, results, strict=True):
        latent = theta.signal_variance / (J if name == "poe" else 1)
        assert mean[0] == pytest.approx(model._scaling.y_center, abs=1e-9)
        assert std[0] == pytest.approx(scale * np.sqrt(latent + theta.noise_variance), rel=1e-9)


def test_memory_of_a_prediction_does_not_grow_with_experts_times_rows(rng):
    import tracemalloc

    X = rng.uniform(-1, 1, (4000, 1))
    model = ExpertGPRegressor(points_per_expert=4, max_iter=0, random_state=0, n_jobs=1)
    model.fit(X, X[:, 0])
    new = rng.uniform(-1, 1, (20_000, 1))
    model.predict(new[:10])
    tracemalloc.start()
    model.predict(new)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.2 * 8 * len(new) * model.n_experts_


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(aggregation="gpo"), "aggregation='gpo'.*poe, gpoe, bcm, rbcm, grbcm, barycenter"),
        (dict(weighting=None), "weighting=None.*softmax_variance"),
        (dict(space="z"), "space='z'.*f, y"),
        (dict(temperature=-1.0), "temperature=-1.0"),
        (dict(temperature=np.inf), "temperature=inf"),
        (dict(temperature="hot"), "temperature='hot'"),
        (dict(normalize_weights="no"), "normalize_weights='no'"),
        (dict(aggregation="barycenter", normalize_weights=False), "add up to one"),
        (dict(weighting="softmax_entropy", normalize_weights=False), "overflows"),
        (dict(weighting="softmax_wasserstein", normalize_weights=False), "overflows"),
    ],
)
def test_nonsense_is_refused(changes, message):
    good = dict(
        aggregation="gpoe", weighting="softmax_variance", temperature=1.0, normalize_weights=None,
        space="f",
    )  # fmt: skip
    Setting(**good)
    with pytest.raises(ValueError, match=message):
        Setting(**good | changes)


def test_weights_of_grbcm_line_up_with_the_experts(wave):
    """Experts whose rows all went into the communication set have no say, and keep their place."""
    X, y, new = wave
    labels = np.concatenate([np.arange(40), np.full(160, 100)])
    model = ExpertGPRegressor(
        50, partition=labels, aggregation="grbcm", max_iter=0, random_state=1
    ).fit(X, y)
    beta = model.expert_weights(new)
    assert beta.shape == (41, 40)
    np.testing.assert_allclose(beta.sum(axis=0), 1.0)
    assert any(model._communication < 40)
    assert (beta[model._communication[model._communication < 40]] == 0).all()
