"""How far y falls from its mean: the distribution itself, and when a model takes which."""

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.optimize import minimize_scalar

from healgp import ExpertGPRegressor, deviations, diagnose, load, metrics
from healgp.deviations import GAUSSIAN, Deviations

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


@pytest.fixture
def few(rng):
    return rng.standard_normal(7), rng.standard_normal(7), rng.uniform(0.1, 3.0, 7)


@pytest.mark.parametrize("said", [Deviations(1.0, 0.6, 2.3), Deviations(0.5, 1.4, 30.0), GAUSSIAN])
def test_against_scipy(few, said):
    y, mean, std = few
    t = stats.norm(mean, std) if said.gaussian else stats.t(said.freedom, mean, said.core * std)
    np.testing.assert_allclose(said.log_density(y, mean, std), t.logpdf(y), rtol=1e-12)
    np.testing.assert_allclose(said.position(y, mean, std), t.cdf(y), rtol=1e-12)
    for p in (0.001, 0.3, 0.5, 0.975):
        np.testing.assert_allclose(mean + said.quantile(p, std) * std, t.ppf(p), rtol=1e-10)


#: What training rows say, up to deviations that some of the rows below have and some have not.
PARTLY = Deviations(0.5, 0.6, 2.3, 1.2)


def test_beyond_what_rows_have_the_model_is_taken_at_its_word(few):
    y, mean, own = few
    std = PARTLY.reported(own)
    beyond = own > PARTLY.known
    assert 0 < beyond.sum() < len(own)
    np.testing.assert_allclose(std[~beyond], 0.5 * own[~beyond])
    np.testing.assert_allclose(std[beyond] ** 2, own[beyond] ** 2 - (1 - 0.25) * 1.2**2)
    share = np.minimum(1.0, (0.5 * 1.2 / std) ** 2)  # of the variance that rows tell of
    nu, core = 2.3 / share, np.sqrt(share * 0.6**2 + 1 - share)
    t = stats.t(nu, mean, core * std)
    np.testing.assert_allclose(PARTLY.log_density(y, mean, std), t.logpdf(y), rtol=1e-12)
    np.testing.assert_allclose(PARTLY.position(y, mean, std), t.cdf(y), rtol=1e-12)
    half = PARTLY.quantile(0.975, std) * std
    np.testing.assert_allclose(mean + half, t.ppf(0.975), rtol=1e-10)
    # continuous and growing, and far out the model's own Gaussian
    grid = np.geomspace(1e-3, 1e6, 10_000)
    half = PARTLY.quantile(0.975, PARTLY.reported(grid)) * PARTLY.reported(grid)
    assert (np.diff(np.log(half)) > 0).all()
    assert np.diff(np.log(half)).max() < 0.01
    np.testing.assert_allclose(half[-1] / grid[-1], 1.959964, rtol=1e-5)
    wide = Deviations(2.0, 0.6, 2.3, 1.2)  # too narrow rather than too wide: everywhere
    np.testing.assert_allclose(wide.reported(own), 2.0 * own)
    # in another unit all is the same
    small = PARTLY.times(1e-3)
    np.testing.assert_allclose(small.reported(1e-3 * own), 1e-3 * std)
    np.testing.assert_allclose(small.quantile(0.9, 1e-3 * std), PARTLY.quantile(0.9, std))
    assert GAUSSIAN.within(own) == GAUSSIAN
    assert Deviations(0.5).within(np.arange(101.0)).known == pytest.approx(99.0)


