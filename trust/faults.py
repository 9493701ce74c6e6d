"""Processes that are killed at random moments: nothing is corrupt, and what goes on comes to the
same result."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
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

ON_A_CLUSTER = {"kernel": "rbf", "points_per_expert": 50, "random_state": 0, "max_iter": 5}
FEW, FEW_Y = X[:1000], Y[:1000]


def a_cluster() -> Any:
    import logging

    from distributed import LocalCluster

    return LocalCluster(2, threads_per_worker=1, dashboard_address=None,
                        silence_logs=logging.CRITICAL)  # fmt: skip


def cluster_fit(out: str) -> None:
    """A fit on a cluster of two worker processes, in a client that may be killed with it."""
    from distributed import Client

    with a_cluster() as cluster, Client(cluster):
        print(json.dumps([w.pid for w in cluster.workers.values()]), flush=True)
        model = ExpertGPRegressor(engine="dask", **ON_A_CLUSTER).fit(FEW, FEW_Y)
        Path(out).write_bytes(model.predict(NEW).tobytes())


def cluster_alone() -> None:
    """A cluster that waits for clients until its standard input is closed."""
    with a_cluster() as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


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
    """Fits with a checkpoint, each killed up to four times and then left to end."""
    expected, lasted = {}, {}
    for kind, (model, y) in models().items():
        start = time.monotonic()
        expected[kind] = answer(model.fit(X, y))
        lasted[kind] = time.monotonic() - start
    kinds = itertools.cycle(expected)
    while n > 0:
        kind = next(kinds)
        path, kills = folder / "checkpoint", 0

        def work(kind: str = kind, path: Path = path) -> None:
            model, y = models(path)[kind]
            model.fit(X, y)

        while kills < 4 and killed_after(rng.uniform(0, lasted[kind]), work):
            kills += 1
        with tally.kept(f"fit of {kind}, killed {kills} times", kills):
            again, y = models(path)[kind]
            assert answer(again.fit(X, y)) == expected[kind], "another model"
            assert not path.exists(), "the checkpoint is still there"
        n -= kills


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

    for i in itertools.count():
        where, kills = folder / f"results-{i}", 0
        while kills < 4 and killed_after(
            rng.uniform(0, 0.7 * lasted), lambda where=where: fill(cells, where)
        ):
            kills += 1
        with tally.kept("reproduce", kills):
            fill(cells, where)
            assert scores(where) == scores(folder / "whole"), "other scores"
        n -= kills
        if n <= 0:
            return


def workers(tally: Tally, folder: Path, n: int, rng: np.random.Generator) -> None:
    """One cluster; while a model is fitted on it, a worker is killed, and a new one is started in
    its place."""
    from distributed import Client

    expected = ExpertGPRegressor(**ON_A_CLUSTER).fit(FEW, FEW_Y).predict(NEW)
    with a_cluster() as cluster, Client(cluster) as client:
        start = time.monotonic()
        ExpertGPRegressor(engine="dask", **ON_A_CLUSTER).fit(FEW, FEW_Y).predict(NEW)
        lasted = time.monotonic() - start
        while n > 0:
            victim, killed = rng.choice(answering(client)), []
            killer = threading.Timer(
                rng.uniform(0, lasted), lambda pid=victim, killed=killed: killed.append(ended(pid))
            )
            with tally.kept("a worker of a cluster", 0):
                killer.start()
                model = ExpertGPRegressor(engine="dask", **ON_A_CLUSTER).fit(FEW, FEW_Y)
                np.testing.assert_allclose(model.predict(NEW), expected, rtol=1e-8, atol=1e-8)
            killer.join()
            tally.faults += sum(killed)
            n -= sum(killed)


def ended(process: int) -> bool:
    """Kills a process; False if it was not there any more."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def answering(client: Any) -> list[int]:
    """The processes of two workers, once both answer: Dask gives up on a worker that is killed
    before it has registered, or again some seconds later."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if len(found := client.run(os.getpid)) == 2:
                return sorted(found.values())
        except OSError:  # the last one that was killed is still on the list
            pass
        client.cluster.scale(2)
        assert time.monotonic() < deadline, "a worker is not replaced"
        time.sleep(0.05)


def clients(tally: Tally, folder: Path, n: int, rng: np.random.Generator) -> None:
    """Clients of a cluster that outlives them; what one has begun, the next goes on with."""
    expected = ExpertGPRegressor(**ON_A_CLUSTER).fit(FEW, FEW_Y).predict(NEW)
    child = python("-W", "ignore", "-m", "trust.faults", "cluster_alone", stdin=subprocess.PIPE,
                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        address = child.stdout.readline().strip()
        path, out = folder / "checkpoint", folder / "predictions"

        def work() -> None:
            from distributed import Client

            with Client(address):
                model = ExpertGPRegressor(engine="dask", checkpoint=path, **ON_A_CLUSTER)
                np.save(out, model.fit(FEW, FEW_Y).predict(NEW))

        start = time.monotonic()
        assert not killed_after(120.0, work)
        lasted = time.monotonic() - start
        while n > 0:
            kills = 0
            while kills < 4 and killed_after(rng.uniform(0, lasted), work):
                kills += 1
            with tally.kept(f"the client of a cluster, killed {kills} times", kills):
                out.with_suffix(".npy").unlink(missing_ok=True)
                assert not killed_after(120.0, work), "the fit did not end"
                found = np.load(out.with_suffix(".npy"))
                np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
            n -= kills
    finally:
        child.kill()
        child.communicate()


def clusters(tally: Tally, folder: Path, n: int, rng: np.random.Generator) -> None:
    """Clients with a cluster of their own: nothing of it outlives them."""
    for i in range(n):
        out = folder / f"cluster-{i}"
        child = python("-W", "ignore", "-m", "trust.faults", "cluster_fit", out,
                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            processes = json.loads(child.stdout.readline())
            time.sleep(rng.uniform(0.05, 1.0))
            with tally.kept("a client with its cluster"):
                child.kill()
                child.wait(30)
                deadline = time.monotonic() + 60
                while any(map(alive, processes)):
                    assert time.monotonic() < deadline, "workers outlive their client"
                    time.sleep(0.2)
                assert not out.exists() or len(out.read_bytes()) == 8 * len(NEW)
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
        for part, n in ((fits, 100), (saves, 200), (reproduced, 100), (clients, 100),
                        (workers, 100), (clusters, 4)):  # fmt: skip
            folder = Path(name) / part.__name__
            folder.mkdir()
            start, kills = time.monotonic(), tally.faults
            part(tally, folder, max(1, round(n * effort)), rng)
            what = f"{part.__name__}: {tally.faults - kills} kills"
            print(what, f"in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("cluster_fit", "cluster_alone"):
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        main(run)
