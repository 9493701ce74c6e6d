"""Shared by all tests: a cache of compiled code that follows the sources, and small data."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

# Numba's cache of a function looks at that function's own file only. Code that a change in another
# file has made stale must not be tested, so each state of the sources has a cache of its own. Each
# version of Numba has too: while one takes over the cache of another, a second process may read an
# entry whose index is new and whose code is still the other's.
_SOURCES = sorted((Path(__file__).parent.parent / "src").rglob("*.py"))
_PARTS = [*(path.read_bytes() for path in _SOURCES), version("numba").encode()]
_STATE = hashlib.sha256(b"".join(_PARTS)).hexdigest()[:16]
os.environ["NUMBA_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"healgp-numba-{_STATE}")

# A shell that starts the tests in the background may have told them to ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np  # noqa: E402

from healgp import datasets  # noqa: E402


def data_or_simulated(name: str, split: int = 0, n: int = 2000):
    """The split of a data set, standardised, or rows of the robot arm when it is not here; the
    second value says which."""
    try:
        return datasets.load(name, split, standardize=True), True
    except FileNotFoundError:
        warnings.warn(f"{name} is not in HEALGP_DATA; simulated rows instead", stacklevel=2)
        X, y = datasets.robot_arm(n + n // 9, seed=split)
        X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
        return (X[:n], X[n:], y[:n], y[n:]), False


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def wave(rng):
    """200 rows in two dimensions of a smooth function with noise, and 40 new rows."""
    X = rng.uniform(-2, 2, (240, 2))
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * rng.standard_normal(240)
    return X[:200], y[:200], X[200:]
