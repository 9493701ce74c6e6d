"""How many experts must be asked, as found on rows that are left out."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

import healgp
from healgp import ExpertGPRegressor, auditing, routing
from healgp.calibration import LeaveOneOut
from healgp.experts.committee import Committee
from healgp.nested import Listener, Route, most_confident, nested
from healgp.prediction import stream


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (4000, 3))
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.3 * X[:, 2] + 0.1 * rng.standard_normal(4000)
    return ExpertGPRegressor(
        points_per_expert=25, kernel="rbf", aggregation="gpoe", temperature=50.0, random_state=0
    ).fit(X, y)


@contextmanager
def parts(model):
    """What an audit needs, and the committee that answers its rows without them."""
    committee, rows = model._committee, model._calibration_rows
    prior = model._committee_and_prior("", committee.inputs(rows))[1]
    with committee.engine(2) as engine:
        without = LeaveOneOut(committee, rows, engine)
        yield committee, rows, engine, prior, without, model._guided(engine)


def test_the_net_agrees_with_everyone_and_a_smaller_one_does_not(model):
    setting = model._setting({})
    with parts(model) as (committee, rows, engine, prior, without, guide):
        new, noise = committee.inputs(rows), committee.theta.noise_variance
        everyone = stream(without, new, [setting], prior, engine)[0]
        net = auditing.audit(
            committee, rows, setting, noise, guide, 1e-3, engine, prior, everyone
        )  # fmt: skip
        assert 0 < net.experts <= committee.n_experts // 2

        def furthest(net):
            (found,) = routing.routed(without, new, [setting], prior, guide, net, engine)
            deviation = np.sqrt(everyone[1] + noise)
            apart = abs(found[0] - everyone[0]), abs(np.sqrt(found[1] + noise) - deviation)
            return (np.maximum(*apart) / deviation).max()

        assert furthest(net) <= 1e-3
        assert furthest(routing.Net(net.experts // 4, np.inf, net.near)) > 1e-3


def test_an_expert_answers_a_row_once(model, monkeypatch):
    setting = model._setting({})
    answered, lock, moments_of = [], threading.Lock(), Committee.moments_of

    def counted(self, new, asked, engine):
        with lock:
            answered.extend((j, row) for j, part in asked for row in part.tolist())
        return moments_of(self, new, asked, engine)

    with parts(model) as (committee, rows, engine, prior, without, guide):
        everyone = stream(without, committee.inputs(rows), [setting], prior, engine)[0]
        monkeypatch.setattr(Committee, "moments_of", counted)
        net = auditing.audit(
            committee, rows, setting, committee.theta.noise_variance, guide, 1e-3, engine, prior,
            everyone,
        )  # fmt: skip
    assert net.experts > 0
    assert len(answered) == len(set(answered)) > 8 * len(rows)


def test_the_nested_rule_among_as_many_as_were_found_enough(model):
    setting = model._setting(dict(aggregation="nested", n_nearest=4))
    with parts(model) as (committee, rows, engine, _, without, guide):
        new, noise = committee.inputs(rows), committee.theta.noise_variance
        shared = committee, rows, setting, noise, guide, 1e-3, engine
        net = auditing.audit_nested(*shared, None)
        known = most_confident(without, new, 4, engine)
        assert auditing.audit_nested(*shared, known) == net
        assert 0 < net.experts <= committee.n_experts // 4
        some = slice(0, 100)
        one, other = (
            nested(without.at(some), new[some], 4, engine, route)
            for route in (Route(guide, net.experts), None)
        )
    assert auditing.apart(one, other, noise).max() <= 1e-3


def test_many_experts_for_the_nested_rule_are_saved(rng, monkeypatch, tmp_path):
    monkeypatch.setattr(auditing, "_ROWS_NESTED", 4)
    X = rng.uniform(-1, 1, (4160, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(4160)
    model = ExpertGPRegressor(
        partition=np.argsort(np.argsort(X[:, 0])) // 4, points_per_expert=4, kernel="rbf",
        aggregation="nested", n_nearest=64, temperature=1.0, max_iter=0, random_state=0,
    ).fit(X, y)  # fmt: skip
    net = model._route(model._setting({}))
    assert net.near > net.experts >= 128
    model.save(tmp_path / "m")
    again = healgp.load(tmp_path / "m")
    assert again._route(again._setting({})) == net
    assert np.array_equal(again.predict(X[:5]), model.predict(X[:5]))


def test_a_listener_hears_the_most_confident_whatever_the_order(rng):
    J, n, k = 12, 30, 5
    mean, var = rng.standard_normal((J, n)), rng.integers(1, 4, (J, n)) / 4.0  # many are equal

    class Said:
        def moments(self, new, first, last, engine):
            return mean[first:last, self.rows], var[first:last, self.rows]

        def at(self, part):
            some = Said()
            some.rows = part
            return some

    listener = Listener(Said(), n, k)
    blocks = [(first, first + 3) for first in range(0, J, 3)]
    for part in (slice(0, 10), slice(10, 30)):
        for i in rng.permutation(len(blocks)):
            listener.at(part).moments(None, *blocks[i], None)
    numbers, means, variances = listener.found
    expected = np.argsort(var, axis=0, kind="stable")[:k]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(means, np.take_along_axis(mean, expected, axis=0))
    np.testing.assert_array_equal(variances, np.take_along_axis(var, expected, axis=0))