@pytest.mark.parametrize("points", [50, None])
@pytest.mark.parametrize("function", [np.sin, lambda x: np.sin(1.5 * x) + 0.15 * x**2])
def test_away_from_the_rows_error_bars_are_those_of_the_experts(rng, points, function):
    # without noise the experts are better than they think, at the rows and nowhere else
    x = np.concatenate([rng.uniform(-6, -1.4, 150), rng.uniform(1.4, 6, 150)])
    model = ExpertGPRegressor(points_per_expert=points, kernel="rbf", random_state=0)
    model.fit(x[:, None], function(x))
    assert model.deviation_scale_ < 0.3

    def inside(low, high):
        new = np.linspace(low, high, 200)
        lower, upper = model.predict_interval(new[:, None])
        return np.mean((lower <= function(new)) & (function(new) <= upper))

    assert inside(-5.9, -1.5) > 0.85
    assert inside(-1.2, 1.2) > 0.9  # there are no rows between
    far = np.array([[500.0]])
    std, latent = model.predict(far, return_std=True)[1], model.predict_f(far)[1]
    np.testing.assert_allclose(std, np.sqrt(latent), rtol=1e-3)
    lower, upper = model.predict_interval(far)
    np.testing.assert_allclose(upper - lower, 2 * 1.959964 * std, rtol=1e-3)
    rows = np.array([[-3.0], [0.0], [500.0]])
    cov = model.predict(rows, return_cov=True)[1]
    std = model.predict(rows, return_std=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)


@pytest.mark.parametrize(
    "said", [Deviations(1.0, 0.6, 2.3), Deviations(1.0, 1.4, 30.0), PARTLY, GAUSSIAN]
)
def test_crps_is_the_integral_that_defines_it(few, said):
    def integral(y, mean, std):
        below = integrate.quad(lambda x: said.position(x, mean, std) ** 2, -np.inf, y)[0]
        return below + integrate.quad(lambda x: said.position(-x, -mean, std) ** 2, y, np.inf)[0]

    expected = np.mean([integral(*row) for row in zip(*few, strict=True)])
    np.testing.assert_allclose(said.crps(*few), expected, rtol=1e-6)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="shape"):
        Deviations(1.0, 1.0, 3.0).log_density(np.zeros((3, 1)), np.zeros(3), np.ones(3))
    for wrong in (0.0, -1.0, np.nan, np.inf, 1e200, 1e-200):
        for given in ((wrong, 1.0, 3.0), (1.0, wrong, 3.0)):
            with pytest.raises(ValueError, match="scale and core"):
                Deviations(*given)
    for wrong in (1.0, 0.0, np.nan, 1e16, -np.inf):
        with pytest.raises(ValueError, match="degrees of freedom"):
            Deviations(1.0, 1.0, wrong)
    for wrong in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="known"):
            Deviations(1.0, 1.0, 3.0, wrong)


def test_the_scale_is_the_best_one(rng):
    z = 0.4 * rng.standard_normal(3000)
    said = deviations.found(z)
    assert said.gaussian
    others = [stats.norm.logpdf(z, 0.0, t * said.scale).mean() for t in (0.9, 1.0, 1.1)]
    assert np.argmax(others) == 1
    assert deviations.found(rng.standard_normal(3000)) == GAUSSIAN
    assert deviations.found(np.zeros(3000)) == GAUSSIAN
    for size in (1e-90, 1e-9, 1e9, 1e90):  # nothing overflows on the way
        other = deviations.found(size * z)
        np.testing.assert_allclose(other.scale, size * said.scale, rtol=1e-12)
        assert other.gaussian
    assert deviations.found(np.full(9, 1e200)) == GAUSSIAN
    outlier = np.append(rng.standard_normal(500), 40.0)  # one row says it all
    assert deviations.found(outlier).scale == 1.0


def test_tails_are_those_with_the_largest_likelihood(rng):
    z = 0.7 * rng.standard_t(3.0, 5000)
    said = deviations.found(z)
    nu, _, core = stats.t.fit(z, floc=0.0)
    best = stats.t.logpdf(z, nu, 0.0, core).mean()
    found = said.log_density(z, 0.0, np.full(5000, said.scale)).mean()
    assert best - 1e-4 < found < best + 1e-9
    np.testing.assert_allclose([said.freedom, said.core * said.scale], [3.0, 0.7], rtol=0.1)
    given = minimize_scalar(
        lambda c: -stats.t.logpdf(z, said.freedom, 0.0, c).mean(), bounds=(0.1, 3.0),
        options=dict(xatol=1e-9),
    )  # fmt: skip
    np.testing.assert_allclose(said.core * said.scale, given.x, rtol=1e-6)


