"""The parts of `make bench-scale` that start a Dask cluster of worker processes."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

from healgp import ExpertGPRegressor, datasets
from healgp.engines import cluster as layout
from healgp.engines.dask import ShardedCommittee
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.kernels import Hyperparameters
from timing import table

#: One job for every engine: all evaluations on all experts.
JOB = dict(
    kernel="matern32", partition="random", training="full", max_iter=5, aggregation="gpoe",
    temperature=100.0, routing=None, random_state=0,
)  # fmt: skip

_NEW = 1000

#: Dask looks after itself many times a second, which takes 14 % of one core for a scheduler and two
#: workers that do nothing; this seldom it takes 2 %. docs/howto/dask.md says so to users.
CALM = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "2s",
}


@contextmanager
def cluster(n_workers: int) -> Iterator[Client]:
    """Workers of one thread each."""
    with (
        dask.config.set(CALM),
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        client.wait_for_workers(n_workers)
        warm(client)
        yield client


def warm(client: Client) -> None:
    """Every worker has imported the library and its compiled core."""
    X, y = datasets.robot_arm(4000)
    job = JOB | dict(points_per_expert=100, max_iter=2)
    ExpertGPRegressor(engine="dask", **job).fit(X, y).predict(X[:10])


def seconds(X: Any, y: Any, new: Any, **parameters: Any) -> tuple[float, float, Any]:
    start = time.perf_counter()
    model = ExpertGPRegressor(**(JOB | parameters)).fit(X, y)
    middle = time.perf_counter()
    mean = model.predict(new)
    return middle - start, time.perf_counter() - middle, (model.lengthscales_, mean)


def alone(n_jobs: int) -> tuple[float, float, Any]:
    """The same on threads, in a process of its own: memory that nobody has touched yet costs time
    here, and the workers' is always new."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_alone, n_jobs).result()


def _alone(n_jobs: int) -> tuple[float, float, Any]:
    warnings.simplefilter("ignore")
    small = JOB | dict(points_per_expert=100, max_iter=2)
    some = datasets.robot_arm(4000)
    ExpertGPRegressor(**small).fit(*some).predict(some[0][:10])
    X, new, y, _ = datasets.load("airline", 0, standardize=True)
    return seconds(X, y, new[:_NEW], n_jobs=n_jobs)


def workers() -> str:
    """Local threads against worker processes, by turns, and what a killed worker costs."""
    X, new, y, _ = datasets.load("airline", 0, standardize=True)
    new, rows, medians = new[:_NEW], [], {}
    warnings.simplefilter("ignore")

    def add(name: str, runs: list[Any], said: str = "") -> float:
        fit, predict = (float(np.median([run[i] for run in runs])) for i in range(2))
        rows.append([name, f"{fit:.1f}", f"{predict:.1f}", f"{fit + predict:.1f}", said])
        print(rows[-1], flush=True)
        return fit + predict

    for n, rounds in ((1, 1), (2, 3)):
        here, there = [], []
        for _ in range(rounds):
            here.append(alone(n))
            with cluster(n):
                there.append(seconds(X, y, new, engine="dask"))
        medians["threads", n] = add(f"{n} threads", here)
        ratio = np.median([sum(b[:2]) / sum(a[:2]) for a, b in zip(here, there, strict=True)])
        said = f"**{ratio:.2f}** of the threads' time; {_equal(here[0][2], there[0][2])}"
        medians["workers", n] = add(f"{n} workers", there, said)
    with cluster(2) as client:
        killed = _with_a_kill(client, X, y, new)
    more = killed[0] - float(np.median([run[0] for run in there]))
    add("2 workers, one killed", [killed], f"{more:.1f} s more; {_equal(here[0][2], killed[2])}")
    scaling = {
        name: medians[name, 1] / medians[name, 2] / 2 for name in ("threads", "workers")
    }  # fmt: skip
    head = ["airline, 653,795 rows", "fit, s", "predict, s", "together, s", ""]
    return (
        f"Experts of 500 rows (random partition), {JOB['max_iter']} iterations on all of them, "
        f"{_NEW:,} rows predicted by all of them; threads and workers by "
        "turns, in new processes, medians. Dask watches itself less often than by default (see "
        "[A Dask cluster](howto/dask.md)).\n\n"
        + table(head, rows)
        + f"\nScaling efficiency from 1 to 2: threads {scaling['threads']:.0%}, "
        f"workers {scaling['workers']:.0%}.\n"
    )  # fmt: skip


def _equal(one: Any, other: Any) -> str:
    """In words, of θ and predictions."""
    theta = "the same θ" if np.array_equal(one[0], other[0]) else "another θ"
    return f"{theta}, means within {abs(one[1] - other[1]).max():.0e}"


def _with_a_kill(client: Client, X: Any, y: Any, new: Any) -> tuple[float, float, Any]:
    count, objective = [0], ShardedCommittee.objective

    def counted(self: Any, theta: Any, threads: Any) -> Any:
        count[0] += 1
        if count[0] == 4:
            pid = sorted(client.run(os.getpid).values())[0]
            threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        return objective(self, theta, threads)

    ShardedCommittee.objective = counted  # type: ignore[method-assign]
    try:
        return seconds(X, y, new, engine="dask")
    finally:
        ShardedCommittee.objective = objective  # type: ignore[method-assign]


