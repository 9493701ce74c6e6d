"""A full disk, too little memory and no network."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from healgp import ExpertGPRegressor, load
from trust.tally import ROOT, Tally, ended, main

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (2000, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(2000)

#: On a file system of its own of the given size: a model and a report, then larger ones that do not
#: fit. Prints what became of each.
FULL = """
import json, os, sys
from pathlib import Path
import numpy as np
from healgp import load
from healgp.report import write_report
from healgp.tables import pd, write
small, large, disk = *map(load, sys.argv[1:3]), Path(sys.argv[3])
X = np.load(sys.argv[4])
expected, found = small.predict(X[:50]), {}
small.save(disk / "model")
write(pd.DataFrame({"a": [1.0]}), disk / "table.csv")
(disk / "report.html").write_text("whole")
free = os.statvfs(disk)
(disk / "filler").write_bytes(b"0" * (free.f_bavail * free.f_frsize - 24_576))
for what, do in {
    "save": lambda: large.save(disk / "model"),
    "save anew": lambda: large.save(disk / "other"),
    "report": lambda: write_report(small, disk / "report.html", X[:200], X[:200, 0]),
    "table": lambda: write(pd.DataFrame(np.tile(X, (8, 1))), disk / "table.csv"),
}.items():
    try:
        do()
        found[what] = "it fitted"
    except OSError as error:
        found[what] = error.strerror or str(error)
    except Exception as error:
        found[what] = f"{type(error).__name__}: {error}"
(disk / "filler").unlink()
assert np.array_equal(load(disk / "model").predict(X[:50]), expected), "the old model is gone"
assert (disk / "report.html").read_text() == "whole", "the old report is gone"
assert len(pd.read_csv(disk / "table.csv")) == 1, "the old table is gone"
left = sorted(file.name for file in disk.iterdir())
assert left == ["model", "report.html", "table.csv"], left
assert len(list((disk / "model").iterdir())) == 2
print(json.dumps(found))
"""

#: All that the library does, with nothing to reach: a socket of any kind but a local one fails.
OFFLINE = """
import socket, sys, tempfile, warnings
warnings.simplefilter("ignore")
class Blocked(socket.socket):
    def connect(self, address):
        raise AssertionError(f"it reaches for {address}")
    connect_ex = sendto = connect
socket.socket = Blocked
socket.getaddrinfo = socket.create_connection = lambda *a, **k: Blocked().connect(a)
import numpy as np
from healgp import ExpertGPClassifier, ExpertGPRegressor, diagnose, load
from healgp.report import write_report
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (120, 2))
y = np.sin(X[:, 0])
with tempfile.TemporaryDirectory() as folder:
    model = ExpertGPRegressor(points_per_expert=40, random_state=0, max_iter=3,
                              checkpoint=folder + "/c").fit(X, y)
    model.partial_fit(X[:5], y[:5]).save(folder + "/model")
    load(folder + "/model").predict(X)
    print(diagnose(model, X, y))
    write_report(model, folder + "/report.html", X, y)
    ExpertGPClassifier(n_inducing=5, max_iter=1).fit(X, y > 0).predict_proba(X)
    from typer.testing import CliRunner
    from healgp.cli import app
    from healgp.tables import pd, write
    write(pd.DataFrame(X, columns=["a", "y"]), folder + "/t.csv")
    done = CliRunner().invoke(app, ["fit", folder + "/t.csv", "--target", "y", "-o", folder + "/m"])
    assert done.exit_code == 0, done.output