def test_little_changes_little(rng):
    # on a cluster sums round differently, and predictions must agree to 1e-8
    for nu in (1.3, 2.5, 8.0):
        z = 0.01 * rng.standard_t(nu, 2000)
        one = deviations.found(z)
        other = deviations.found(z * (1 + 1e-14 * rng.standard_normal(2000)))
        assert one.freedom == other.freedom
        np.testing.assert_allclose(one.scale * one.core, other.scale * other.core, rtol=1e-12)


def test_tails_and_scale_tell_the_same_width(rng):
    # whether t is taken or not, the interval is about as wide
    for seed in range(20):
        z = 0.01 * np.random.default_rng(seed).standard_t(8.0, 1000)
        said = deviations.found(z)
        assert 0.015 < said.scale * said.quantile(0.975, 1.0) < 0.03


def test_one_row_far_out_does_not_widen_the_others(rng):
    z = rng.standard_normal(1999)
    for outlier in (1e4, 1e6, 1e12):
        said = deviations.found(np.append(z, outlier))
        assert 1.8 < said.scale * said.quantile(0.975, 1.0) < 2.5


def test_rows_that_are_met_exactly():
    z = np.append(np.zeros(600), np.random.default_rng(0).standard_normal(400))
    said = deviations.found(z)
    assert np.isfinite(said.log_density(z, 0.0, np.full(1000, said.scale))).all()


def test_far_out_nothing_overflows():
    said = Deviations(1.0, 0.5, 2.5)
    y, zero, one = np.array([-1e200, 1e200]), np.zeros(2), np.ones(2)
    np.testing.assert_allclose(said.log_density(y, zero, one), -1612, rtol=1e-3)
    assert said.crps(y, zero, one) == pytest.approx(1e200)


def test_gaussian_rows_are_left_gaussian():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        assert deviations.found(rng.standard_normal(rng.integers(1, 400))).gaussian


def heavy(rng, n):
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_t(2.5, n)


@pytest.mark.parametrize("points", [400, None])
def test_intervals_hold_what_they_say_where_noise_has_heavy_tails(rng, points, tmp_path):
    X, y = heavy(rng, 5200)
    n, new, target = 1200, X[1200:], y[1200:]
    model = ExpertGPRegressor(points_per_expert=points, kernel="rbf", random_state=0)
    model.fit(X[:n], y[:n])
    nu = model.degrees_of_freedom_
    assert 2.0 < nu < 3.5
    mean, std = model.predict(new, return_std=True)
    lower, upper = model.predict_interval(new, 0.9)
    said = model._setting({}).deviations
    core, near = said.core, std < said.scale * said.known
    assert near.mean() > 0.9
    half = core * stats.t.ppf(0.95, nu) * std
    np.testing.assert_allclose(upper[near], (mean + half)[near], rtol=1e-10)
    np.testing.assert_allclose(lower + upper, 2 * mean, atol=1e-10)
    density = model.log_predictive_density(new, target)
    expected = stats.t.logpdf(target, nu, mean, core * std)
    np.testing.assert_allclose(density[near], expected[near], rtol=1e-10)
    assert -density.mean() < metrics.nlpd(target, mean, std) - 0.05
    said = diagnose(model, new, target)
    assert said.nlpd == pytest.approx(-density.mean())
    for level in LEVELS:  # three standard errors of 4,000 rows, and what 1,200 leave open of ν
        error = 3 * np.sqrt(level * (1 - level) / len(new)) + 0.01
        assert abs(said.coverage[level] - level) < error
        assert abs(np.mean((lower < target) & (target < upper)) - 0.9) < 0.03
    # a Gaussian that is as wide at 95 % is far from that at 50 %
    assert metrics.coverage(target, mean, std, 0.5) > 0.6
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.degrees_of_freedom_ == nu
    np.testing.assert_array_equal(
        again.predict_interval(new[:9])[1], model.predict_interval(new[:9])[1]
    )


