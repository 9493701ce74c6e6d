"""Memory, time against the number of rows, compilation; each case in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from timing import table

MEASURE = """
import json, sys, time
import_start = time.perf_counter()
from healgp import ExpertGPRegressor
from healgp.datasets import robot_arm
imported = time.perf_counter() - import_start
N, n, points, max_iter = map(int, sys.argv[1:])
X, y = robot_arm(N + n)
plain = dict(kernel='rbf', partition_metric='plain', aggregation='gpoe', temperature=100.0)
small = ExpertGPRegressor(random_state=0, max_iter=1, points_per_expert=100, **plain)
if max_iter > 1:  # load or compile the core outside the timing
    small.fit(X[:300], y[:300]).predict(X[:10])
start = time.perf_counter()
model = ExpertGPRegressor(
    points_per_expert=points, random_state=0, max_iter=max_iter, **plain
)
model.fit(X[:N], y[:N])
fitted = time.perf_counter()
model.predict(X[N:], return_std=True)
predicted = time.perf_counter()
with open("/proc/self/status") as lines:  # ru_maxrss would count the process that started this one
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
print(json.dumps(dict(
    fit=fitted - start, predict=predicted - fitted, peak=peak, J=model.n_experts_,
    iterations=model.n_iter_, imported=imported,
)))
"""


def measure(N: int, n: int, points: int, max_iter: int, cache: str | None = None) -> dict:
    env = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE, *map(str, (N, n, points, max_iter))],
        capture_output=True, text=True, check=True, env=env,
    )  # fmt: skip
    return json.loads(run.stdout.splitlines()[-1])


def memory(quick: bool) -> str:
    """Many small experts and many rows to predict."""
    J, n = (500, 10_000) if quick else (5_000, 100_000)
    r = measure(50 * J, n, 50, 10)
    return table(
        ["experts of 50", "rows predicted", "fit (10 iterations), s", "predict, s", "peak, MB"],
        [[r["J"], f"{n:,}", f"{r['fit']:.1f}", f"{r['predict']:.1f}", f"**{r['peak']:.0f}**"]],
    )


def rows(quick: bool, picture: Path) -> str:
    """Ten iterations of training and the prediction of 1,000 rows, against N."""
    sizes = [10_000, 20_000, 50_000] if quick else [10_000, 30_000, 100_000, 300_000, 1_000_000]
    results = [measure(N, 1000, 200, 10) for N in sizes]
    slope = np.polyfit(np.log(sizes), np.log([r["fit"] for r in results]), 1)[0]
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, colour in (("fit", "#1f6fb4"), ("predict", "#e07b00")):
        ax.loglog(sizes, [r[name] for r in results], "o-", color=colour, label=name)
    ax.loglog(sizes, results[0]["fit"] * np.array(sizes) / sizes[0], ":", color="#777777",
              label="a straight line")  # fmt: skip
    ax.set(xlabel="rows", ylabel="seconds", title="200 rows per expert, 10 iterations")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    figure.savefig(picture, dpi=130)
    plt.close(figure)
    lines = [
        [f"{N:,}", r["J"], f"{r['fit']:.1f}", f"{1e6 * r['fit'] / N:.0f}", f"{r['predict']:.1f}",
         f"{r['peak']:.0f}"]
        for N, r in zip(sizes, results, strict=True)
    ]  # fmt: skip
    return (
        table(["rows", "experts", "fit, s", "µs per row", "predict 1,000 rows, s", "peak, MB"],
              lines)
        + f"\nFit grows with the {slope:.2f}th power of N.\n\n![cost against N]({picture.name})\n"
    )  # fmt: skip


def compilation() -> str:
    """The first fit and predict of 1,000 rows with a cold cache on disk, and with a warm one."""
    with tempfile.TemporaryDirectory() as cache:
        cold = measure(1000, 10, 500, 1, cache)
        warm = measure(1000, 10, 500, 1, cache)
        full = measure(1000, 10, 500, 100, cache)
    return table(
        ["", "fit, s", "predict, s"],
        [
            ["cold cache, one iteration", f"**{cold['fit']:.1f}**", f"{cold['predict']:.1f}"],
            ["warm cache, one iteration", f"{warm['fit']:.2f}", f"{warm['predict']:.2f}"],
            ["warm, to convergence", f"**{full['fit']:.2f}**", f"{full['predict']:.2f}"],
        ],
    )
