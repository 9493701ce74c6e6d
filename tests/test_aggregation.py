"""Rules and weights as pure functions: against a naive loop, and the paper's propositions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import naive
from healgp import aggregation as agg
from healgp import weights as w

PRIOR = 1.7


@pytest.fixture
def moments(rng):
    return rng.standard_normal((6, 9)), rng.uniform(0.01, PRIOR, (6, 9))


def combine(rule, mean, var, beta, prior=PRIOR):
    return {
        "poe": lambda: agg.poe(mean, var),
        "gpoe": lambda: agg.gpoe(mean, var, beta),
        "bcm": lambda: agg.bcm(mean, var, prior),
        "rbcm": lambda: agg.rbcm(mean, var, beta, prior),
        "barycenter": lambda: agg.barycenter(mean, var, beta),
        "wasserstein": lambda: agg.wasserstein(mean, var, beta),
    }[rule]()


RULES = ("poe", "gpoe", "bcm", "rbcm", "barycenter", "wasserstein")
SOFTMAX = (w.softmax_variance, w.softmax_entropy, w.softmax_wasserstein)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weighting", w.WEIGHTINGS)
def test_rules_and_weights_against_a_naive_loop(moments, rule, weighting):
    mean, var = moments
    normalized = rule in ("barycenter", "wasserstein") or weighting.startswith("softmax")
    beta = getattr(w, weighting)(mean, var, PRIOR, *[3.0] * weighting.startswith("softmax"))
    beta = w.normalize(beta) if normalized else beta
    expected_beta = naive.weights(weighting, mean, var, PRIOR, 3.0, normalized)
    np.testing.assert_allclose(beta, expected_beta, rtol=1e-12)
    if rule in ("poe", "bcm"):
        expected_beta = np.ones_like(beta)
    for ours, expected in zip(
        combine(rule, mean, var, beta), naive.aggregate(rule, mean, var, expected_beta, PRIOR),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(ours, expected, rtol=1e-11)


def test_grbcm_against_a_naive_loop(rng):
    var_c = rng.uniform(0.5, 1.5, 9)
    var = var_c * rng.uniform(0.1, 1.0, (6, 9))
    mean, mean_c = rng.standard_normal((6, 9)), rng.standard_normal(9)
    beta = w.entropy(mean, var, var_c)
    beta[0] = 1.0
    expected = naive.aggregate("grbcm", mean, var, beta, var_c, mean_c)
    np.testing.assert_allclose(agg.grbcm(mean, var, beta, mean_c, var_c), expected, rtol=1e-11)
    # with one expert whose weight is 1 it is that expert
    one = agg.grbcm(mean[:1], var[:1], beta[:1], mean_c, var_c)
    np.testing.assert_allclose(one, (mean[0], var[0]), rtol=1e-12)


def test_proposition_1_rules_agree_at_infinite_temperature(moments):
    mean, var = moments
    beta = w.softmax_variance(mean, var, PRIOR, temperature=1e9)
    best = var.argmin(axis=0), np.arange(9)
    for rule in ("gpoe", "rbcm", "barycenter", "wasserstein"):
        ours = combine(rule, mean, var, beta)
        np.testing.assert_allclose(ours, (mean[best], var[best]), rtol=1e-12)


def test_proposition_1_with_ties(moments):
    mean, var = moments
    var[2] = var[4] = 1e-3
    beta = w.softmax_variance(mean, var, PRIOR, temperature=1e9)
    for rule in ("gpoe", "rbcm", "barycenter", "wasserstein"):
        m, v = combine(rule, mean, var, beta)
        np.testing.assert_allclose(m, (mean[2] + mean[4]) / 2, rtol=1e-12)
        np.testing.assert_allclose(v, 1e-3, rtol=1e-12)


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_proposition_2_normalised_rbcm_is_gpoe(moments, softmax):
    mean, var = moments
    beta = softmax(mean, var, PRIOR, temperature=5.0)
    np.testing.assert_allclose(
        agg.rbcm(mean, var, beta, PRIOR), agg.gpoe(mean, var, beta), rtol=1e-12
    )


def test_proposition_3_one_expert_under_rbcm_is_not_the_full_gp(moments):
    mean, var = (a[:1] for a in moments)
    beta = w.entropy(mean, var, PRIOR)
    _, v = agg.rbcm(mean, var, beta, PRIOR)
    expected = 1 / (beta[0] / var[0] + (1 - beta[0]) / PRIOR)
    np.testing.assert_allclose(v, expected, rtol=1e-12)
    assert (np.abs(v / var[0] - 1) > 1e-3).all()
    np.testing.assert_allclose(agg.rbcm(mean, var, np.ones_like(var), PRIOR), (mean[0], var[0]))


def test_ones_make_poe_of_gpoe_and_bcm_of_rbcm(moments):
    mean, var = moments
    ones = w.ones(mean, var)
    np.testing.assert_array_equal(agg.gpoe(mean, var, ones), agg.poe(mean, var))
    np.testing.assert_array_equal(agg.rbcm(mean, var, ones, PRIOR), agg.bcm(mean, var, PRIOR))


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_zero_temperature_is_uniform(moments, softmax):
    mean, var = moments
    np.testing.assert_allclose(softmax(mean, var, PRIOR, 0.0), w.uniform(mean, var))


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_confident_experts_get_more_weight(softmax):
    """Also for the two scores whose sign in the paper would give them less."""
    mean, var = np.zeros((2, 1)), np.array([[0.1], [0.9]])
    beta = softmax(mean, var, 1.0, 10.0)
    assert beta[0, 0] > 0.9


@pytest.mark.parametrize("rule", RULES)
def test_far_from_the_data(rule):
    """Every normalised rule returns to the prior, and so do BCM and rBCM; PoE goes to prior/J."""
    mean, var = np.zeros((5, 3)), np.full((5, 3), PRIOR)
    for beta in (w.normalize(w.entropy(mean, var, PRIOR)), w.softmax_variance(mean, var, PRIOR)):
        m, v = combine(rule, mean, var, beta)
        np.testing.assert_allclose(m, 0.0)
        np.testing.assert_allclose(v, PRIOR / 5 if rule == "poe" else PRIOR, rtol=1e-12)


def test_softmax_survives_thousands_of_experts_and_extreme_temperatures(rng):
    mean, var = np.zeros((5000, 2)), rng.uniform(0.5, 1.0, (5000, 2))
    for softmax in SOFTMAX:
        for temperature in (1e-300, 1.0, 1e6, 1e300):
            beta = softmax(mean, var, 1.0, temperature)
            np.testing.assert_allclose(beta.sum(axis=0), 1.0, rtol=1e-12)


def test_moments_less_certain_than_the_prior_never_turn_a_precision_negative():
    mean, var = np.ones((50, 1)), np.full((50, 1), 1.2 * PRIOR)
    for m, v in (agg.bcm(mean, var, PRIOR), agg.rbcm(mean, var, -np.ones_like(var), PRIOR)):
        assert np.isfinite(m).all()
        np.testing.assert_allclose(v, PRIOR)


def test_weights_that_are_all_zero_are_no_nan():
    mean, var = np.ones((3, 1)), np.ones((3, 1))
    m, v = agg.gpoe(mean, var, np.zeros_like(var))
    assert m[0] == 0.0
    assert v[0] >= 1e200
    np.testing.assert_allclose(w.normalize(np.zeros((4, 2))), 0.25)


def test_wasserstein_barycenter_minimises_the_sum_of_distances(moments):
    """Equation (gaussbar) of the paper in one dimension: no other Gaussian is nearer to all."""
    mean, var = (a[:, 0] for a in moments)
    beta = w.normalize(np.arange(1.0, 7.0))

    def cost(m, s):
        return np.sum(beta * ((mean - m) ** 2 + (np.sqrt(var) - s) ** 2))

    m, v = agg.wasserstein(mean[:, None], var[:, None], beta[:, None])
    least = cost(m[0], np.sqrt(v[0]))
    for dm in (-1e-4, 0, 1e-4):
        for ds in (-1e-4, 0, 1e-4):
            assert cost(m[0] + dm, np.sqrt(v[0]) + ds) >= least


finite = st.floats(-10, 10)
positive = st.floats(1e-6, 10)


@st.composite
def committees(draw):
    shape = draw(st.tuples(st.integers(1, 8), st.integers(1, 3)))
    mean = draw(arrays(float, shape, elements=finite))
    var = draw(arrays(float, shape, elements=positive))
    beta = draw(arrays(float, shape, elements=st.floats(0, 1)))
    return mean, var, w.normalize(beta), draw(st.permutations(range(shape[0])))


@given(committees(), st.sampled_from(RULES))
@settings(max_examples=200, deadline=None)
def test_identities(committee, rule):
    mean, var, beta, order = committee
    prior = 10.0
    m, v = combine(rule, mean, var, beta, prior)
    assert np.isfinite(m).all()
    assert (v > 0).all()
    # the order of experts does not matter
    order = list(order)
    shuffled = combine(rule, mean[order], var[order], beta[order], prior)
    np.testing.assert_allclose(shuffled, (m, v), rtol=1e-8, atol=1e-8)
    if rule not in ("poe", "bcm"):
        # normalised rules: the mean is between the experts', the variance too
        assert (m <= mean.max(0) + 1e-8).all()
        assert (m >= mean.min(0) - 1e-8).all()
        assert (v <= var.max(0) * (1 + 1e-9)).all()
        assert (v >= var.min(0) * (1 - 1e-9)).all()
        # means shift with the experts'
        moved = combine(rule, mean + 1.5, var, beta, prior)
        np.testing.assert_allclose(moved[0], m + 1.5, rtol=1e-7, atol=1e-7)
    # by Jensen's inequality: gPoE ≤ Wasserstein ≤ barycenter
    ordered = [combine(r, mean, var, beta, prior)[1] for r in ("gpoe", "wasserstein", "barycenter")]
    assert (ordered[0] <= ordered[1] * (1 + 1e-9)).all()
    assert (ordered[1] <= ordered[2] * (1 + 1e-9)).all()


def test_moments_as_integers_and_lists():
    mean, var = [[1], [3]], [[1], [2]]
    for name in w.WEIGHTINGS:
        beta = w.normalize(getattr(w, name)(mean, var, 2))
        m, v = agg.gpoe(mean, var, beta)
        assert 1 <= m[0] <= 3
        assert 1 <= v[0] <= 2
    np.testing.assert_allclose(agg.poe(mean, var), [[5 / 3], [2 / 3]])
    np.testing.assert_allclose(agg.bcm(mean, var, 2), [[2.5], [1.0]])