def test_draws_have_the_tails_of_each_row(rng):
    X, y = heavy(rng, 600)
    model = ExpertGPRegressor(points_per_expert=300, kernel="rbf", random_state=0).fit(X, y)
    assert np.isfinite(model.degrees_of_freedom_)
    rows = np.array([[0.0, 0.0], [0.001, 0.0], [1.5, -1.0]])
    draws = model.sample_y(rows, n_samples=20_000, random_state=0)
    for coverage in (0.5, 0.95, 0.99):
        lower, upper = model.predict_interval(rows, coverage)
        inside = (lower[:, None] < draws) & (draws < upper[:, None])
        np.testing.assert_allclose(inside.mean(axis=1), coverage, atol=0.015)
    cov = model.predict(rows, return_cov=True)[1]
    rank = stats.spearmanr(draws[0], draws[1]).statistic
    expected = 6 / np.pi * np.arcsin(cov[0, 1] / np.sqrt(cov[0, 0] * cov[1, 1]) / 2)
    assert rank == pytest.approx(expected, abs=0.03)


def test_a_rule_or_hyperparameters_that_were_given_keep_their_gaussian(rng):
    X, y = heavy(rng, 600)
    model = ExpertGPRegressor(points_per_expert=200, kernel="rbf", random_state=0).fit(X, y)
    assert np.isfinite(model.degrees_of_freedom_)
    mean, std = model.set_params(aggregation="gpoe").predict(X[:5], return_std=True)
    assert model.degrees_of_freedom_ == np.inf
    np.testing.assert_allclose(
        model.log_predictive_density(X[:5], y[:5]), stats.norm.logpdf(y[:5], mean, std)
    )
    for points in (200, None):  # what the fit did counts, not what is set afterwards
        given = ExpertGPRegressor(points_per_expert=points, kernel="rbf", max_iter=0)
        assert given.fit(X, y).set_params(max_iter=100).degrees_of_freedom_ == np.inf
        given.fit(X, y).set_params(max_iter=0)
        assert np.isfinite(given.degrees_of_freedom_)
    sparse = ExpertGPRegressor(points_per_expert=300, n_inducing=30, kernel="rbf", random_state=0)
    assert 1.1 < sparse.fit(X, y).degrees_of_freedom_ < 5


def test_gaussian_noise_stays_gaussian(rng):
    X, y = heavy(rng, 900)
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(900)
    for points in (300, None):
        model = ExpertGPRegressor(points_per_expert=points, kernel="rbf", random_state=0)
        assert model.fit(X, y).degrees_of_freedom_ == np.inf


def test_a_stream_that_begins_with_one_expert_compares_rules_later(rng):
    X, y = heavy(rng, 1000)
    model = ExpertGPRegressor(points_per_expert=150, kernel="rbf", random_state=0)
    model.fit(X[:150], y[:150])
    assert model.n_experts_ == 1
    assert model.aggregation_scores_ == {}
    for start in range(150, 1000, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
    assert model.n_experts_ > 3
    assert set(model.aggregation_scores_) == {"gpoe", "nested"}


@pytest.mark.parametrize("weighting", ["softmax_variance", "uniform"])
def test_intervals_in_either_space(rng, weighting):
    X, y = heavy(rng, 4200)
    for space in "fy":
        model = ExpertGPRegressor(
            points_per_expert=400, n_inducing=30, kernel="rbf", weighting=weighting, space=space,
            random_state=0,
        ).fit(X[:1200], y[:1200])  # fmt: skip
        coverage = diagnose(model, X[1200:], y[1200:]).coverage
        for level in (0.5, 0.8, 0.95):
            assert abs(coverage[level] - level) < 0.05