def scheduler() -> str:
    """The scheduler alone: shards of one tiny expert each."""
    rng, rows = np.random.default_rng(0), []
    theta = Hyperparameters(np.ones(2), 1.0, 0.1)
    limits = layout._FEWEST_ROWS, layout._MOST_ROWS, layout._MOST_SHARDS
    with cluster(2):
        for S in (100, 1000, 3000, 10_000):
            layout._FEWEST_ROWS, layout._MOST_ROWS, layout._MOST_SHARDS = 5, 5, S
            X, y = rng.random((5 * S, 2)), rng.random(5 * S)
            groups = [np.arange(5 * s, 5 * s + 5) for s in range(S)]
            start = time.perf_counter()
            committee = ShardedCommittee.from_groups(X, y, groups, "rbf", theta)
            built = time.perf_counter() - start
            times = []
            for _ in range(3):
                start = time.perf_counter()
                value, _ = committee.objective(theta, None)  # type: ignore[arg-type]
                times.append(time.perf_counter() - start)
            local = Committee.from_groups(X, y, groups, "rbf", theta)
            with LocalEngine(None, local.work) as threads:
                assert value == local.objective(theta, threads)[0]
            each = min(times) / len(committee.shards)
            rows.append([
                f"{len(committee.shards):,}", f"{built:.1f}", f"{min(times):.2f}",
                f"{1e3 * each:.2f}",
            ])  # fmt: skip
            print(rows[-1], flush=True)
            del committee
    layout._FEWEST_ROWS, layout._MOST_ROWS, layout._MOST_SHARDS = limits
    head = ["shards", "made, s", "an evaluation, s", "of a shard, ms"]
    return table(head, rows) + LIMIT


def paper() -> str:
    """What more rows need, by arithmetic from costs that are measured here, with one thread."""
    X, y = datasets.robot_arm(30_000)
    D, m = X.shape[1], 500
    job = dict(kernel="matern32", partition="random", max_iter=0, n_jobs=1, random_state=0)
    model = ExpertGPRegressor(aggregation="gpoe", temperature=100.0, **job).fit(X, y)
    committee, new = model._committee, model._scaling.inputs(X[:4096])
    J = committee.n_experts
    with LocalEngine(1, committee.work) as threads:
        each = _best(lambda: committee.objective(committee.theta, threads)) / len(X)
        ready = _best(lambda: committee.prepare(threads)) / len(X)
        full = _best(lambda: committee.moments(new, 0, 16, threads)) / (16 * len(new))
        guide, block, in_brief = model._guided(threads), new[:512], min(256, J - 1)
        near = _best(lambda: guide.near(block, in_brief)) / (J * len(block))
        numbers = guide.near(block, in_brief)
        brief = _best(lambda: guide.brief.moments(block, numbers)) / numbers.size
    evaluations, asked, rows = 50, 32, []
    for N, workers in ((10**7, 8), (10**8, 100), (10**9, 1000)):
        experts = N // m
        n_shards = layout.n_shards(N, experts, workers)
        scheduler_s = 3.5e-3 * n_shards  # as `scheduler` measures it
        once = N * each / workers + scheduler_s
        hours = (evaluations * once + N * ready / workers) / 3600
        answer = experts * near + 256 * brief + asked * full
        rows.append([
            f"10^{int(np.log10(N))}", f"{experts:,}", workers, n_shards, f"{once:.1f}",
            f"{hours:.2f}", f"{8 * (D + 4) * experts / 2**20:.1f}",
            f"{8 * (D + 1) * N / workers / 2**30:.2f}",
            f"{4 * (m + 1) * N / workers / 2**30:.1f}", f"{1e3 * answer:.1f}",
            f"{1e6 * answer / workers / 3600:.2f}",
        ])  # fmt: skip
    head = ["rows", "experts", "workers of 1 core", "shards", "an evaluation, s", "training, h",
            "back per evaluation, MB", "rows per worker, GB", "factors per worker, GB",
            "a prediction, core ms", "10^6 predictions, h"]  # fmt: skip
    return (
        f"Measured here, one core, D = {D}, experts of {m} rows: an evaluation of the objective "
        f"{1e6 * each:.1f} µs a row, factors {1e6 * ready:.1f} µs a row, an expert asked in full "
        f"{1e6 * full:.1f} µs, in brief {1e6 * brief:.2f} µs, and {1e9 * near:.0f} ns to see how "
        "far it is. With them: an evaluation is rows × "
        f"{1e6 * each:.1f} µs / workers + 3.5 ms of the scheduler for each shard; training is "
        f"{evaluations} of them on all experts (progressive training needs far fewer rows); each "
        f"sends {8 * (D + 3)} bytes to every shard and 8 (D + 4) bytes for each expert back; "
        "factors are packed, 4 (m + 1) bytes a row, and where they do not fit they are made again; "
        f"a prediction sees how far every expert is, asks 256 in brief and {asked} in full.\n\n"
        + table(head, rows)
    )


def _best(run: Any) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


#: What the scheduler's limit means, said below its table.
LIMIT = """
Nothing broke. What grows is the time that the scheduler and the client spend on each shard, and the
time to make the shards; both are linear. There are 2,000 shards at most, which then hold more
experts, so that an evaluation never costs the scheduler more than some seconds. Beyond 10⁹ rows,
labels (4 bytes a row, on the client) and the experts in brief (9 kB an expert, there too)
are the next limits: then fit several models on parts of the data, or larger experts.
"""
