"""Processes that are killed at random moments: nothing is corrupt, and what goes on comes to the
same result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from healgp import ExpertGPClassifier, ExpertGPRegressor, load
from trust.tally import Tally, main, python

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (3000, 2))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(3000)
NEW = RNG.uniform(-3, 3, (40, 2))


def models(checkpoint: Any = None) -> dict[str, tuple[Any, np.ndarray]]:
    shared = {"points_per_expert": 300, "random_state": 0, "checkpoint": checkpoint}
    return {
        "exact": (ExpertGPRegressor(kernel="rbf", **shared), Y),
        "sparse": (ExpertGPRegressor(kernel="rbf", n_inducing=15, max_iter=30, **shared), Y),
        "classes": (ExpertGPClassifier(n_inducing=10, max_iter=15, **shared), Y > 0),
    }


def answer(model: Any) -> bytes:
    latent = isinstance(model, ExpertGPClassifier)
    return (model.predict_f(NEW)[0] if latent else model.predict(NEW)).tobytes()


# ---- what is run in a process of its own ---------------------------------------------------------


def cluster_fit(out: str) -> None:
    """A fit on a cluster of two worker processes, in a client that may be killed."""
    import logging

    from distributed import Client, LocalCluster

    with LocalCluster(2, threads_per_worker=1, dashboard_address=None,
                      silence_logs=logging.CRITICAL) as cluster, Client(cluster):  # fmt: skip
        print(json.dumps([w.pid for w in cluster.workers.values()]), flush=True)
        shared = {"kernel": "rbf", "points_per_expert": 100, "random_state": 0, "max_iter": 30}
        model = ExpertGPRegressor(engine="dask", **shared).fit(X, Y)
        Path(out).write_bytes(model.predict(NEW).tobytes())


# ---- killing -------------------------------------------------------------------------------------


def killed_after(seconds: float, work: Callable[[], Any]) -> bool:
    """Does the work in a process of its own and kills it after some seconds; False if it had
    ended."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"it failed on its own, with {status}"
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def fits(tally: Tally, folder: Path, n: int, rng: np.random.Generator) -> None:
    kinds = list(models())
    for i in range(n):
        kind = kinds[i % len(kinds)]
        model, y = models()[kind]
        start = time.monotonic()
        expected = answer(model.fit(X, y))
        lasted = time.monotonic() - start
        path, kills = folder / f"checkpoint-{i}", 0

        def work(kind: str = kind, path: Path = path) -> None:
            model, y = models(path)[kind]
            model.fit(X, y)

        while kills < 4 and killed_after(rng.uniform(0, lasted), work):
            kills += 1
            tally.faults += 1
        with tally.kept(f"fit of {kind}, killed {kills} times"):
            again, y = models(path)[kind]
            assert answer(again.fit(X, y)) == expected, "another model"
            assert not path.exists(), "the checkpoint is still there"
        tally.faults -= 1  # counted when they happened


def saves(tally: Tally, folder: Path, n: int, rng: np.random.Generator) -> None:
    one, other = (models()[kind][0].fit(X, models()[kind][1]) for kind in ("exact", "sparse"))
    wanted, where = {answer(one), answer(other)}, folder / "model"

    def work() -> None:
        while True:
            other.save(where)
            one.save(where)

    one.save(where)
    for _ in range(n):
        with tally.kept("save"):
            assert killed_after(rng.uniform(0, 0.1), work)
            assert answer(load(where)) in wanted, "another model"


def reproduced(tally: Tally, folder: Path, n: int, rng: np.random.Generator) -> None:
    from healgp import datasets
    from healgp.experiments.cells import Cell, fill

    data = folder / "data"
    data.mkdir()
    rows, target = datasets.robot_arm(400, seed=1)
    np.savez(data / "concrete.npz", X=rows, y=target)
    os.environ["HEALGP_DATA"] = str(data)
    cells = [Cell(name, "concrete", split) for name in ("kmeans-100", "grbcm") for split in (0, 1)]
    begun = time.monotonic()
    fill(cells, folder / "whole")
    lasted = time.monotonic() - begun

    def scores(where: Path) -> dict[str, Any]:
        return {
            str(file.relative_to(where)): json.loads(file.read_text())["scores"]
            for file in sorted(where.rglob("*.json"))
        }

    for i in range(n):
        where = folder / f"results-{i}"
        for _ in range(4):
            if not killed_after(
                rng.uniform(0, 0.7 * lasted), lambda where=where: fill(cells, where)
            ):
                break
            tally.faults += 1
        with tally.kept("reproduce"):
            fill(cells, where)
            assert scores(where) == scores(folder / "whole"), "other scores"
        tally.faults -= 1


def clusters(tally: Tally, folder: Path, n: int, rng: np.random.Generator) -> None:
    shared = {"kernel": "rbf", "points_per_expert": 100, "random_state": 0, "max_iter": 30}
    expected = ExpertGPRegressor(**shared).fit(X, Y).predict(NEW)
    for i in range(n):
        out = folder / f"cluster-{i}"
        whole = i % 3 == 2  # the client, with all that belongs to it
        child = python("-W", "ignore", "-m", "trust.faults", "cluster_fit", out,
                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            workers = json.loads(child.stdout.readline())
            time.sleep(rng.uniform(0.05, 1.0))
            with tally.kept("the client of a cluster" if whole else "a worker of a cluster"):
                if whole:
                    child.kill()
                    child.wait(30)
                    deadline = time.monotonic() + 60
                    while any(map(alive, workers)):
                        assert time.monotonic() < deadline, "workers outlive their client"
                        time.sleep(0.2)
                    assert not out.exists() or len(out.read_bytes()) == 8 * len(NEW)
                else:
                    if alive(workers[0]):
                        os.kill(workers[0], signal.SIGKILL)
                    assert child.wait(180) == 0, "the fit failed"
                    found = np.frombuffer(out.read_bytes())
                    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
        finally:
            child.kill()
            child.communicate()


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def run(tally: Tally, effort: float = 1.0) -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(int(1000 * effort))
    with tempfile.TemporaryDirectory() as name:
        for part, n in ((fits, 9), (saves, 200), (reproduced, 4), (clusters, 6)):
            folder = Path(name) / part.__name__
            folder.mkdir()
            if int(n * effort):
                part(tally, folder, int(n * effort), rng)


if __name__ == "__main__":
    if sys.argv[1] == "cluster_fit":
        cluster_fit(sys.argv[2])
    else:
        main(run)
