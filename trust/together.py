"""Threads and processes at once: right results, no deadlock, and BLAS's threads as they were."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_info

from healgp import ExpertGPClassifier, ExpertGPRegressor, load
from trust.tally import Tally, main

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (400, 2))
Y = np.sin(X[:, 0]) * X[:, 1] + 0.05 * RNG.standard_normal(400)
TIMEOUT = 180.0


def work(kind: str) -> np.ndarray:
    """A fit and its predictions."""
    shared = {"points_per_expert": 40, "random_state": 0, "max_iter": 4}
    if kind == "classes":
        return ExpertGPClassifier(n_inducing=8, **shared).fit(X, Y > 0).predict_proba(X[:50])
    rule = {"exact": "gpoe", "nested": "nested", "grbcm": "grbcm"}[kind]
    model = ExpertGPRegressor(kernel="rbf", aggregation=rule, **shared).fit(X, Y)
    return np.concatenate(model.predict(X[:50], return_std=True))


KINDS = ("exact", "nested", "grbcm", "classes")


def blas() -> list[int]:
    return [
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    ]


def same(tally: Tally, what: str, found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        with tally.right(what):
            np.testing.assert_array_equal(one, other)


def threads(tally: Tally, n: int) -> None:
    expected = {kind: work(kind) for kind in KINDS}
    asked = [KINDS[i % len(KINDS)] for i in range(n)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, asked, timeout=TIMEOUT))
    same(tally, "fits from 8 threads", found, [expected[kind] for kind in asked])


def one_model(tally: Tally, n: int) -> None:
    """Eight threads ask a model that has just been loaded, whose factors are still to be made."""
    shared = {"points_per_expert": 10, "random_state": 0, "max_iter": 2, "kernel": "rbf"}
    model = ExpertGPRegressor(**shared).fit(X, Y)
    settings = [{"aggregation": rule} for rule in ("gpoe", "rbcm", "nested", "grbcm")]
    expected = [model.predict_many(X, [setting])[0] for setting in settings]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        model.save(folder)
        for _ in range(n):
            again, start = load(folder), threading.Barrier(8)

            def ask(i: int, again: Any = again, start: Any = start) -> Any:
                start.wait(TIMEOUT)
                return again.predict_many(X, [settings[i % 4]])[0]

            found = list(pool.map(ask, range(8), timeout=TIMEOUT))
            same(tally, "a loaded model in 8 threads", found, expected * 2)


def failures(tally: Tally, n: int) -> None:
    """Fits that fail, in threads beside fits that do not."""

    def fails(X: Any, n_experts: int, rng: Any) -> Any:
        raise ZeroDivisionError

    def either(i: int) -> Any:
        if i % 2:
            return work("exact")
        try:
            ExpertGPRegressor(partition=fails).fit(X, Y)
        except ZeroDivisionError:
            return None
        raise AssertionError("it did not fail")

    expected = work("exact")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(either, range(n), timeout=TIMEOUT))
    same(tally, "beside fits that fail", found[1::2], [expected] * (n // 2))


def processes(tally: Tally, method: str, n: int) -> None:
    asked = [KINDS[i % len(KINDS)] for i in range(n)]
    expected = {kind: work(kind) for kind in KINDS}
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(work, asked, chunksize=1).get(TIMEOUT)
    same(tally, f"processes by {method}", found, [expected[kind] for kind in asked])


def searches(tally: Tally) -> None:
    shared = {"kernel": "rbf", "random_state": 0, "max_iter": 3}
    grid = {"points_per_expert": [40, 100], "aggregation": ["gpoe", "nested"]}
    scores = []
    for n_jobs in (1, 2):
        search = GridSearchCV(ExpertGPRegressor(**shared), grid, cv=2, n_jobs=n_jobs).fit(X, Y)
        scores.append(search.cv_results_["mean_test_score"])
    same(tally, "GridSearchCV with two workers", [scores[1]], [scores[0]])


def in_a_dask_worker(tally: Tally) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(1, threads_per_worker=2, processes=True, dashboard_address=None,
                     silence_logs=logging.CRITICAL) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        futures = client.map(work, KINDS, pure=False)
        same(tally, "in a Dask worker", client.gather(futures), [work(kind) for kind in KINDS])


def run(tally: Tally, effort: float = 1.0) -> None:
    warnings.simplefilter("ignore")
    before = blas()
    threads(tally, max(8, int(64 * effort)))
    one_model(tally, max(1, int(10 * effort)))
    failures(tally, max(8, int(40 * effort)))
    processes(tally, "fork", max(4, int(16 * effort)))
    if effort >= 0.5:
        processes(tally, "spawn", 8)
        searches(tally)
        in_a_dask_worker(tally)
    with tally.right("BLAS's threads"):
        assert blas() == before, f"{before} have become {blas()}"


if __name__ == "__main__":
    main(run)
