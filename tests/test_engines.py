"""Threads, processes and the limit on BLAS's threads."""

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
from joblib import Parallel, delayed
from threadpoolctl import threadpool_info

from healgp import ExpertGPRegressor
from healgp.engines.local import LocalEngine, blas_threads, effective_n_jobs


def blas_now():
    return [i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"]


def fit_and_predict(n_jobs=None):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    model = ExpertGPRegressor(20, random_state=0, n_jobs=n_jobs).fit(X, np.sin(X[:, 0]))
    return model.predict(X[:5])


def test_limit_is_counted_and_restored():
    before = blas_now()
    with blas_threads(2):
        with blas_threads(1):
            assert set(blas_now()) == {1}
        assert set(blas_now()) == {2}
    assert blas_now() == before


def test_limit_is_restored_after_an_exception():
    before = blas_now()
    with pytest.raises(ZeroDivisionError), LocalEngine(2, [9] * 5) as engine:
        list(engine.map(lambda i: 1 / i, [3, 2, 1, 0, 1]))
    assert blas_now() == before


def test_limit_is_restored_when_threads_overlap():
    before, start = blas_now(), threading.Barrier(2)
    release = threading.Event()

    def first():
        with blas_threads(1):
            start.wait()
        release.set()

    thread = threading.Thread(target=first)
    thread.start()
    with blas_threads(1):
        start.wait()
        release.wait()
        assert set(blas_now()) == {1}  # the other has left, but this one has not
    thread.join()
    assert blas_now() == before


def test_map_keeps_the_order_and_runs_in_threads():
    with LocalEngine(3, [9] * 10) as engine:
        assert list(engine.map(lambda i: i * i, range(100))) == [i * i for i in range(100)]
        names = set(engine.map(lambda i: threading.current_thread().name, range(50)))
    assert all("ThreadPool" in name for name in names)
    assert not [t for t in threading.enumerate() if t.name in names]  # none outlives the engine


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_run_does_every_task_once_and_passes_errors_on(n_jobs):
    done = np.zeros(500, dtype=int)

    def work(i):
        done[i] += 1

    with LocalEngine(n_jobs, [9] * 10) as engine:
        engine.run(work, range(500))
        assert (done == 1).all()
        with pytest.raises(IndexError):
            engine.run(work, [1, 2, 700, 3, 4])
        engine.run(work, range(5))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes(method):
    expected = fit_and_predict()
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = [pool.apply_async(fit_and_predict) for _ in range(4)]
        for result in results:
            assert np.array_equal(result.get(timeout=120), expected)


def test_loky_workers_use_one_thread_each():
    expected = fit_and_predict()
    results = Parallel(n_jobs=2, backend="loky")(delayed(fit_and_predict)() for _ in range(4))
    assert all(np.array_equal(r, expected) for r in results)
    assert Parallel(n_jobs=2)(delayed(effective_n_jobs)(None) for _ in range(2)) == [1, 1]
    assert effective_n_jobs(3) == 3
    assert effective_n_jobs(-1) >= 1


def test_fork_inside_the_limit_frees_the_child():
    code = """
import os, sys, numpy as np, scipy.linalg
from threadpoolctl import threadpool_info
from healgp.engines.local import blas_threads
now = lambda: [i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"]
before = now()
with blas_threads(1):
    child = os.fork()
    if child == 0:
        os._exit(0 if now() == before else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code]).returncode == 0


def test_import_compiles_nothing():
    code = """
from numba.core import event
with event.install_recorder("numba:compile") as recorder:
    import healgp
print(len(recorder.buffer))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"


def test_a_cold_cache_says_that_it_compiles_and_a_warm_one_does_not(tmp_path):
    code = """
import numpy as np
from healgp import ExpertGPRegressor
X = np.random.default_rng(0).standard_normal((30, 2))
ExpertGPRegressor(max_iter=2, points_per_expert=10).fit(X, X[:, 0]).predict(X)
"""
    import os

    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    said = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env,
            check=True,
        )  # fmt: skip
        said.append(run.stderr.count("compiling"))
    assert said == [1, 0]


def test_without_a_place_for_the_cache_it_compiles_in_memory():
    code = """
import numba.core.caching as caching
def refuse(self):
    raise OSError("read-only")
for value in vars(caching).values():
    if isinstance(value, type) and issubclass(value, caching._CacheLocator):
        value.ensure_cache_path = refuse
from healgp import linalg
import numpy as np
assert linalg.cholesky(np.eye(3).ravel(), 3)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
