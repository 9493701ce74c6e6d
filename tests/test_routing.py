"""Asking the experts that can matter against asking everyone."""

import pickle

import numpy as np
import pytest

from healgp import ExpertGPClassifier, ExpertGPRegressor, routing
from healgp.engines.local import LocalEngine
from healgp.prediction import Setting, stream

PLAIN = dict(kernel="rbf", aggregation="gpoe", temperature=100.0, random_state=0)


@pytest.fixture(scope="module")
def hills():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (6000, 3))
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.3 * X[:, 2] + 0.1 * rng.standard_normal(6000)
    return X[:4000], y[:4000], X[4000:]


@pytest.fixture(scope="module")
def model(hills):
    X, y, _ = hills
    return ExpertGPRegressor(points_per_expert=40, **PLAIN).fit(X, y)


def apart(one, other):
    """In the deviations of the second."""
    return np.maximum(abs(one[0] - other[0]), abs(one[1] - other[1])) / other[1]


@pytest.mark.parametrize("space", ["f", "y"])
@pytest.mark.parametrize("rule", ["gpoe", "rbcm", "barycenter", "wasserstein"])
def test_everyone_asked_in_any_order_is_the_stream(model, hills, rule, space):
    new = model._scaling.inputs(hills[2][:300])
    setting = Setting(rule, "softmax_variance", 20.0, None, space)
    committee, prior = model._committee_and_prior(rule, new)
    with LocalEngine(2, committee.work) as engine:
        expected = stream(committee, new, [setting], prior, engine)[0]
        (found,), asked = routing.routed(
            committee, new, [setting], prior, model._noise(), model._where(), -1.0, engine
        )
    assert (asked == committee.n_experts).all()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [20.0, 100.0, "auto"])
def test_routed_agrees_with_everyone(model, hills, temperature):
    model.set_params(temperature=temperature, routing="auto")
    routed = model.predict(hills[2], return_std=True)
    everyone = model.set_params(routing=None).predict(hills[2], return_std=True)
    model.set_params(temperature=100.0, routing="auto")
    assert np.mean(apart(routed, everyone) <= 1e-3) >= 0.998
    assert np.max(apart(routed, everyone)) < 0.1


def test_few_experts_are_asked(model, hills):
    new = model._scaling.inputs(hills[2])
    allowed = model._route(model._setting({}))
    assert allowed > 0
    _, prior = model._committee_and_prior("gpoe", new)
    with LocalEngine(2, model._committee.work) as engine:
        _, asked = routing.routed(
            model._committee, new, [model._setting({})], prior, model._noise(), model._where(),
            allowed, engine,
        )  # fmt: skip
    assert asked.mean() < 0.5 * model.n_experts_


def test_the_order_begins_with_the_experts_of_the_nearest_rows(model, hills):
    new = model._scaling.inputs(hills[2][:50])
    committee = model._committee
    with LocalEngine(1, committee.work) as engine:
        order = model._where().nearest(new, 0, committee.n_experts, engine)
        parts = [model._where().nearest(new, *part, engine) for part in ((0, 2), (2, 4), (4, 9))]
    assert (np.sort(order) == np.arange(committee.n_experts)).all()
    np.testing.assert_array_equal(np.hstack(parts), order[:, :9])
    scaled = committee.XT.T / committee.theta.lengthscales
    for row, first in zip(new / committee.theta.lengthscales, order[:, 0], strict=True):
        nearest = np.argmin(((scaled - row) ** 2).sum(axis=1))
        assert committee.offsets[first] <= nearest < committee.offsets[first + 1]


def test_far_from_the_data_it_is_the_prior(model, hills):
    far = 1000.0 + hills[2][:5]
    routed = model.predict(far, return_std=True)
    everyone = model.set_params(routing=None).predict(far, return_std=True)
    model.set_params(routing="auto")
    np.testing.assert_allclose(routed, everyone, rtol=1e-6)


def test_a_row_does_not_depend_on_the_others_nor_on_threads(model, hills):
    together = model.predict(hills[2][:400], return_std=True)
    alone = [model.predict(hills[2][i : i + 1], return_std=True) for i in range(0, 400, 50)]
    np.testing.assert_allclose(np.hstack(alone), np.array(together)[:, ::50], rtol=1e-9)
    threads = model.set_params(n_jobs=1).predict(hills[2][:400], return_std=True)
    model.set_params(n_jobs=None)
    assert np.array_equal(threads, together)


def test_random_experts_are_all_asked(hills):
    X, y, _ = hills
    model = ExpertGPRegressor(
        points_per_expert=40, partition="random", **(PLAIN | dict(temperature=1.0))
    ).fit(X, y)
    assert model._route(model._setting({})) == 0


@pytest.mark.parametrize(
    "changes",
    [
        dict(aggregation="poe"),
        dict(aggregation="rbcm", weighting="entropy"),
        dict(aggregation="gpoe", weighting="uniform"),
        dict(aggregation="grbcm", weighting="entropy"),
        dict(aggregation="rbcm", normalize_weights=False),
    ],
)
def test_rules_in_which_every_expert_counts_have_no_route(model, changes):
    assert not routing.has_route(model._setting(changes))


def test_nested_among_the_near_ones(model, hills):
    setting = model._setting(dict(aggregation="nested", n_nearest=4))
    assert model._route(setting) > 0
    settings = [dict(aggregation="nested", n_nearest=4)]
    routed = model.predict_many(hills[2][:1000], settings)[0]
    everyone = model.set_params(routing=None).predict_many(hills[2][:1000], settings)[0]
    model.set_params(routing="auto")
    assert np.mean(apart(routed, everyone) <= 1e-3) >= 0.995


def test_classes(rng):
    X = rng.uniform(-3, 3, (2500, 2))
    y = (np.sin(2 * X[:, 0]) > X[:, 1]).astype(int) + (X[:, 0] > 1)
    model = ExpertGPClassifier(points_per_expert=50, n_inducing=20, random_state=0)
    model.fit(X[:2000], y[:2000])
    routed = model.predict_proba(X[2000:])
    everyone = model.set_params(routing=None).predict_proba(X[2000:])
    assert np.quantile(abs(routed - everyone).max(axis=1), 0.99) < 1e-3


def test_a_pickled_model_predicts_the_same(model, hills):
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(hills[2][:200]), model.predict(hills[2][:200]))


@pytest.mark.parametrize("wrong", [dict(routing="some"), dict(routing_tol=0.0)])
def test_nonsense_is_refused(hills, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ExpertGPRegressor(**wrong).fit(hills[0][:50], hills[1][:50])
