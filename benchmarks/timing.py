"""What all benchmarks share: best of several repeats, threads, tables."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import scipy
from threadpoolctl import threadpool_info


def best(function: Callable[[], object], repeats: int, before: Callable[[], object] | None = None):
    """The least seconds of `repeats` runs; `before` is not timed."""
    least = np.inf
    for _ in range(repeats):
        if before is not None:
            before()
        start = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - start)
    return least


def best_of_each(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The least seconds of each, run by turns, so that all meet the same good and bad moments of a
    machine."""
    rounds = [[best(function, 1) for function in functions] for _ in range(repeats)]
    return list(np.min(rounds, axis=0))


def in_threads(function: Callable[[int], object], n: int, threads: int) -> None:
    """function(0) … function(n − 1), each thread taking the next that is left."""
    if threads == 1:
        for i in range(n):
            function(i)
        return
    left = iter(range(n))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: [function(i) for i in left], range(threads)))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def machine() -> str:
    """What this ran on."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    blas = sorted({f"{i['internal_api']} {i['version']}" for i in threadpool_info()
                   if i["user_api"] == "blas"})  # fmt: skip
    return (
        f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, NumPy "
        f"{np.__version__}, SciPy {scipy.__version__}, Numba {numba.__version__}, "
        f"{', '.join(blas)}"
    )
