"""Pictures: what is drawn is what the model says; what cannot be drawn is refused in words."""

import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from healgp import ExpertGPClassifier, ExpertGPRegressor, metrics, plots
from healgp.datasets import robot_arm
from healgp.plots import style

NAMES = ["$a$ cost", "<b>", "c", "d", "e", "f", "g", "h"]


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def arm():
    X, y = robot_arm(900)
    X = pd.DataFrame(X, columns=NAMES)
    model = ExpertGPRegressor(
        points_per_expert=100, kernel="rbf", aggregation="gpoe", training="full", random_state=0
    )
    return model.fit(X[:600], y[:600]), X[600:], y[600:]


@pytest.fixture(scope="module")
def line():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 6, 150))
    y = np.sin(x) + 0.1 * rng.standard_normal(150)
    model = ExpertGPRegressor(points_per_expert=50, kernel="rbf", random_state=0)
    return model.fit(pd.DataFrame({"time": x}), y), x, y


@pytest.fixture(scope="module")
def classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)
    model = ExpertGPClassifier(points_per_expert=100, n_inducing=10, random_state=0)
    return model.fit(X, y), X, y


def by_label(ax, label):
    return next(item for item in (*ax.lines, *ax.collections) if item.get_label() == label)


def test_a_fit_shows_mean_interval_and_experts(line):
    model, x, y = line
    ax = plots.fit(model, x, y)
    grid, mean = by_label(ax, "committee").get_data()
    assert grid[0] < x.min() < x.max() < grid[-1]
    table = pd.DataFrame({"time": grid})
    np.testing.assert_allclose(mean, model.predict(table))
    lower, upper = model.predict_interval(table)
    corners = by_label(ax, "95 % interval").get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(lower.min())
    assert corners[:, 1].max() == pytest.approx(upper.max())
    drawn = [item.get_ydata() for item in ax.lines if len(item.get_xdata()) == len(grid)]
    for expert in model.expert_moments(table)[0]:
        assert any(np.allclose(expert, other) for other in drawn)
    assert ax.get_xlabel() == "time"


def test_a_fit_of_counts_shows_rates(line):
    _, x, _ = line
    y = np.random.default_rng(1).poisson(np.exp(1 + np.sin(x)))
    model = ExpertGPRegressor(
        points_per_expert=75, likelihood="poisson", n_inducing=10, kernel="rbf", random_state=0
    ).fit(x[:, None], y)
    ax = plots.fit(model)
    experts = [item.get_ydata() for item in ax.lines if len(item.get_xdata()) == 400]
    assert len(experts) == model.n_experts_ + 1
    assert min(values.min() for values in experts) > 0
    assert ax.get_ylabel() == "rate"


def test_the_map_has_every_row_in_its_expert_s_colour(arm):
    model, _, _ = arm
    ax = plots.experts_map(model, columns=("c", 0))
    points = ax.collections[0].get_offsets()
    assert len(points) == 600
    order = np.argsort(model.labels_, kind="stable")
    X = robot_arm(900)[0][:600][order]
    np.testing.assert_allclose(points, X[:, [2, 0]], atol=1e-12)
    own = np.unique(model.labels_, return_inverse=True)[1][order]
    colours = [to_rgb(style.GROUPS[j % len(style.GROUPS)]) for j in own]
    np.testing.assert_allclose(ax.collections[0].get_facecolors()[:, :3], colours)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("c", "$a$ cost")
    ax.figure.canvas.draw()  # a $ is no formula


def test_principal_axes_are_those_of_scikit_learn():
    from sklearn.decomposition import PCA

    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 3))
    model = ExpertGPRegressor(points_per_expert=50, kernel="rbf", max_iter=0).fit(X, X[:, 0])
    points = plots.experts_map(model).collections[0].get_offsets()
    Z = ((X - X.mean(0)) / X.std(0))[np.argsort(model.labels_, kind="stable")]
    want = PCA(2).fit_transform(Z)
    # the model's scales have 26 bits
    np.testing.assert_allclose(np.abs(points), np.abs(want), atol=1e-6)
    assert not plots.experts_map(model, rows=False).collections


