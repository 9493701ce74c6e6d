"""Input that is wrong or extreme: a right answer, or one clear error; never a NaN."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from healgp import ExpertGPRegressor
from healgp.kernels import KERNELS


def make(**parameters):
    return ExpertGPRegressor(**{"points_per_expert": 20, "random_state": 0} | parameters)


def rows(n=60, D=2):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (n, D))
    return X, np.sin(X[:, 0]) + 0.05 * rng.standard_normal(n)


def spoil(a, where, value):
    a = a.astype(object if isinstance(value, str) else float)
    a[where] = value
    return a


X, Y = rows()

REFUSED = {
    "NaN in X": (spoil(X, (3, 1), np.nan), Y, "NaN"),
    "infinity in X": (spoil(X, (3, 1), np.inf), Y, "infinity"),
    "NaN in y": (X, spoil(Y, 5, np.nan), "NaN"),
    "infinity in y": (X, spoil(Y, 5, -np.inf), "infinity"),
    "string in X": (spoil(X, (0, 0), "red"), Y, "could not convert string"),
    "string in y": (X, spoil(Y, 0, "red"), "could not convert string"),
    "empty": (np.empty((0, 2)), np.empty(0), "0 sample"),
    "no columns": (np.empty((60, 0)), Y, "0 feature"),
    "one-dimensional X": (X[:, 0], Y, "2D array"),
    "three-dimensional X": (X[None], Y, "dim 3"),
    "unequal lengths": (X, Y[:-1], "inconsistent numbers of samples"),
    "no y": (X, None, "requires y to be passed"),
    "two outputs": (X, np.c_[Y, Y], "2 columns.*MultiOutputRegressor"),
    "complex": (X + 1j, Y, "[Cc]omplex"),
    "spread overflows": (X * 8e307, Y, "too large"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_refused_in_fit(name):
    bad_X, bad_y, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make().fit(bad_X, bad_y)


def test_errors_show_no_value_of_the_data():
    """scikit-learn's own messages print the array, or the cell."""
    model = make().fit(X, Y)
    shown = [f"{value:.4f}"[:5] for value in (*X[0], Y[0])]
    for bad in (spoil(X, (0, 0), "secret"), X[:, 0], X + 1j):
        for method in (lambda bad: make().fit(bad, Y), model.predict):
            with pytest.raises(ValueError, match=r"text|2D array|Complex") as error:
                method(bad)
            assert not any(text in str(error.value) for text in ("secret", *shown))
    for bad in (spoil(Y, 0, "secret"), Y + 1j):
        for method in (lambda bad: make().fit(X, bad), lambda bad: model.calibrate(X, bad)):
            with pytest.raises(ValueError, match=r"text|Complex") as error:
                method(bad)
            assert not any(text in str(error.value) for text in ("secret", *shown))


def test_masked_values_are_missing():
    hidden = np.ma.masked_equal(X, X[3, 1])
    for call in (
        lambda: make().fit(hidden, Y),
        lambda: make().fit(X, np.ma.masked_equal(Y, Y[3])),
        lambda: make().fit(X, Y).predict(hidden),
        lambda: make().fit(X, Y).partial_fit(hidden, Y),
    ):
        with pytest.raises(ValueError, match="masked values"):
            call()
    nothing_hidden = np.ma.masked_array(X, mask=np.zeros(X.shape, bool))
    assert np.array_equal(make().fit(nothing_hidden, Y).predict(X), make().fit(X, Y).predict(X))


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_variances_beyond_floats_are_refused_and_deviations_given(scale):
    model = make().fit(X, Y * scale)
    std, expected = model.predict(X, return_std=True)[1], make().fit(X, Y).predict(X, True)[1]
    np.testing.assert_allclose(std / scale, expected, rtol=1e-6)
    for ask in (model.predict_f, model.expert_moments, lambda X: model.predict(X, return_cov=True)):
        with pytest.raises(ValueError, match="return_std=True"):
            ask(X)


