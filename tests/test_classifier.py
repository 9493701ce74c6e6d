"""ExpertGPClassifier: scikit-learn's checks, quality on real sets, labels, bad input."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from healgp import ExpertGPClassifier
from healgp.likelihoods import RobustMax, Softmax
from naive import weights as naive_weights

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@parametrize_with_checks(
    [ExpertGPClassifier(max_iter=10), ExpertGPClassifier(points_per_expert=20, max_iter=5)]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def blobs(n=240, C=3, D=2, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, n)
    centres = 2.0 * np.stack([np.cos(2 * np.pi * np.arange(C) / C),
                              np.sin(2 * np.pi * np.arange(C) / C)], axis=1)  # fmt: skip
    X = rng.standard_normal((n, D))
    X[:, :2] += centres[y]
    return X, y


X, Y = blobs()


def make(**parameters):
    defaults = {"points_per_expert": 80, "n_inducing": 20, "random_state": 0, "max_iter": 10}
    return ExpertGPClassifier(**defaults | parameters)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer, load_digits])
def test_real_sets_against_nearest_neighbours(load):
    data, labels = load(return_X_y=True)
    # accuracy within 0.005 needs many rows: five halves for the small sets
    seeds = range(1) if load is load_digits else range(5)
    ours, theirs = [], []
    for seed in seeds:
        a, b, c, d = train_test_split(data, labels, test_size=0.5, random_state=seed)
        p = ExpertGPClassifier(random_state=0, max_iter=20).fit(a, c).predict_proba(b)
        neighbours = make_pipeline(StandardScaler(), KNeighborsClassifier(5)).fit(a, c)
        q = np.clip(neighbours.predict_proba(b), 1e-3, 1.0)  # else it is infinite
        for scores, r in ((ours, p), (theirs, q)):
            scores.append([np.mean(r.argmax(1) == d), -np.log(r[np.arange(len(d)), d]).mean()])
    (accuracy, nlpd), (their_accuracy, their_nlpd) = np.mean(ours, 0), np.mean(theirs, 0)
    assert accuracy >= their_accuracy - 0.005
    assert nlpd < 0.9 * their_nlpd


def test_mnist_with_a_tenth_of_the_images():
    """Or, without them, with handwritten digits of eight by eight pixels."""
    from sklearn.decomposition import PCA

    try:
        from healgp import datasets

        images, labels = datasets.load("mnist")
        train, test, bound = slice(0, 6000), slice(60_000, 62_000), (0.92, 0.28)
    except FileNotFoundError:
        images, labels = load_digits(return_X_y=True)
        train, test, bound = slice(0, 1200), slice(1200, 1797), (0.9, 0.35)
    pca = PCA(20, random_state=0).fit(images[train])
    model = ExpertGPClassifier(random_state=0, max_iter=10)
    model.fit(pca.transform(images[train]), labels[train])
    new = pca.transform(images[test])
    accuracy = model.score(new, labels[test])
    nlpd = -model.log_predictive_density(new, labels[test]).mean()
    assert accuracy > bound[0]
    assert nlpd < bound[1]
    # softmax weights are ahead of uniform ones
    healed, uniform = model.predict_many(new, [{}, {"weighting": "uniform"}])
    rows, columns = np.arange(len(new)), np.searchsorted(model.classes_, labels[test])
    assert np.log(healed[rows, columns]).mean() > np.log(uniform[rows, columns]).mean()


def test_calibration_on_simulated_classes():
    """Probabilities say how often they are right: overlapping classes whose truth is known."""
    X, y = blobs(3000)
    model = make(points_per_expert=300).fit(X[:1500], y[:1500])
    p = model.predict_proba(X[1500:])
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    centres = 2.0 * np.stack([np.cos(2 * np.pi * np.arange(3) / 3),
                              np.sin(2 * np.pi * np.arange(3) / 3)], axis=1)  # fmt: skip
    logits = X[1500:] @ centres.T
    truth = np.exp(logits - logits.max(1, keepdims=True))
    truth /= truth.sum(axis=1, keepdims=True)
    assert np.abs(p - truth).mean() < 0.03
    confident = p.max(axis=1)
    right = p.argmax(axis=1) == y[1500:]
    for low, high in ((0.4, 0.7), (0.7, 0.9), (0.9, 1.0)):
        here = (confident > low) & (confident <= high)
        assert abs(right[here].mean() - confident[here].mean()) < 0.08


@pytest.mark.parametrize("likelihood", ["robustmax", "softmax"])
def test_likelihoods_agree_on_easy_classes(likelihood):
    model = make(likelihood=likelihood).fit(X, Y)
    assert model.score(X, Y) > 0.9
    mean, var = model.predict_f(X)
    assert mean.shape == var.shape == (240, 3)
    assert (var > 0).all()
    kind = {"robustmax": RobustMax, "softmax": Softmax}[likelihood]
    expected = kind(n_classes=3).probabilities(mean, var)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-9)


def test_weights_and_rules_act_on_every_latent_function():
    model = make(temperature=7.0).fit(X, Y)
    new = X[:10] + 0.1
    mean, var = model.expert_moments(new)
    J, s2 = model.n_experts_, model.signal_variance_
    assert mean.shape == (J, 10, 3)
    weights = model.expert_weights(new)
    for c in range(3):
        expected = naive_weights("softmax_variance", mean[..., c], var[..., c] / s2, 1.0, 7.0, True)
        np.testing.assert_allclose(weights[..., c], expected, rtol=1e-8)
    precision = (weights / var).sum(axis=0)
    f_mean, f_var = model.predict_f(new)
    np.testing.assert_allclose(f_var, 1 / precision, rtol=1e-8)
    np.testing.assert_allclose(f_mean, (weights * mean / var).sum(axis=0) / precision, rtol=1e-7)


def test_settings_and_predict_many():
    model = make().fit(X, Y)
    settings = [
        dict(aggregation=rule, weighting=weighting)
        for rule in ("poe", "gpoe", "bcm", "rbcm", "barycenter", "wasserstein")
        for weighting in ("uniform", "entropy", "softmax_variance")
    ]
    for setting, p in zip(settings, model.predict_many(X, settings), strict=True):
        np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
        one = clone(model).set_params(**setting)
        one.__dict__.update({k: v for k, v in model.__dict__.items() if k not in setting})
        np.testing.assert_array_equal(one.predict_proba(X), p)
    with pytest.raises(ValueError, match="'space'"):
        model.predict_many(X, [{"space": "y"}])
    with pytest.raises(ValueError, match=r"grbcm.*exact experts"):
        model.predict_many(X, [{"aggregation": "grbcm"}])


@pytest.mark.parametrize(
    "names",
    [
        ["ash", "beech", "cedar"],
        [-5, 7, 1000],
        [10, 20, 30],
        np.array(["a", "b", "c"], dtype=object),
    ],
)
def test_labels_of_any_type(names):
    names = np.array(names)
    model = make().fit(X, names[Y])
    assert list(model.classes_) == sorted(names)
    predicted = model.predict(X)
    assert predicted.dtype == model.classes_.dtype
    reference = make().fit(X, Y)
    order = np.searchsorted(model.classes_, names)
    np.testing.assert_allclose(
        model.predict_proba(X)[:, order], reference.predict_proba(X), atol=2e-2
    )
    assert np.isfinite(model.log_predictive_density(X, names[Y])).all()
    with pytest.raises(ValueError, match="is not among"):
        model.log_predictive_density(X[:1], [{"U": "oak", "O": "oak"}.get(names.dtype.kind, 77)])


def test_booleans_and_two_classes():
    model = make().fit(X, Y > 0)
    assert model.classes_.tolist() == [False, True]
    assert model.score(X, Y > 0) > 0.9
    mean, var = model.predict_f(X)
    assert mean.shape == var.shape == (240,)
    # turning the labels round turns the probabilities round
    other = make().fit(X, Y == 0)
    np.testing.assert_allclose(other.predict_proba(X)[:, ::-1], model.predict_proba(X), atol=2e-2)


def test_many_classes():
    many, labels = blobs(1200, C=60, seed=3)
    model = make(points_per_expert=400, n_inducing=40, max_iter=2).fit(many, labels)
    p = model.predict_proba(many)
    assert p.shape == (1200, 60)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    assert np.mean(p.argmax(axis=1) == labels) > 4 / 60


@pytest.mark.parametrize("likelihood", ["auto", "robustmax"])
def test_classes_that_experts_never_see(likelihood):
    """Each expert knows some of the classes, one of them a single class; one class has one row."""
    labels = np.where(Y == 2, 1, 0)
    rare = Y.copy()
    rare[0] = 3
    model = make(partition=labels, likelihood=likelihood).fit(X, rare)
    assert model.n_experts_ == 2
    p = model.predict_proba(X)
    assert np.isfinite(p).all()
    assert np.mean(p.argmax(axis=1) == rare) > 0.8
    assert make(partition=Y, likelihood=likelihood).fit(X, Y).score(X, Y) > 0.8


def spoil(a, where, value):
    a = np.array(a, dtype=object if isinstance(value, str | type(None)) else float)
    a[where] = value
    return a


@pytest.mark.parametrize(
    ("bad_X", "bad_y", "message"),
    [
        (spoil(X, (3, 1), np.nan), Y, "NaN"),
        (spoil(X, (3, 1), np.inf), Y, "infinity"),
        (X, spoil(Y, 5, np.nan), "NaN"),
        (X, np.zeros(240), "one class"),
        (X, np.array(["a"] * 240), "one class"),
        (X, Y + 0.5 * np.random.default_rng(0).random(240), "continuous"),
        (X, np.c_[Y, Y], "shape"),
        (X, Y[:-1], "inconsistent"),
        (X[:1], Y[:1], "one class"),
        (np.empty((0, 2)), np.empty(0), "0 sample"),
        (X, None, "requires y"),
    ],
    ids=str,
)
def test_refused_in_fit(bad_X, bad_y, message):
    with pytest.raises(ValueError, match=message):
        make().fit(bad_X, bad_y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict(likelihood="gaussian"), "likelihood='gaussian'.*auto, bernoulli"),
        (dict(likelihood="bernoulli"), "two classes, and y has 3"),
        (dict(n_inducing=0), "n_inducing=0.*from 1"),
        (dict(n_inducing=None), "n_inducing=None"),
        (dict(n_inducing=2.5), "n_inducing=2.5"),
        (dict(aggregation="grbcm"), "exact experts"),
        (dict(temperature=-1), "temperature=-1"),
        (dict(points_per_expert=0), "points_per_expert=0"),
        (dict(signal_variance=0.0), "signal_variance=0.0"),
        (dict(lengthscale=-1.0), "lengthscale=-1.0"),
        (dict(max_iter=-1), "max_iter=-1"),
        (dict(partition=np.zeros(3)), "240 rows"),
        (dict(normalize_weights=False, aggregation="barycenter"), "add up to one"),
    ],
    ids=str,
)
def test_refused_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        make(**parameters).fit(X, Y)


ACCEPTED = {
    "float32": X.astype(np.float32),
    "fortran order": np.asfortranarray(X),
    "lists": X.tolist(),
    "constant column": np.c_[X, np.full(240, 7.3)],
    "duplicate columns": np.c_[X, X],
    "one column": X[:, :1],
    "huge": X * 1e100,
    "tiny": X * 1e-100,
    "huge offset": X + 1e9,
    "data frame": pd.DataFrame(X, columns=["a", "b"]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    good = ACCEPTED[name]
    for partition in ("kmeans", "random"):
        model = make(partition=partition, max_iter=5).fit(good, Y)
        p = model.predict_proba(good)
        assert np.isfinite(p).all()
        assert model.score(good, Y) > (0.5 if name == "one column" else 0.85)


def test_duplicate_rows_and_all_rows_equal():
    model = make().fit(np.repeat(X[:30], 10, axis=0), np.repeat(Y[:30], 10))
    assert model.score(X[:30], Y[:30]) > 0.85
    p = make().fit(np.ones((240, 2)), Y).predict_proba(np.ones((1, 2)))
    np.testing.assert_allclose(p[0], np.bincount(Y) / 240, atol=0.06)


def test_few_rows_and_experts_of_one_row():
    # with one row each, some experts are left without any when rows are held out
    assert np.isfinite(make(points_per_expert=1).fit(X[:40], Y[:40]).predict_proba(X)).all()
    for n in (2, 3, 5):
        p = make(points_per_expert=1).fit(X[:n], np.arange(n) % 2).predict_proba(X)
        assert np.isfinite(p).all()


def test_read_only_input_is_accepted_and_not_changed():
    frozen = X.copy()
    frozen.setflags(write=False)
    assert np.array_equal(
        make().fit(frozen, Y).predict_proba(frozen), make().fit(X, Y).predict_proba(X)
    )


def test_deterministic_and_the_same_for_any_number_of_threads():
    one, two = (make(n_jobs=n).fit(X, Y).predict_proba(X) for n in (1, 2))
    assert np.array_equal(one, two)


def test_pickle_grid_search_and_not_fitted():
    model = make().fit(X, Y)
    assert np.array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X)
    )
    search = GridSearchCV(make(max_iter=2), {"n_inducing": [5, 20]}, cv=2, n_jobs=2).fit(X, Y)
    assert search.best_score_ > 0.8
    with pytest.raises(NotFittedError):
        make().predict_proba(X)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(np.c_[X, X[:, 0]])


def test_max_iter_zero_keeps_the_starting_values():
    model = make(max_iter=0, lengthscale=0.7, signal_variance=3.0).fit(X, Y)
    np.testing.assert_array_equal(model.lengthscales_, [0.7, 0.7])
    assert model.signal_variance_ == 3.0
    assert model.n_iter_ == 0
    assert np.isfinite(model.elbo_)


def test_training_raises_the_elbo_and_warns_when_it_stops_early():
    theta = dict(lengthscale=[1.0, 1.0], signal_variance=10.0)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 "):
        make(max_iter=1, n_inducing=8, **theta).fit(X, Y)


def test_one_sparse_gp_on_a_sample_of_its_rows(monkeypatch):
    """Inducing inputs are trained on a sample, the posterior is that of all rows."""
    from healgp import training

    monkeypatch.setattr(training, "TRAINING_SITES", 300)
    model = make(points_per_expert=None, n_inducing=10).fit(X, Y)
    assert model.n_experts_ == 1
    assert len(model._committee.sites.weight) == 240
    assert model.score(X, Y) > 0.9


def test_a_fit_that_fails_leaves_the_earlier_one():
    model = make().fit(X, Y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="one class"):
        model.fit(np.c_[X, X], np.zeros(240))
    assert np.array_equal(model.predict_proba(X), before)
    assert model.n_features_in_ == 2


@pytest.mark.parametrize("where", ["held_out", "objective"])
def test_an_interrupted_fit_is_finished(monkeypatch, where):
    from healgp.experts.sparse import SparseCommittee

    original, calls = getattr(SparseCommittee, where), []

    def interrupt(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(SparseCommittee, where, interrupt)
    with pytest.warns(UserWarning, match="interrupted"):
        model = make().fit(X, Y)
    assert model.score(X, Y) > 0.85


def test_a_start_far_off_is_brought_back():
    model = make(signal_variance=1e4).fit(X, Y)
    assert model.signal_variance_ <= 110
    assert model.score(X, Y) > 0.9
    many = np.c_[X, np.random.default_rng(0).standard_normal((240, 60))]
    assert make(lengthscale=0.5).fit(many, Y).score(many, Y) > 0.8


def test_far_rows_have_even_probabilities():
    p = make().fit(X, Y).predict_proba([[1e200, 0.0]])
    np.testing.assert_allclose(p, 1 / 3, atol=1e-6)


def test_many_columns_and_noisy_labels(rng):
    X = rng.standard_normal((1600, 25))
    p = 1.0 / (1.0 + np.exp(-2.0 * X[:, 0]))
    y = rng.random(1600) < p
    model = ExpertGPClassifier(random_state=0).fit(X[:800], y[:800])
    truth = -np.mean(np.log(np.where(y, p, 1.0 - p))[800:])
    assert -model.log_predictive_density(X[800:], y[800:]).mean() < truth + 0.05
