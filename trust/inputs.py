"""Bad and extreme input: each gives a right answer, or one clear error that shows no row."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from healgp import ExpertGPClassifier, ExpertGPRegressor
from trust.tally import Tally, main

RNG = np.random.default_rng(1)
N = 60
X = RNG.uniform(-2, 2, (N, 2))
Y = np.sin(X[:, 0]) + 0.05 * RNG.standard_normal(N)
ONES = np.ones((N, 1))
SHORT = {"points_per_expert": 20, "random_state": 0}
FEW = SHORT | {"n_inducing": 8}


def spoil(values: np.ndarray, where: Any, value: Any) -> np.ndarray:
    spoiled = values.astype(object if isinstance(value, str | None) else float)
    spoiled[where] = value
    return spoiled


#: What is fitted: an estimator, and its target.
KINDS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "exact": (partial(ExpertGPRegressor, kernel="rbf", **SHORT), Y),
    "all chosen": (partial(ExpertGPRegressor, **SHORT), Y),
    "sparse": (partial(ExpertGPRegressor, kernel="rbf", **FEW), Y),
    "counts": (
        partial(ExpertGPRegressor, kernel="rbf", likelihood="poisson", **FEW),
        np.floor(np.exp(1 + Y)),
    ),
    "two classes": (partial(ExpertGPClassifier, **FEW), np.where(X[:, 0] > 0, "b", "a")),
    "three classes": (partial(ExpertGPClassifier, **FEW), np.digitize(X[:, 0], [-0.7, 0.7])),
    "robustmax": (
        partial(ExpertGPClassifier, likelihood="robustmax", **FEW),
        np.digitize(X[:, 0], [-0.7, 0.7]),
    ),
}

#: Inputs that must be refused, and words of the message.
REFUSED: dict[str, tuple[Any, str]] = {
    "NaN": (spoil(X, (3, 1), np.nan), "NaN"),
    "infinity": (spoil(X, (3, 1), np.inf), "infinity"),
    "minus infinity": (spoil(X, (N - 1, 0), -np.inf), "infinity"),
    "None": (spoil(X, (3, 1), None), "NaN"),
    "a word": (spoil(X, (0, 0), "secret"), "text where numbers"),
    "words": (np.full((N, 2), "secret"), "text where numbers"),
    "masked": (np.ma.masked_equal(X, X[4, 1]), "masked"),
    "no rows": (X[:0], "0 sample"),
    "no columns": (X[:, :0], "0 feature"),
    "one dimension": (X[:, 0], "2D array"),
    "three dimensions": (X[None], "dim 3"),
    "complex": (X + 1j, "omplex"),
    "sparse matrix": (scipy.sparse.csr_matrix(X), "parse"),
    "lists of unequal length": ([[1.0, 2.0], [3.0]], "inhomogeneous|2D|sequence|samples"),
    "a number": (3.0, "2D array|array"),
    "nothing": (None, "array|None"),
}

#: Inputs that must be answered: what stands for X, and whether it still tells about the target.
ACCEPTED: dict[str, tuple[Any, bool]] = {
    "as it is": (X, True),
    "float32": (X.astype(np.float32), True),
    "float16": (X.astype(np.float16), True),
    "long double": (X.astype(np.longdouble), True),
    "whole numbers": (np.round(100 * X).astype(int), True),
    "small whole numbers": (np.round(40 * X).astype(np.int8), True),
    "truth": (X > 0, False),
    "numbers as objects": (X.astype(object), True),
    "other byte order": (X.astype(X.dtype.newbyteorder()), True),
    "fortran order": (np.asfortranarray(X), True),
    "not contiguous": (np.repeat(X, 3, axis=1)[:, ::3], True),
    "backwards in memory": (X[::-1].copy()[::-1], True),
    "lists": (X.tolist(), True),
    "DataFrame": (pd.DataFrame(X, columns=["a", "b"]), True),
    "one column": (X[:, :1], True),
    "constant column": (np.c_[X, 7.3 * ONES], True),
    "huge constant column": (np.c_[X, 1e17 / 3 * ONES], True),
    "duplicate columns": (np.c_[X, X], True),
    "many columns": (np.c_[X, np.zeros((N, 60))], True),
    "all rows equal": (np.ones((N, 2)), False),
    "all rows zero": (np.zeros((N, 2)), False),
    "one row apart": (np.r_[np.zeros((N - 1, 2)), [[1.0, 1.0]]], False),
    "column scales apart": (X * [1e100, 1e-100], True),
    "shifted far": (X + 1e9, True),
    **{f"times {s:g}": (X * s, True) for s in (1e-300, 1e-100, 1e-30, 1e30, 1e100, 1e300)},
}

#: Targets that must be refused, by the kinds that they are for.
MEASURED = ("exact", "all chosen", "sparse")
NUMBERS = (*MEASURED, "counts")
CLASSES = ("two classes", "three classes", "robustmax")
TARGETS_REFUSED: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "NaN": (NUMBERS, spoil(Y, 5, np.nan), "NaN"),
    "infinity": (NUMBERS, spoil(Y, 5, -np.inf), "infinity"),
    "a word": (NUMBERS, spoil(Y, 0, "secret"), "text where numbers"),
    "masked": (MEASURED, np.ma.masked_equal(Y, Y[4]), "masked"),
    "spread overflows": (MEASURED, Y * 1.5e308, "too large|infinity"),
    "two outputs": (MEASURED, np.c_[Y, Y], "2 columns"),
    "complex": (MEASURED, Y + 1j, "omplex"),
    "none": (tuple(KINDS), None, "requires y"),
    "unequal length": (tuple(KINDS), Y[:-1], "inconsistent"),
    "negative counts": (("counts",), np.floor(Y) - 5, "negative"),
    "fractions of counts": (("counts",), np.abs(Y) + 0.5, "fractional"),
    "one class": (CLASSES, np.full(N, "a"), "one class"),
    "label NaN": (CLASSES, spoil(np.round(Y), 0, np.nan), "NaN"),
    "label None": (CLASSES, spoil(np.where(Y > 0, "a", "b"), 0, None), "label"),
    "measurements as classes": (CLASSES, Y, "continuous"),
}

#: Targets that must be answered.
TARGETS_ACCEPTED: dict[str, tuple[tuple[str, ...], Any]] = {
    "constant": (MEASURED, np.full(N, 3.25)),
    "constant zero": (MEASURED, np.zeros(N)),
    "float32": (MEASURED, Y.astype(np.float32)),
    "float16": (MEASURED, Y.astype(np.float16)),
    "truth": (NUMBERS, Y > 0),
    **{f"times {s:g}": (MEASURED, Y * s) for s in (1e-100, 1e-30, 1e30, 1e100)},
    "shifted far": (MEASURED, Y + 1e9),
    "one row far away": (MEASURED, spoil(Y, 0, 1e6)),
    "zero counts": (("counts",), np.zeros(N)),
    "equal counts": (("counts",), np.full(N, 4)),
    "large counts": (("counts",), np.floor(np.exp(20 + Y))),
    "labels with gaps": (CLASSES, np.where(X[:, 0] > 0, 1000, -5)),
    "a class of one row": (CLASSES, np.where(np.arange(N) == 0, 7, X[:, 0] > 0)),
    "true and false": (CLASSES, X[:, 0] > 0),
    "empty text": (CLASSES, np.where(X[:, 0] > 0, "", "a")),
}

#: Parameters that must be refused, and words of the message.
PARAMETERS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1.0}, "temperature=-1.0"), ({"temperature": "hot"}, "temperature='hot'"),
    ({"kernel": "cubic"}, "kernel='cubic'.*rbf"), ({"kernel": None}, "kernel=None.*rbf"),
    ({"aggregation": "mean"}, "aggregation='mean'.*gpoe"), ({"weighting": "w"}, "weighting='w'"),
    ({"partition": "cubes"}, "kmeans"), ({"partition": 3}, "partition"),
    ({"points_per_expert": 0}, "points_per_expert=0"), ({"n_inducing": 0}, "n_inducing=0"),
    ({"max_iter": -1}, "max_iter=-1"), ({"max_iter": 2.0}, "max_iter=2.0"),
    ({"n_jobs": 0}, "n_jobs=0"), ({"engine": "gpu"}, "engine='gpu'"),
    ({"lengthscale": None}, "lengthscale=None"), ({"lengthscale": -1}, "lengthscale=-1"),
    ({"signal_variance": np.nan}, "signal_variance"), ({"routing": "far"}, "routing='far'"),
    ({"routing_tol": 0}, "routing_tol=0"), ({"memory_budget": np.nan}, "memory_budget=nan"),
    ({"checkpoint": 3}, "checkpoint=3"), ({"random_state": "a"}, "seed"),
]  # fmt: skip

#: Parameters that must be answered.
PARAMETERS_ACCEPTED: list[dict[str, Any]] = [
    {"max_iter": 0}, {"points_per_expert": 1000}, {"points_per_expert": 1},
    {"points_per_expert": None}, {"n_jobs": 500}, {"temperature": 0}, {"temperature": 1e100},
    {"memory_budget": 0}, {"lengthscale": 1e-50}, {"lengthscale": 1e50}, {"standardize": False},
    {"partition": np.arange(N) // 20 * 1000 - 5}, {"partition": "random"}, {"n_inducing": 1000},
]  # fmt: skip


def refused(run: Callable[[], Any], words: str) -> None:
    """One ValueError or TypeError with these words and without a number or a word of the data."""
    import re

    try:
        run()
    except (ValueError, TypeError) as error:
        message = str(error)
        assert re.search(words, message), message
        assert "LAPACK" not in message
        shown = [f"{value:.5g}"[:7].rstrip("0") for value in (*X[:3].ravel(), *Y[:3])]
        for secret in ("secret", *shown):
            assert secret not in message, f"it shows {secret}: {message}"
        return
    raise AssertionError(f"it was not refused, with words like {words!r}")


def answered(model: Any, new: Any, target: Any, tells: bool) -> None:
    """Finite, with positive deviations, and near the target where the input tells about it."""
    if isinstance(model, ExpertGPClassifier):
        p = model.predict_proba(new)
        assert np.isfinite(p).all()
        assert (p >= 0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
        share = np.mean(model.predict(new) == target)
        assert share >= (0.85 if tells else 0.2), f"{share:.0%} are right"
        return
    mean, std = model.predict(new, return_std=True)
    lower, upper = model.predict_interval(new)
    for values in (mean, std, lower, upper, model.log_predictive_density(new, target)):
        assert np.isfinite(values).all()
    assert (std > 0).all()
    assert (lower <= upper).all()
    if tells:
        target = np.asarray(target, dtype=float)
        off = np.mean(np.abs(mean - target)) / (np.ptp(target) or 1.0)
        assert off < 0.15, f"the mean is {off:.2f} of the range off"


def run_kind(tally: Tally, kind: str) -> None:
    """Everything that can be fitted, predicted or learned later by one kind of model."""
    make, target = KINDS[kind]
    fitted = make().fit(X, target)
    partial_too = hasattr(fitted, "partial_fit")
    for name, (bad, words) in REFUSED.items():
        with tally.right(f"{kind}, fit, X: {name}"):
            refused(lambda bad=bad: make().fit(bad, target), words)
        with tally.right(f"{kind}, predict, X: {name}"):
            refused(lambda bad=bad: fitted.predict(bad), words + "|features")
        if partial_too:
            before = fitted.predict(X)
            with tally.right(f"{kind}, partial_fit, X: {name}"):
                refused(lambda bad=bad: fitted.partial_fit(bad, target), words + "|features")
                assert np.array_equal(fitted.predict(X), before), "a refusal changed the model"
    for name, (good, tells) in ACCEPTED.items():
        with tally.right(f"{kind}, fit, X: {name}"):
            answered(make().fit(good, target), good, target, tells)
        if partial_too and np.shape(good) == X.shape and tells and not name.startswith("times"):
            with tally.right(f"{kind}, partial_fit, X: {name}"):
                model = make().fit(good, target)
                answered(model.partial_fit(good, target), good, target, tells)
                assert len(model.labels_) == 2 * N
    with tally.right(f"{kind}, predict far away"):
        p = fitted.predict(np.array([[1e200, 0.0], [-1e308, 1e308], [0.0, 1e-320]]))
        assert np.isfinite(p).all() if p.dtype.kind == "f" else set(p) <= set(fitted.classes_)
    for name, (kinds, bad, words) in TARGETS_REFUSED.items():
        if kind in kinds:
            with tally.right(f"{kind}, fit, y: {name}"):
                refused(lambda bad=bad: make().fit(X, bad), words)
    for name, (kinds, good) in TARGETS_ACCEPTED.items():
        if kind in kinds:
            with tally.right(f"{kind}, fit, y: {name}"):
                tells = name != "one row far away" and (kind, name) != ("counts", "truth")
                answered(make().fit(X, good), X, good, tells)
    for parameters, words in PARAMETERS_REFUSED:
        with tally.right(f"{kind}, {parameters}"):
            refused(lambda p=parameters: make(**SHORT | p).fit(X, target), words)
    for parameters in PARAMETERS_ACCEPTED:
        with tally.right(f"{kind}, {parameters}"):
            model = make(**{"max_iter": 5} | parameters).fit(X, target)
            answered(model, X, target, False)
    for n in (1, 2, 3):
        some = target[:n]
        with tally.right(f"{kind}, {n} rows"):
            if kind in CLASSES and len(set(some.tolist())) < 2:
                refused(lambda n=n, some=some: make().fit(X[:n], some), "one class")
            else:
                answered(make().fit(X[:n], some), X[:n], some, False)
    run_frames(tally, kind)


def run_frames(tally: Tally, kind: str) -> None:
    """DataFrames whose columns are not those of the fit."""
    make, target = KINDS[kind]
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = make().fit(frame, target)
    others = {
        "reordered": frame[["b", "a"]],
        "missing": frame[["a"]],
        "extra": frame.assign(c=1.0),
        "renamed": frame.rename(columns={"a": "z"}),
    }
    for name, other in others.items():
        with tally.right(f"{kind}, predict, columns {name}"):
            refused(lambda other=other: model.predict(other), "feature names|features")
    with tally.right(f"{kind}, read-only"):
        frozen = X.copy()
        frozen.setflags(write=False)
        assert np.array_equal(model.predict(frame), make().fit(frozen, target).predict(frozen))


# ---- the command line ----------------------------------------------------------------------------

#: Files, and what the command must end with and say: None where it must fit.
TABLES: dict[str, tuple[bytes, str | None]] = {
    "empty": (b"", "cannot be read"),
    "only a header": (b"a,y\n", "no rows"),
    "only the target": (b"y\n1\n2\n3.5\n", "no column to learn from"),
    "no target": (b"a,b\n1,2\n3,4\n", "no column 'y'"),
    "target missing everywhere": (b"a,y\n1,\n2,\n", "missing in every row"),
    "two columns of one name": (b"a,y,y\n" + b"1,2.5,3\n2,3,3\n3,1.25,4\n" * 9, None),
    "ragged": (b"a,y\n1,2\n1,2,3,4\n", "cannot be read"),
    "zero bytes": (b"\x00" * 400, "cannot be read|no column|no rows|no column"),
    "not text": (bytes(range(128, 256)) * 4, "cannot be read"),
    "infinite values": (b"a,y\n" + b"inf,1\n2,2\n3,3.5\n" * 20, "infinit|too large"),
    "infinite target": (b"a,y\n" + b"1,inf\n2,2\n3,3.5\n" * 20, "infinit"),
    "text in numbers": (b"a,y\n" + b"1,2.5\nsecret,3\n4,1.25\n" * 20, None),
    "huge numbers": (b"a,y\n" + b"1e300,2.5\n2e300,3\n3e300,1.25\n" * 20, None),
    "a byte order mark": (b"\xef\xbb\xbfa,y\n" + b"1,2.5\n2,3\n3,1.25\n" * 20, None),
    "one row": (b"a,y\n1,2.5\n", "no column to learn from"),
    "a constant column": (b"a,b,y\n" + b"1,5,2.5\n2,5,3\n3,5,1.25\n" * 20, None),
    "an empty column": (b"a,b,y\n" + b"1,,2.5\n2,,3\n3,,1.25\n" * 20, None),
    "one class": (b"a,y\n" + b"1,no\n2,no\n" * 20, "one class"),
    "quotes that do not end": (b'a,y\n1,"2\n3,4\n', "cannot be read|no column|not numbers|class"),
    "numbers beyond floats": (b"a,y\n" + b"1e999,1\n2,2\n3,0.5\n" * 9, "infinit|too large"),
    "very long names": (b"a" * 5000 + b",y\n" + b"1,2.5\n2,3\n3,1.25\n" * 9, None),
}  # fmt: skip


def run_commands(tally: Tally) -> None:
    import re

    from typer.testing import CliRunner

    from healgp.cli import app

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, (content, words) in TABLES.items():
            data = folder / "table.csv"
            data.write_bytes(content)
            with tally.right(f"healgp fit, table: {what}"):
                arguments = ["fit", data, "--target", "y", "-o", folder / f"m{tally.inputs}",
                             "--kernel", "rbf"]  # fmt: skip
                found = CliRunner().invoke(app, [str(a) for a in arguments])
                assert found.exception is None or isinstance(found.exception, SystemExit)
                if words is None:
                    assert found.exit_code == 0, found.stderr
                else:
                    assert found.exit_code == 1, found.output
                    assert re.search(words, found.stderr), found.stderr
                assert "secret" not in found.stderr
                assert "Unexpected" not in found.stderr, found.stderr


# ---- Dask ----------------------------------------------------------------------------------------


def run_dask(tally: Tally) -> None:
    import logging

    import dask.array as da
    from distributed import Client, LocalCluster

    make = partial(KINDS["exact"][0], engine="dask")
    local = KINDS["exact"][0]().fit(X, Y)
    with (
        LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None,
                     silence_logs=logging.CRITICAL) as cluster,
        Client(cluster),
    ):  # fmt: skip
        for name in ("NaN", "infinity", "no rows", "one dimension", "complex"):
            bad, words = REFUSED[name]
            collection = da.from_array(np.asarray(bad), chunks=25)
            with tally.right(f"dask, fit, X: {name}"):
                refused(lambda c=collection: make().fit(c, da.from_array(Y, chunks=25)), ".")
            with tally.right(f"dask arrays here, fit, X: {name}"):
                refused(lambda bad=bad: make().fit(bad, Y), words)
        for name in ("NaN", "infinity"):
            _, bad, words = TARGETS_REFUSED[name]
            with tally.right(f"dask, fit, y: {name}"):
                collections = (da.from_array(a, chunks=25) for a in (X, bad))
                refused(lambda c=collections: make().fit(*c), words)
        for name in ("as it is", "float32", "constant column", "duplicate columns", "one column",
                     "times 1e+100", "times 1e-100", "all rows equal"):  # fmt: skip
            good, tells = ACCEPTED[name]
            with tally.right(f"dask, fit, X: {name}"):
                collections = (da.from_array(a, chunks=25) for a in (good, Y))
                answered(make().fit(*collections), good, Y, tells)
        with tally.right("dask, the model of one machine"):
            model = make().fit(da.from_array(X, chunks=25), da.from_array(Y, chunks=25))
            np.testing.assert_allclose(model.predict(X), local.predict(X), rtol=1e-8)
        with tally.right("dask, predict, too wide"):
            refused(lambda: model.predict(np.c_[X, X]), "features")


def run(tally: Tally, effort: float = 1.0) -> None:
    warnings.simplefilter("ignore")
    for kind in KINDS if effort >= 0.5 else ("exact", "three classes"):
        run_kind(tally, kind)
    run_commands(tally)
    run_dask(tally)


if __name__ == "__main__":
    main(run)