def test_sparse_is_refused():
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        make().fit(scipy.sparse.csr_matrix(X), Y)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (X[:, :1], "1 features.*2 features"),
        (np.c_[X, X], "4 features.*2 features"),
        (np.empty((0, 2)), "0 sample"),
        (spoil(X, (0, 0), np.nan), "NaN"),
        (spoil(X, (0, 0), np.inf), "infinity"),
        (X[0], "2D array"),
        (spoil(X, (0, 0), "a"), "could not convert"),
    ],
)
def test_refused_in_predict(bad, message):
    model = make().fit(X, Y)
    for method in (model.predict, model.predict_f, model.expert_weights):
        with pytest.raises(ValueError, match=message):
            method(bad)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict(points_per_expert=0), "points_per_expert=0.*from 1"),
        (dict(points_per_expert=2.5), "points_per_expert=2.5.*whole"),
        (dict(points_per_expert=True), "points_per_expert=True"),
        (dict(partition="kmean"), "kmeans.*random|random.*kmeans"),
        (dict(partition=np.zeros(7)), r"shape \(7,\).*60 rows"),
        (dict(partition=lambda X, J, rng: np.zeros(3)), r"shape \(3,\).*60 rows"),
        (dict(partition=np.full(60, np.nan)), "NaN"),
        (dict(kernel="RBF"), "kernel='RBF'.*rbf, matern12"),
        (dict(aggregation="mean"), "aggregation='mean'.*gpoe"),
        (dict(weighting="softmax"), "weighting='softmax'.*softmax_variance"),
        (dict(temperature=-3), "temperature=-3.*from 0"),
        (dict(temperature=np.nan), "temperature=nan"),
        (dict(space="x"), "space='x'"),
        (dict(lengthscale=0.0), "lengthscale=0.0.*above 0"),
        (dict(lengthscale=[1.0, 2.0, 3.0]), "3 values.*2 columns"),
        (dict(lengthscale="long"), "lengthscale='long'"),
        (dict(lengthscale=[1.0, 2.0], ard=False), "ard=False"),
        (dict(signal_variance=0), "signal_variance=0.*above 0"),
        (dict(noise_variance=-1), "noise_variance=-1.*above 0"),
        (dict(noise_variance=np.inf), "noise_variance=inf"),
        (dict(max_iter=-1), "max_iter=-1"),
        (dict(n_jobs=0), "n_jobs=0"),
        (dict(n_jobs=1.5), "n_jobs=1.5"),
        (dict(ard="no"), "ard='no'"),
        (dict(standardize=1), "standardize=1"),
        (dict(normalize_weights=0), "normalize_weights=0"),
        (dict(temperature=10**400), "temperature=1"),
        (dict(partition=np.array([1, np.nan] * 30, dtype=object)), "missing"),
        (dict(partition=["a", None] * 30), "cannot be sorted"),
        (dict(partition=np.ma.masked_equal(np.arange(60) % 3, 2)), "missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_refused_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        make(**parameters).fit(X, Y)


def test_settings_of_predict_many_are_checked():
    model = make().fit(X, Y)
    with pytest.raises(ValueError, match=r"'kernel'.*aggregation, weighting"):
        model.predict_many(X, [{"kernel": "rbf"}])
    with pytest.raises(ValueError, match="list of dicts"):
        model.predict_many(X, {"aggregation": "poe"})
    with pytest.raises(ValueError, match="y has shape"):
        model.log_predictive_density(X, Y[:3])
    with pytest.raises(ValueError, match="y contains NaN"):
        model.log_predictive_density(X, spoil(Y, 0, np.nan))
    bary = dict(aggregation="barycenter", normalize_weights=np.False_)
    with pytest.raises(ValueError, match="add up to one"):
        model.predict_many(X, [bary])
    assert model.predict_many(X, []) == []


def right(model, new, expected, tolerance=0.15):
    mean, std = model.predict(new, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    np.testing.assert_allclose(mean, expected, atol=tolerance * (np.ptp(expected) or 1))


ONE = np.ones((60, 1))
ACCEPTED = {
    "float32": (X.astype(np.float32), Y.astype(np.float32)),
    "float16": (X.astype(np.float16), Y.astype(np.float16)),
    "integers": (np.arange(120).reshape(60, 2), np.arange(60)),
    "booleans": (np.c_[X[:, 0] > 0, X[:, 1] > 0], np.where(X[:, 0] > 0, 1.0, 2.0)),
    "lists": (X.tolist(), Y.tolist()),
    "numbers as objects": (X.astype(object), Y.astype(object)),
    "fortran order": (np.asfortranarray(X), Y),
    "not contiguous": (np.repeat(X, 2, axis=0)[::2], np.repeat(Y, 2)[::2]),
    "one column": (X[:, :1], Y),
    "constant column": (np.c_[X, 7.3 * ONE], Y),
    "constant column of huge numbers": (np.c_[X, 1e17 / 3 * ONE], Y),
    "duplicate columns": (np.c_[X, X], Y),
    "column vector y": (X, Y[:, None]),
    "huge X": (X * 1e100, Y),
    "tiny X": (X * 1e-100, Y),
    "huge y": (X, Y * 1e100),
    "tiny y": (X, Y * 1e-100),
    "huge offset": (X + 1e9, Y + 1e9),
    "duplicate rows": (np.repeat(X, 10, axis=0), np.repeat(Y, 10)),
    "constant y": (X, np.full(60, 3.25)),
    "constant zero y": (X, np.zeros(60)),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("partition", ["kmeans", "random", "balanced"])
def test_accepted(name, partition):
    good_X, good_y = ACCEPTED[name]
    model = make(partition=partition).fit(good_X, good_y)
    right(model, good_X, np.ravel(np.asarray(good_y, dtype=float)))


@pytest.mark.parametrize("aggregation", ["poe", "gpoe", "bcm", "rbcm", "grbcm", "wasserstein"])
def test_one_row_and_a_few(aggregation):
    for n in (1, 2, 3):
        model = make(aggregation=aggregation, points_per_expert=2).fit(X[:n], Y[:n])
        mean, std = model.predict(X, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()


def test_all_rows_equal():
    model = make().fit(np.ones((60, 2)), Y)
    right(model, np.ones((3, 2)), np.full(3, Y.mean()), tolerance=0.3)


def test_fewer_rows_than_an_expert_is_one_expert():
    model = make(points_per_expert=1000).fit(X, Y)
    assert model.n_experts_ == 1
    right(model, X, Y)


def test_every_row_its_own_expert():
    model = make(points_per_expert=1).fit(X, Y)
    assert model.n_experts_ == 60
    right(model, X, Y, tolerance=0.4)


def test_read_only_arrays_and_memory_maps(tmp_path):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    frozen = Y.copy()
    frozen.setflags(write=False)
    model = make().fit(mapped, frozen)
    assert np.array_equal(model.predict(mapped), make().fit(X, Y).predict(X))


def test_input_is_not_changed():
    X_before, y_before = X.copy(), Y.copy()
    make(standardize=False).fit(X, Y).predict(X)
    assert np.array_equal(X, X_before)
    assert np.array_equal(Y, y_before)


def test_labels_with_gaps_and_of_any_type():
    model = make(partition=np.where(X[:, 0] > 0, "right", "left")).fit(X, Y)
    assert model.n_experts_ == 2
    right(model, X, Y)
    assert make(partition=np.arange(60) // 20 * 1000 - 5).fit(X, Y).n_experts_ == 3


def test_data_frame_columns_that_are_missing_or_text():
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = make().fit(frame, Y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["a"]])
    with pytest.raises(ValueError, match="could not convert"):
        make().fit(frame.assign(c="text"), Y)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "rational_quadratic"])
def test_noise_free_and_duplicated_rows_train(kernel):
    """Data that drive the noise to zero: no failure of Cholesky, and interpolation."""
    doubled = np.repeat(X, 4, axis=0)
    y = np.sin(doubled[:, 0]) * doubled[:, 1]
    model = make(points_per_expert=80, kernel=kernel).fit(doubled, y)
    right(model, X, y[::4], tolerance=0.05)


@pytest.mark.parametrize("standardize", [True, False])
def test_extreme_starting_values(standardize):
    for lengthscale, signal, noise in ((1e-8, 1e-8, 1e-12), (1e8, 1e8, 1e8), (1e8, 1.0, 1e-12)):
        for max_iter in (0, 100):
            model = make(
                lengthscale=lengthscale, signal_variance=signal, noise_variance=noise,
                max_iter=max_iter, standardize=standardize,
            )  # fmt: skip
            mean, std = model.fit(X, Y).predict(X, return_std=True)
            assert np.isfinite(mean).all()
            assert (std > 0).all()


def test_a_fit_that_fails_leaves_the_earlier_one():
    model = make().fit(X, Y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="lengthscale"):
        model.set_params(lengthscale=-1.0).fit(X * 100 + 50, Y * 10 + 1000)

    def fails(X, n_experts, rng):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.set_params(lengthscale=1.0, partition=fails).fit(X * 100 + 50, Y * 10 + 1000)
    assert np.array_equal(model.predict(X), before)
    unfitted = make(lengthscale=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="lengthscale"):
        unfitted.fit(X, Y)
    with pytest.raises(NotFittedError):
        unfitted.predict(X)


@pytest.mark.parametrize("kernel", KERNELS)
def test_far_rows_return_to_the_prior(kernel):
    model = make(kernel=kernel).fit(X, Y)
    for far in (1e3, 1e151, 1e200):
        mean, std = model.predict([[far, 0.0]], return_std=True)
        prior = Y.std() * np.sqrt(model.signal_variance_ + model.noise_variance_)
        tolerance = 0.1 if kernel == "rational_quadratic" and far < 1e4 else 1e-6
        assert mean[0] == pytest.approx(Y.mean(), abs=tolerance)
        assert std[0] == pytest.approx(prior, rel=tolerance)


def test_a_constant_column_does_not_bound_the_lengthscale_of_the_others():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1e-3, 300)
    y = np.sin(6e3 * x) + 0.1 * rng.standard_normal(300)
    for columns in (np.c_[x], np.c_[x, np.ones(300)]):
        model = make(ard=False, standardize=False, lengthscale=2e-4, points_per_expert=50)
        model.fit(columns, y)
        assert np.std(model.predict(columns) - y) < 0.15


@pytest.mark.parametrize("scale", [1e160, 1e-160])
def test_extreme_scales_without_standardising_are_refused(scale):
    with pytest.raises(ValueError, match="standardize=True"):
        make(standardize=False).fit(X, Y * scale)
    with pytest.raises(ValueError, match="standardize=True"):
        make(standardize=False).fit(X * scale, Y)


def test_rows_that_are_equal_do_not_make_one_huge_expert():
    rng = np.random.default_rng(0)
    repeated = rng.standard_normal((2000, 3))
    repeated[:1000] = 0.0
    model = make(points_per_expert=50, max_iter=0).fit(repeated, repeated[:, 0])
    assert np.bincount(model.labels_).max() <= 200
    assert np.isfinite(model.predict(repeated)).all()


def test_a_huge_constant_column_and_tiny_targets_train():
    huge = np.c_[X, np.full(60, 1e160)]
    assert make(standardize=False).fit(huge, Y).n_iter_ > 1
    twice = np.repeat(X, 2, axis=0)
    model = make(
        standardize=False, kernel="matern12", signal_variance=1e-198, noise_variance=1e-199
    )
    assert model.fit(twice, np.repeat(Y, 2) * 1e-99).n_iter_ > 1
    with pytest.raises(ValueError, match="y are too large"), np.errstate(all="ignore"):
        make().fit(X, np.linspace(1, 1.5, 60) * 1e308)
