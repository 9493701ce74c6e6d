"""Properties that hold for any rows: what must not matter does not, and what must scale does."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from healgp import ExpertGPClassifier, ExpertGPRegressor
from healgp.aggregation import RULES
from healgp.kernels import KERNELS
from healgp.weights import WEIGHTINGS
from trust.tally import Tally, main

#: How closely answers must agree that differ by the order of sums alone.
SAME = {"rtol": 1e-6, "atol": 1e-7}


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    """Rows, labels, θ and a rule."""
    D, J = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    N = draw(st.integers(2 * J, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** rng.uniform(-30, 30, D) if draw(st.booleans()) else np.ones(D)
    X = rng.uniform(-2, 2, (N + 8, D))
    if draw(st.booleans()):
        X = np.round(X)  # rows that are equal
    y = np.sin(X.sum(axis=1)) + 0.1 * rng.standard_normal(N + 8)
    labels = np.r_[np.arange(J), rng.integers(0, J, N - J)]
    return {
        "X": X[:N] * scale,
        "y": y[:N] * 10.0 ** draw(st.integers(-8, 8)),
        "new": X[N:] * scale,
        "labels": labels,
        "rng": rng,
        "lengthscale": 10.0 ** rng.uniform(-1, 1, D),
        "setting": {
            "aggregation": draw(st.sampled_from([*RULES, "nested"])),
            "weighting": draw(st.sampled_from([*WEIGHTINGS])),
            "temperature": 10.0 ** draw(st.floats(-1, 3)),
            "space": draw(st.sampled_from("fy")),
        },
        "kernel": draw(st.sampled_from([*KERNELS])),
        "noise_variance": 10.0 ** draw(st.floats(-3, 0)),
    }


def fixed(p: dict[str, Any], **changes: Any) -> ExpertGPRegressor:
    """A model with the labels and θ of the problem."""
    given = {
        "partition": p["labels"], "max_iter": 0, "kernel": p["kernel"],
        "lengthscale": p["lengthscale"], "noise_variance": p["noise_variance"],
        "random_state": 0, **p["setting"],
    }  # fmt: skip
    return ExpertGPRegressor(**given | changes)


def answers(model: Any, new: Any) -> tuple[np.ndarray, np.ndarray]:
    mean, std = model.predict(new, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    return mean, std


def close(one: Any, other: Any, unit: float = 1.0) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(np.asarray(a) / unit, np.asarray(b) / unit, **SAME)


def nothing_matters_that_should_not(p: dict[str, Any]) -> None:
    X, y, new, rng = p["X"], p["y"], p["new"], p["rng"]
    unit = float(np.std(y)) or 1.0
    first = answers(fixed(p).fit(X, y), new)
    # the same seed, and one thread or two
    again = answers(fixed(p, n_jobs=1).fit(X, y), new)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    columns = rng.permutation(X.shape[1])
    moved = fixed(p, lengthscale=p["lengthscale"][columns]).fit(X[:, columns], y)
    close(answers(moved, new[:, columns]), first, unit)
    varies = np.ptp(X, axis=0) > 0  # a constant column has no scale to follow
    scales = np.where(varies, 2.0 ** rng.integers(-60, 60, X.shape[1]), 1.0)
    close(answers(fixed(p).fit(X * scales, y), new * scales), first, unit)
    mean, std = answers(fixed(p).fit(X, y + 3.0 * unit), new)
    close((mean - 3.0 * unit, std), first, unit)
    mean, std = answers(fixed(p).fit(X, y * -7.0), new)
    close((mean / -7.0, std / 7.0), first, unit)
    if p["setting"]["aggregation"] == "grbcm":
        return  # its communication set is drawn from rows in their order
    order = rng.permutation(len(X))
    close(answers(fixed(p, partition=p["labels"][order]).fit(X[order], y[order]), new), first, unit)
    names = rng.permutation(p["labels"].max() + 1) * 10
    close(answers(fixed(p, partition=names[p["labels"]]).fit(X, y), new), first, unit)


def training_follows_the_units(p: dict[str, Any]) -> None:
    """The whole fit, with everything chosen: factors of two change nothing but the unit."""
    X, y, new = p["X"], p["y"], p["new"]
    model = ExpertGPRegressor(points_per_expert=15, random_state=1, max_iter=20)
    mean, std = answers(model.fit(X, y), new)
    again = answers(model.fit(X, y), new)
    assert np.array_equal(mean, again[0])
    assert np.array_equal(std, again[1])
    scales = np.where(np.ptp(X, axis=0) > 0, 2.0**20, 1.0)
    scaled = answers(model.fit(X * scales, y * 2.0**-9), new * scales)
    unit = float(np.std(y)) or 1.0
    close((scaled[0] * 2.0**9, scaled[1] * 2.0**9), (mean, std), unit)


def classes_follow(p: dict[str, Any]) -> None:
    X, new, rng = p["X"], p["new"], p["rng"]
    labels = (p["y"] > np.median(p["y"])).astype(int)
    if len(set(labels)) < 2:
        return
    shared = {"n_inducing": 5, "max_iter": 3, "random_state": 0, "partition": p["labels"],
              "kernel": p["kernel"], "temperature": p["setting"]["temperature"]}  # fmt: skip
    first = ExpertGPClassifier(**shared).fit(X, labels).predict_proba(new)
    assert np.isfinite(first).all()
    assert (first >= 0).all()
    np.testing.assert_allclose(first.sum(axis=1), 1.0)
    again = ExpertGPClassifier(**shared).fit(X, labels).predict_proba(new)
    assert np.array_equal(first, again)
    names = np.array(["z", "a"]) if rng.random() < 0.5 else np.array([5, 900])
    renamed = ExpertGPClassifier(**shared).fit(X, names[labels])
    order = np.argsort(names)
    if names[0] < names[1]:
        np.testing.assert_array_equal(renamed.predict_proba(new), first)
    else:
        np.testing.assert_allclose(renamed.predict_proba(new)[:, order], first, atol=0.05)


def partial_fit_is_fit(p: dict[str, Any]) -> None:
    """All rows at once, or some of them later: the same answers for the labels that came out."""
    X, y, new, half = p["X"], p["y"], p["new"], max(len(p["X"]) // 2, 2)
    if p["setting"]["aggregation"] == "grbcm" or half == len(X) or np.ptp(y[:half]) == 0:
        return
    if (np.ptp(X[:half], axis=0) == 0).any():
        return  # a column that was constant has no scale
    grown = fixed(p, partition="kmeans", points_per_expert=10).fit(X[:half], y[:half])
    grown.partial_fit(X[half:], y[half:])
    s = grown._scaling
    whole = fixed(p, partition=grown.labels_, standardize=False)
    whole.fit((X - s.x_center) / s.x_scale, (y - s.y_center) / s.y_scale)
    mean, std = answers(whole, (new - s.x_center) / s.x_scale)
    close(answers(grown, new), (mean * s.y_scale + s.y_center, std * s.y_scale), s.y_scale)


def dask_is_local(tally: Tally, n: int) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None,
                     silence_logs=logging.CRITICAL) as cluster,
        Client(cluster),
    ):  # fmt: skip

        def same(p: dict[str, Any]) -> None:
            unit = float(np.std(p["y"])) or 1.0
            here = answers(fixed(p).fit(p["X"], p["y"]), p["new"])
            there = answers(fixed(p, engine="dask").fit(p["X"], p["y"]), p["new"])
            close(there, here, unit)

        each(tally, same, n)


def each(tally: Tally, holds: Any, n: int) -> None:
    """Tries a property on n problems; the smallest that it fails on is noted."""

    @settings(
        max_examples=n, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(problems())
    def tried(p: dict[str, Any]) -> None:
        tally.inputs += 1
        holds(p)

    before = tally.inputs
    with tally.right(holds.__name__):
        tried()
    tally.inputs -= 1  # counted by example
    assert tally.inputs > before


def run(tally: Tally, effort: float = 1.0) -> None:
    warnings.simplefilter("ignore")
    each(tally, nothing_matters_that_should_not, max(8, int(200 * effort)))
    each(tally, partial_fit_is_fit, max(8, int(150 * effort)))
    each(tally, training_follows_the_units, max(2, int(30 * effort)))
    each(tally, classes_follow, max(2, int(40 * effort)))
    dask_is_local(tally, max(2, int(20 * effort)))


if __name__ == "__main__":
    main(run)
