"""Asking the experts that can matter against asking everyone."""

import pickle

import numpy as np
import pytest

import naive
from healgp import ExpertGPClassifier, ExpertGPRegressor, aggregation, auditing, routing
from healgp.engines.local import LocalEngine
from healgp.experts.brief import Brief
from healgp.prediction import Prior, Setting, stream
from healgp.routing import Net

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


def guide(model):
    with LocalEngine(2, model._committee.work) as engine:
        return model._guided(engine)


@pytest.mark.parametrize("space", ["f", "y"])
@pytest.mark.parametrize("rule", ["gpoe", "rbcm", "barycenter", "wasserstein"])
def test_nearly_everyone_in_full_is_the_stream(model, hills, rule, space):
    new = model._scaling.inputs(hills[2][:300])
    setting = Setting(rule, "softmax_variance", 20.0, None, space)
    committee, prior = model._committee_and_prior(rule, new)
    with LocalEngine(2, committee.work) as engine:
        expected = stream(committee, new, [setting], prior, engine)[0]
        for k, tolerance in ((committee.n_experts - 1, 1e-9), (60, 1e-5)):
            found = routing.routed(committee, new, [setting], prior, guide(model), Net(k), engine)[
                0
            ]
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("far", [1e160, 1e300, 1.7e308])
@pytest.mark.parametrize("rule", ["gpoe", "nested"])
def test_rows_beyond_all_size_are_answered_as_by_everyone(model, hills, rule, far):
    new = hills[2][:200].copy()
    new[0, 0] = far
    model.set_params(aggregation=rule, n_nearest=2)
    try:
        assert model._route(model._setting({})).experts
        routed = model.predict(new, return_std=True)
        everyone = model.set_params(routing=None).predict(new, return_std=True)
    finally:
        model.set_params(aggregation="gpoe", n_nearest=8, routing="auto")
    assert apart(routed, everyone).max() < 1e-3
    assert routed[1][0] > 0.9 * hills[1].std()


def test_an_expert_in_brief_is_the_sparse_gp(model, hills):
    committee, brief = model._committee, guide(model).brief
    new = model._scaling.inputs(hills[2][:40])
    theta, asked = committee.theta, np.array([3, 4])
    mean, var = brief.moments(new, np.tile(asked, (len(new), 1)))
    for j, m, v in zip(asked, mean.T, var.T, strict=True):
        X, y = committee.inputs(committee.columns(j)), committee.y[committee.columns(j)]
        Z = brief.ZT[j].T * theta.lengthscales
        K = [
            naive.kernel(committee.kernel, Z, B, theta.lengthscales, theta.signal_variance)
            for B in (Z, X, new)
        ]
        K[0] += 1e-8 * theta.signal_variance * np.eye(len(Z))
        # Quiñonero-Candela and Rasmussen 2005, the deterministic training conditional
        S = np.linalg.inv(K[0] + K[1] @ K[1].T / theta.noise_variance)
        np.testing.assert_allclose(m, K[2].T @ S @ K[1] @ y / theta.noise_variance, rtol=1e-5)
        left = np.linalg.solve(K[0], K[2]) - S @ K[2]
        expected = theta.signal_variance - (K[2] * left).sum(axis=0)
        np.testing.assert_allclose(v, expected, rtol=1e-4, atol=1e-7)


def test_with_all_rows_inducing_brief_is_the_expert(hills):
    X, y, new = hills
    model = ExpertGPRegressor(points_per_expert=8, max_iter=0, **PLAIN).fit(X[:320], y[:320])
    committee, Z = model._committee, model._scaling.inputs(new[:30])
    with LocalEngine(1, committee.work) as engine:
        rank = int(committee.sizes.max())
        parts = committee.in_brief(np.arange(3), rank, engine)
        exact = committee.moments(Z, 0, 3, engine)
    brief = Brief(
        committee.kernel, committee.theta, 1.0, (), Brief._scaled(parts[0], committee.theta),
        *parts[1:],
    )  # fmt: skip
    mean, var = brief.moments(Z, np.tile(np.arange(3), (len(Z), 1)))
    np.testing.assert_allclose((mean.T, var.T), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [20.0, 100.0, "auto"])
def test_routed_agrees_with_everyone(model, hills, temperature):
    model.set_params(temperature=temperature, routing="auto")
    routed = model.predict(hills[2], return_std=True)
    everyone = model.set_params(routing=None).predict(hills[2], return_std=True)
    model.set_params(temperature=100.0, routing="auto")
    assert np.mean(apart(routed, everyone) <= 1e-3) >= 0.998
    assert np.max(apart(routed, everyone)) < 0.1


def test_few_experts_are_asked(model):
    asked = model._route(model._setting({})).experts
    assert 0 < asked <= 0.5 * model.n_experts_


