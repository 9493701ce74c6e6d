"""Threads on this machine: jitted code releases the GIL, so a plain pool keeps all cores busy."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numba.core import event
from threadpoolctl import ThreadpoolController

from healgp import room

Task = TypeVar("Task")
Result = TypeVar("Result")


def _set_threads(library: Any, n: int) -> None:
    # Newer versions of threadpoolctl ignore every thread but the one that limited OpenBLAS first.
    # The count below is over all threads, so it needs the setter underneath.
    getattr(library, "_real_set_num_threads", library.set_num_threads)(n)


class _BlasThreads:
    """Limits BLAS's threads; the limit is global to the process, so users of it are counted.

    While several limits are asked for at once the smallest holds; what was there before the first
    comes back after the last.
    """

    def __init__(self) -> None:
        self._libraries: list[Any] | None = None  # looked for once: it takes some milliseconds
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._before: list[tuple[Any, int]] = []  # each library and its number of threads

    def _after_fork(self) -> None:
        # The threads that asked for the limits do not exist in the child.
        before = self._before
        self._reset()
        for library, n in before:
            _set_threads(library, n)

    def _apply(self) -> None:
        if self._limits:
            if not self._before:
                if self._libraries is None:
                    found = ThreadpoolController().select(user_api="blas")
                    self._libraries = found.lib_controllers
                self._before = [(library, library.num_threads) for library in self._libraries]
            for library, n in self._before:
                _set_threads(library, min(*self._limits, n))
        else:
            for library, n in self._before:
                _set_threads(library, n)
            self._before = []

    @contextmanager
    def __call__(self, limit: int) -> Iterator[None]:
        with self._lock:
            self._limits.append(limit)
            self._apply()
        try:
            yield
        finally:
            with self._lock:
                self._limits.remove(limit)
                self._apply()


blas_threads = _BlasThreads()


#: From this many rows on, threads inside BLAS are worth while for a single expert; on smaller ones
#: they gain little, and lose much when the machine is busy.
_LARGE = 1500


class _CompilationNotice(event.Listener):
    """Says once per process that the first fit compiles, so that nobody wonders why it is slow."""

    said = False

    def on_start(self, event: Any) -> None:
        if not _CompilationNotice.said:
            _CompilationNotice.said = True
            print(
                "healgp: compiling its numerical core for this machine, once (some seconds) …",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event: Any) -> None:
        pass


def effective_n_jobs(n_jobs: int | None) -> int:
    """None is every core that this process may use, but one inside a loky or Dask worker, where
    the others belong to the other workers; −1 is every core always."""
    if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise ValueError(
            f"n_jobs={n_jobs!r} must be None, a number of threads, or −1 for all cores."
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if n_jobs is None:
        in_loky = multiprocessing.current_process().name.startswith("LokyProcess")
        in_dask = "distributed.worker" in sys.modules and _in_dask_task()
        return 1 if in_loky or in_dask else (cores or 1)
    return int(n_jobs) if n_jobs > 0 else max(1, (cores or 1) + 1 + n_jobs)


def _in_dask_task() -> bool:
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


def memory() -> float:
    """Bytes that this machine has, or that this process may use if that is less."""
    found = 8.0 * 2**30  # where the system does not say
    if hasattr(os, "sysconf"):
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                found = min(found, float(file.read()))
        except (OSError, ValueError):  # no such group, or no limit ("max")
            pass
    return max(0.0, min(found, room.left()))


@contextmanager
def enough_memory() -> Iterator[None]:
    """A MemoryError that comes of the work in the block says what to change."""
    try:
        room.ask()
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error) or "an allocation failed"
        is_thread = isinstance(error, RuntimeError) and "start new thread" in said
        if "points_per_expert" in said or not (is_thread or isinstance(error, MemoryError)):
            raise
        raise MemoryError(
            f"There is not enough memory: {said.rstrip('.')}. Lower points_per_expert (an expert "
            "of m rows needs 8 m² bytes, on every thread), memory_budget or n_jobs, or predict "
            "fewer rows at once."
        ) from error


class LocalEngine:
    """A thread pool for as long as the `with` block lasts, with BLAS held to one thread meanwhile.

    With fewer experts than threads, if they are large, it is the other way round: one thread, and
    BLAS gets them all. `sizes` are the experts' numbers of rows.
    """

    def __init__(self, n_jobs: int | None, sizes: Sequence[int] | np.ndarray) -> None:
        threads = effective_n_jobs(n_jobs)
        if len(sizes) < threads and max(sizes) >= _LARGE:
            self.n_threads, self._blas = 1, threads
        else:
            self.n_threads, self._blas = min(threads, len(sizes)), 1
        self._local = threading.local()

    def __enter__(self) -> LocalEngine:
        with ExitStack() as stack:
            stack.enter_context(enough_memory())
            stack.enter_context(blas_threads(self._blas))
            stack.enter_context(event.install_listener("numba:compile", _CompilationNotice()))
            self._pool = (
                stack.enter_context(ThreadPoolExecutor(self.n_threads))
                if self.n_threads > 1
                else None
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def scratch(self, *sizes: int) -> tuple[np.ndarray, ...]:
        """Arrays of these sizes, allocated once per thread and lent again for the same sizes."""
        kept = self._local.__dict__
        key = str(sizes)
        if key not in kept:
            kept[key] = tuple(np.empty(size) for size in sizes)
        return kept[key]

    def run(self, function: Callable[[Task], Any], tasks: Iterable[Task]) -> None:
        """function(task) for every task, each thread (this one too) taking the next that is left;
        for functions that leave their results in memory of their own."""
        left = iter(tasks)
        if self._pool is None:
            deque(map(function, left), maxlen=0)
            return
        stop = False

        def work() -> None:
            while not stop:
                with lock:
                    task = next(left, left)
                if task is left:
                    return
                function(task)  # type: ignore[arg-type]

        lock = threading.Lock()
        futures = [self._pool.submit(work) for _ in range(self.n_threads - 1)]
        try:
            work()
        finally:
            stop = True  # after an error or Ctrl-C the other threads end with their task
            wait(futures)
        for future in futures:
            future.result()

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """function(task) for every task, in order of the tasks; a few run ahead of the consumer."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        ahead: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                ahead.append(self._pool.submit(function, task))
                if len(ahead) > 4 * self.n_threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
            for future in ahead:
                if not future.cancelled():
                    future.exception()
