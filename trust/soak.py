"""Fits, predictions and partial_fit for as long as asked in one process: its memory stays flat.

`python -m trust.soak minutes 30`
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from healgp import ExpertGPClassifier, ExpertGPRegressor, load
from trust.tally import Tally, main

#: MB that the process may grow by after it is warm: allocators keep some.
GROWTH = 60.0


def resident() -> float:
    """MB of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def one_round(seed: int, folder: str) -> int:
    """What a service does in a day; how many fits, predictions and batches that were."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (300, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(300)
    rule = ("gpoe", "rbcm", "nested", "grbcm")[seed % 4]
    model = ExpertGPRegressor(points_per_expert=30, kernel="rbf", aggregation=rule, max_iter=5)
    model.fit(X, y)
    for start in range(0, 300, 60):
        model.partial_fit(X[start : start + 60] + 0.1, y[start : start + 60])
        assert np.abs(model.predict(X) - np.sin(X[:, 0])).mean() < 0.3
    model.save(folder)
    np.testing.assert_allclose(load(folder).predict(X), model.predict(X), rtol=1e-6, atol=1e-6)
    classes = ExpertGPClassifier(points_per_expert=60, n_inducing=8, max_iter=2).fit(X, y > 0)
    assert np.mean(classes.predict(X) == (y > 0)) > 0.7
    return 14


def soak(tally: Tally, seconds: float) -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(8):
            one_round(seed, folder)
        gc.collect()
        warm, seed, end = resident(), 8, time.monotonic() + seconds
        while time.monotonic() < end:
            with tally.right(f"round {seed}"):
                tally.inputs += one_round(seed, folder) - 1
            seed += 1
        gc.collect()
        with tally.right("memory"):
            grown = resident() - warm
            assert grown < GROWTH, f"{seed} rounds grew the process by {grown:.0f} MB"
        print(f"{seed} rounds, {grown:+.1f} MB", file=sys.stderr)


def run(tally: Tally, effort: float = 1.0) -> None:
    soak(tally, 120.0 * effort)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "minutes":
        tally = Tally("soak")
        soak(tally, 60.0 * float(sys.argv[2]))
        print(tally)
    else:
        main(run)