"""


def can(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def disks(tally: Tally, effort: float) -> None:
    """On a small file system of its own, where that can be mounted."""
    mount = ["unshare", "--map-root-user", "--mount"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", X)
        shared = {"kernel": "rbf", "max_iter": 1, "random_state": 0, "aggregation": "gpoe"}
        ExpertGPRegressor(**shared).fit(X[:300], Y[:300]).save(folder / "small")
        ExpertGPRegressor(**shared).fit(np.tile(X, (10, 1)), np.tile(Y, 10)).save(folder / "large")
        (folder / "disk").mkdir()
        (folder / "full.py").write_text(FULL)
        sizes = (400_000, 420_000, 600_000, 900_000) if effort >= 0.5 else (420_000,)
        for size in sizes:
            script = (
                f"mount -t tmpfs -o size={size} none {folder}/disk && exec {sys.executable} "
                f"{folder}/full.py {folder}/small {folder}/large {folder}/disk "
                f"{folder}/X.npy"
            )
            if not can(*mount, "true"):
                tally.notes.append("no file system can be mounted here: a full disk was not tried")
                return
            with tally.kept(f"a disk of {size:,} bytes"):
                done = subprocess.run(
                    [*mount, "sh", "-c", script], capture_output=True, text=True, check=False,
                    env=os.environ | {"PYTHONPATH": f"{ROOT}/src", "MPLCONFIGDIR": name},
                )  # fmt: skip
                assert done.returncode == 0, done.stderr[-400:]
                found = json.loads(done.stdout.splitlines()[-1])
                assert all("No space" in said for said in found.values()), found
                tally.faults += len(found) - 1


def memory(tally: Tally, effort: float) -> None:
    """An address space that ends some MB beyond what is mapped already."""
    rows = RNG.uniform(-2, 2, (5000, 2))
    target = np.sin(rows[:, 0])

    def work(points: int | None, megabytes: float, jobs: int) -> dict[str, Any]:
        shared = {"kernel": "rbf", "max_iter": 2, "random_state": 0, "n_jobs": jobs}
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + int(megabytes * 2**20), -1))
        try:
            model = ExpertGPRegressor(points_per_expert=points, aggregation="gpoe", **shared)
            model.fit(rows, target)
            return {"off": float(np.abs(model.predict(rows) - target).max())}
        except MemoryError as error:
            return {"error": str(error)}

    ExpertGPRegressor(kernel="rbf", max_iter=2).fit(rows[:900], target[:900]).predict(rows[:9])
    cases = [(points, more, jobs) for points in (None, 2500, 100) for more in (4, 40, 150)
             for jobs in (1, 2)]  # fmt: skip
    for case in cases if effort >= 0.5 else [(None, 40, 1), (100, 150, 2)]:
        with tally.kept(f"points_per_expert={case[0]}, {case[1]} MB, {case[2]} threads"):
            found = in_a_child(partial(work, *case))
            if "error" in found:
                for parameter in ("points_per_expert", "memory_budget"):
                    assert parameter in found["error"], found["error"]
            else:
                assert found["off"] < 0.2, found


def in_a_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the work gives in a process that is forked for it."""
    ear, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = json.dumps(work())
        except BaseException as error:
            said = json.dumps({"unexpected": f"{type(error).__name__}: {error}"[:300]})
        os.write(mouth, said.encode())
        os._exit(0)
    os.close(mouth)
    with open(ear, encoding="utf-8") as file:
        said = file.read()
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"it ended with {status}"
    found = json.loads(said)
    assert "unexpected" not in found, found["unexpected"]
    return found


def sockets(tally: Tally) -> None:
    with tally.right("sockets that fail"):
        code, _, err = ended("-c", OFFLINE)
        assert code == 0, err[-300:]


def namespace(tally: Tally) -> None:
    if not can("unshare", "--map-root-user", "--net", "true"):
        tally.notes.append("no network namespace can be made here: sockets that fail only")
        return
    with tally.right("a network namespace without a network"):
        done = subprocess.run(
            ["unshare", "--map-root-user", "--net", sys.executable, "-c", OFFLINE],
            capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": f"{ROOT}/src"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-300:]


def permissions(tally: Tally) -> None:
    """What is written is as private as the umask says, and nothing is left in shared places."""
    code = """
import os, sys, tempfile
os.umask(0o077)
import numpy as np
from healgp import ExpertGPRegressor
from healgp.report import write_report
from healgp.tables import pd, write
X = np.random.default_rng(0).uniform(-2, 2, (60, 2))
folder, before = sys.argv[1], set(os.listdir(tempfile.gettempdir()))
model = ExpertGPRegressor(points_per_expert=20, max_iter=2, random_state=0).fit(X, X[:, 0])
model.save(folder + "/model")
write_report(model, folder + "/report.html", X, X[:, 0])
write(pd.DataFrame(X), folder + "/t.csv")
for place, folders, files in os.walk(folder):
    for name in folders + files:
        mode = os.stat(os.path.join(place, name)).st_mode
        assert not mode & 0o077, (name, oct(mode))
    assert not [name for name in files if name.startswith(".")]
"""
    with tally.right("permissions"), tempfile.TemporaryDirectory() as name:
        done, _, err = ended("-W", "ignore", "-c", code, name)
        assert done == 0, err[-300:]
        load(Path(name) / "model")


def run(tally: Tally, effort: float = 1.0) -> None:
    warnings.simplefilter("ignore")
    disks(tally, effort)
    memory(tally, effort)
    sockets(tally)
    namespace(tally)
    permissions(tally)


if __name__ == "__main__":
    main(run)