def test_votes_are_the_weights(arm, classes):
    model, X, _ = arm
    weights = model.expert_weights(X[:1])[:, 0]
    for row in (X.iloc[0], X.iloc[[0]]):
        ax = plots.votes(model, row)
        heights = [bar.get_height() for bar in ax.patches]
        np.testing.assert_allclose(heights, np.sort(weights)[::-1])
    model, X, _ = classes
    assert sum(bar.get_height() for bar in plots.votes(model, X[0]).patches) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="one row of 2 values; given were 4"):
        plots.votes(model, X[:2])


def test_the_temperature_that_is_used_is_marked_at_the_minimum(arm):
    model, _, _ = arm
    ax = plots.temperature(model)
    temperatures, nlpd = ax.lines[0].get_data()
    np.testing.assert_array_equal(nlpd, model.temperature_curve_[1])
    (x,), (y,) = ax.lines[-1].get_data()
    assert x == model.temperature_ == temperatures[np.argmin(nlpd)]
    assert y == pytest.approx(nlpd.min())


def test_calibration_is_the_coverage(arm, classes):
    model, X, y = arm
    mean, std = model.predict(X, return_std=True)
    levels, shares = plots.calibration(model, X, y).lines[-1].get_data()
    want = [metrics.coverage(y, mean, std, level) for level in levels]
    np.testing.assert_allclose(shares, want, atol=1e-12)
    model, X, y = classes
    confidence, right = plots.calibration(model, X, y).lines[-1].get_data()
    assert np.all(np.diff(confidence) > 0)
    assert right.max() <= 1.0
    assert len(plots.calibration(arm[0]).lines[-1].get_xdata()) == len(levels)


def test_pit_predicted_and_residuals(arm):
    model, X, y = arm
    mean, std = model.predict(X, return_std=True)
    heights = [bar.get_height() for bar in plots.pit(model, X, y).patches[:10]]
    assert sum(heights) == pytest.approx(1.0)
    x, observed = plots.predicted_observed(model, X, y).lines[0].get_data()
    np.testing.assert_allclose(x, mean)
    np.testing.assert_allclose(observed, y)
    ax = plots.residuals(model, X, y, "<b>")
    values, z = ax.lines[-1].get_data()
    np.testing.assert_allclose(values, X["<b>"])
    np.testing.assert_allclose(z, (y - mean) / std)
    assert ax.get_xlabel() == "<b>"


def test_the_training_curve_is_kept(arm, classes):
    model, _, _ = arm
    curve = plots.training_curve(model).lines[0].get_ydata()
    np.testing.assert_array_equal(curve, model.training_curve_)
    assert len(curve) == model.n_iter_
    assert np.all(np.diff(curve) >= 0)
    assert curve[-1] == pytest.approx(model.log_marginal_likelihood_ / 600, rel=1e-9)
    assert len(classes[0].training_curve_) == classes[0].n_iter_
    X, y = robot_arm(900)
    stages = ExpertGPRegressor(points_per_expert=10, kernel="rbf", random_state=0).fit(X, y)
    assert len(stages.training_curve_) == stages.n_iter_
    x = X[:, :1]
    sparse = ExpertGPRegressor(n_inducing=10, kernel="rbf", random_state=0).fit(
        x, np.sin(3 * x[:, 0])
    )
    assert len(sparse.training_curve_) == sparse.n_iter_ > 1
    assert sparse.training_curve_[-1] == pytest.approx(sparse.elbo_ / 900, rel=1e-6)


def test_relevance_is_in_the_order_of_the_lengthscales(arm):
    model, _, _ = arm
    ax = plots.relevance(model)
    widths = [bar.get_width() for bar in ax.patches]
    np.testing.assert_allclose(widths, np.sort(1.0 / model.lengthscales_))
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == [NAMES[d] for d in np.argsort(1.0 / model.lengthscales_)]
    mine = plots.relevance(model, feature_names=range(8))
    assert {text.get_text() for text in mine.get_yticklabels()} == set("01234567")
    rng = np.random.default_rng(0)
    X = np.column_stack([1000 * rng.normal(size=200), rng.normal(size=200), np.ones(200)])
    raw = ExpertGPRegressor(kernel="rbf", standardize=False, lengthscale=[500.0, 1.0, 1.0],
                            max_iter=0).fit(X, X[:, 1])  # fmt: skip
    found = [bar.get_width() for bar in plots.relevance(raw).patches]
    np.testing.assert_allclose(found, [0.0, *sorted(X.std(0)[:2] / [500.0, 1.0])])