def test_the_guide_finds_the_most_confident(model, hills):
    new = model._scaling.inputs(hills[2][:300])
    committee = model._committee
    with LocalEngine(2, committee.work) as engine:
        _, var = committee.moments(new, 0, committee.n_experts, engine)
        found = guide(model).confident(new, 16, 256, [], Prior(0.0, 1.0), 0.0, engine)[0]
    best = np.argsort(var, axis=0)[:4]
    missed = [set(b) - set(f) for b, f in zip(best.T, found.T, strict=True)]
    assert np.mean([len(m) == 0 for m in missed]) > 0.97
    assert all(len(set(f)) == 16 for f in found.T)


@pytest.mark.parametrize(("margin", "asked"), [(np.inf, 256), (0.1, 256), (0.1, 20)])
def test_far_experts_know_nothing_and_the_others_say_it_in_brief(hills, margin, asked):
    X, y, new = hills
    model = ExpertGPRegressor(points_per_expert=10, max_iter=0, lengthscale=0.4, **PLAIN).fit(X, y)
    committee, new, k = model._committee, model._scaling.inputs(new[:50]), 8
    J, setting = committee.n_experts, Setting("gpoe", "softmax_variance", 5.0, None, "f")
    prior, net = model._committee_and_prior("gpoe", new)[1], Net(k, margin, asked)
    with LocalEngine(2, committee.work) as engine:
        ours = guide(model)
        found = routing.routed(committee, new, [setting], prior, ours, net, engine)[0]
        full = committee.moments(new, 0, J, engine)
    brief = ours.brief.moments(new, np.tile(np.arange(J), (50, 1)))
    inputs = [
        committee.inputs(committee.columns(j)) / committee.theta.lengthscales for j in range(J)
    ]
    centres = np.array([Z.mean(axis=0) for Z in inputs])
    radii = [np.sqrt(((Z - c) ** 2).sum(1).mean()) for Z, c in zip(inputs, centres, strict=True)]
    Z = new / committee.theta.lengthscales
    apart = np.linalg.norm(Z[:, None] - centres, axis=2) - radii
    for i in range(50):
        mean, var = np.zeros(J), np.full(J, model.signal_variance_)
        near = np.argsort(apart[i])[:asked]
        mean[near], var[near] = brief[0][i, near], brief[1][i, near]
        best = near[np.argsort(var[near])[:k]]
        best = best[var[best] <= var[best[0]] + margin]
        mean[best], var[best] = full[0][best, i], full[1][best, i]
        weights = np.exp(-5.0 * var) / np.exp(-5.0 * var).sum()
        expected = aggregation.gpoe(mean[:, None], var[:, None], weights[:, None])
        np.testing.assert_allclose([found[0][i], found[1][i]], np.ravel(expected), rtol=1e-8)
    assert np.ptp(apart) > 5  # some are far indeed


def test_rows_are_ordered_and_none_is_lost(model, hills):
    new = model._scaling.inputs(hills[2])
    order = guide(model).order(new)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(new)))
    steps = np.linalg.norm(np.diff(new[order], axis=0), axis=1)
    assert steps.mean() < 0.75 * np.linalg.norm(np.diff(new, axis=0), axis=1).mean()


@pytest.mark.parametrize("rows", ["neighbours", "anywhere", "all the same"])
def test_the_nearest_are_found_whatever_rows_come_together(model, hills, rows):
    ours, new = guide(model), model._scaling.inputs(hills[2][:200])
    new = {"neighbours": new[ours.order(new)], "anywhere": new, "all the same": new[[0] * 70]}[rows]
    brief = ours.brief
    Z = new / brief.theta.lengthscales
    apart = np.linalg.norm(Z[:, None] - brief.centres, axis=2) - brief.radii
    for n in (1, 7, brief.n_experts):
        expected = np.sort(np.argsort(apart, axis=1)[:, :n], axis=1)
        np.testing.assert_array_equal(np.sort(ours.near(new, n), axis=1), expected)


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
    assert model._route(model._setting({})).experts == 0


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


def test_no_audit_for_settings_beside_one_that_asks_everyone(model, hills, monkeypatch):
    _, _, new = hills
    several = [{"temperature": 33.0}, {"aggregation": "poe"}, {"temperature": 44.0}]
    expected = [model.predict_many(new, [changes])[0] for changes in several]
    model._routes.clear()
    monkeypatch.setattr(auditing, "audit", None)
    for found, alone in zip(model.predict_many(new, several), expected, strict=True):
        assert np.mean(apart(alone, found) <= 1e-3) > 0.99
    assert not model._routes


def test_nested_among_the_near_ones(model, hills):
    setting = model._setting(dict(aggregation="nested", n_nearest=4))
    assert model._route(setting).experts > 0
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