def test_every_picture_is_drawn_on_the_axes_that_are_given(arm, line, classes):
    model, X, y = arm
    draw = [
        lambda ax: plots.fit(*line, ax=ax),
        lambda ax: plots.fit_1d(np.arange(3), np.zeros(3), np.ones(3), ax=ax),
        lambda ax: plots.experts_map(model, ax=ax),
        lambda ax: plots.votes(model, X.iloc[0], ax=ax),
        lambda ax: plots.temperature(model, ax=ax),
        lambda ax: plots.calibration(model, X, y, ax=ax),
        lambda ax: plots.calibration(*classes, ax=ax),
        lambda ax: plots.pit(model, X, y, ax=ax),
        lambda ax: plots.predicted_observed(model, X, y, ax=ax),
        lambda ax: plots.residuals(model, X, y, 0, ax=ax),
        lambda ax: plots.training_curve(model, ax=ax),
        lambda ax: plots.relevance(model, ax=ax),
    ]
    figure, axes = plt.subplots(3, 4)
    for ax, function in zip(axes.flat, draw, strict=True):
        assert function(ax) is ax
        assert ax.has_data()
    assert plt.get_fignums() == [figure.number]


def test_what_cannot_be_drawn_is_said(arm, line, classes):
    model, X, y = arm
    with pytest.raises(ValueError, match="one column, and this one has 8"):
        plots.fit(model)
    with pytest.raises(ValueError, match="ExpertGPRegressor"):
        plots.fit(classes[0])
    with pytest.raises(ValueError, match="needs two columns"):
        plots.experts_map(line[0])
    with pytest.raises(ValueError, match="No column is called 'z'"):
        plots.experts_map(model, columns=("c", "z"))
    with pytest.raises(ValueError, match="must be two columns"):
        plots.experts_map(model, columns=(1,))
    with pytest.raises(ValueError, match="0 to 7"):
        plots.residuals(model, X, y, 8)
    for function in (plots.pit, plots.predicted_observed):
        with pytest.raises(ValueError, match="measurements and counts"):
            function(*classes)
    with pytest.raises(ValueError, match="3 names for 8 columns"):
        plots.relevance(model, feature_names=["a", "b", "c"])
    untrained = ExpertGPRegressor(
        points_per_expert=None, kernel="rbf", ard=False, max_iter=0
    ).fit(X, y)  # fmt: skip
    with pytest.raises(ValueError, match="not trained"):
        plots.training_curve(untrained)
    with pytest.raises(ValueError, match="ard=True"):
        plots.relevance(untrained)
    with pytest.raises(ValueError, match="One expert"):
        plots.temperature(untrained)


#: What people without green, without red and without blue cones see (Viénot 1999, Brettel 1997,
#: on linear rgb).
BLIND = {
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "tritanopia": [[1.01277, 0.13548, -0.14826], [-0.01243, 0.86812, 0.14431],
                   [0.07589, 0.80500, 0.11911]],
}  # fmt: skip


@pytest.mark.parametrize("kind", BLIND)
def test_colours_differ_for_the_colour_blind(kind):
    def lab(colour):
        rgb = np.array(to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        linear = np.clip(np.array(BLIND[kind]) @ linear, 0, 1)
        xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722],
                        [0.0193, 0.1192, 0.9505]]) @ linear / [0.9505, 1.0, 1.089]  # fmt: skip
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    colours = [style.INK, style.SOFT, style.FIT, style.FULL]
    for i, one in enumerate(colours):
        for other in colours[:i]:
            assert np.linalg.norm(lab(one) - lab(other)) > 20, (one, other)


def test_importing_plots_does_not_import_matplotlib():
    code = "import healgp, healgp.plots, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
