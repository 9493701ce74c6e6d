"""A Dask cluster: its client, how experts are divided among its workers, and what lies there."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from healgp.engines.shards import Shard

Array = np.ndarray
Value = TypeVar("Value")

#: Shards for each thread of a worker, so that all end an evaluation together and one that dies or
#: joins changes little; the rows that they have at least, for a shard costs the scheduler some
#: milliseconds, and at most; and shards at most, which then grow with the data.
_EACH, _FEWEST_ROWS, _MOST_ROWS, _MOST_SHARDS = 4, 5_000, 200_000, 2000

#: How often something is tried again that was lost with a worker.
ATTEMPTS = 20

#: Seconds that a shard may take to its new worker before work goes on, and how often it is sent.
_PATIENCE, _MOVES = 60, 5


def current_client() -> Any:
    """The current Dask client."""
    try:
        from distributed import default_client
    except ImportError:
        raise ImportError("engine='dask' needs Dask: pip install 'healgp[dask]'.") from None
    try:
        return default_client()
    except ValueError:
        raise ValueError(
            "engine='dask' needs a running Dask client. Start one first: on this machine with "
            "`from distributed import Client; client = Client()`, for a cluster with "
            "Client('tcp://scheduler:8786')."
        ) from None


def n_threads(client: Any) -> int:
    """Of all workers together."""
    return max(sum(client.nthreads().values()), 1)


class Kept:
    """Something on a worker that can be brought there again."""

    def __init__(self, bring: Callable[[], Any], root: Callable[[], Any] | None = None) -> None:
        self._bring, self._root, self._lock = bring, root, threading.Lock()
        self.future = bring()

    def rooted(self) -> Any:
        """Its future, of a task that Dask itself can run again: for work that nobody attends to."""
        with self._lock:
            if self._root is not None:
                self._bring, self._root = self._root, None
                self.future = self._bring()
            return self.future

    def restore(self) -> None:
        """Brings it again if it was lost."""
        with self._lock:
            if self.future.status in ("cancelled", "lost", "error"):
                self.future = self._bring()

    def move(self, client: Any, worker: str) -> bool:
        """To another worker; False if it did not get there, and is wherever there was room. It is
        waited for, because of several such tasks at a time Dask would take some elsewhere, and
        tried again, because at times it does so with one. A task that insisted on its worker could
        never be made again once that one has died."""
        from distributed import wait

        with self._lock:
            for _ in range(_MOVES):
                self.future = client.submit(
                    same, self.future, workers=[worker], allow_other_workers=True, pure=False
                )
                try:
                    wait(self.future, timeout=_PATIENCE)
                except (CancelledError, TimeoutError):  # lost: it is brought when it is needed
                    return False
                if worker in client.who_has(self.future).get(self.future.key, ()):
                    return True
        return False


def same(value: Value) -> Value:
    """The value itself, where the task runs that asks for it."""
    return value


def layout(groups: list[Array], threads: int) -> tuple[Array, Array]:
    """The experts of each shard as bounds, and the rows of each expert as offsets."""
    offsets = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
    N, n = int(offsets[-1]), n_shards(int(offsets[-1]), len(groups), threads)
    cuts = np.searchsorted(offsets, np.arange(1, n) * (N / n))
    return np.unique(np.concatenate([[0], np.clip(cuts, 1, len(groups)), [len(groups)]])), offsets


def n_shards(n_rows: int, n_experts: int, threads: int) -> int:
    """As many for every thread, within the bounds above."""
    each = max(_EACH, -(-n_rows // (_MOST_ROWS * threads)))
    most = max(n_rows // _FEWEST_ROWS, 4)
    return min(each * threads, most, max(_MOST_SHARDS, threads), n_experts)


def sharded(
    X: Any, y: Any, groups: list[Array], bounds: Array,
    build: Callable[[Array, Array, list[Array]], Shard],
) -> list[Kept]:  # fmt: skip
    """The shards of some rows; build(X, y, groups) makes one."""
    client = current_client()
    if not isinstance(X, np.ndarray):
        return [Kept(bring) for bring in X.shards(y, groups, bounds, build, client)]

    def kept(s: int, shard: Shard) -> Kept:
        return Kept(lambda: given(client, shard, s), lambda: entrusted(client, shard, s))

    parts = [groups[a:b] for a, b in pairwise(bounds)]
    return [kept(s, build(X, y, part)) for s, part in enumerate(parts)]


def given(client: Any, value: Any, s: int) -> Any:
    """A value on one of the workers, which take turns. One that has just died may still be on the
    list: then another is tried."""
    for attempt in range(ATTEMPTS):
        while not (workers := sorted(client.nthreads())):
            client.wait_for_workers(1)
        worker = workers[(s + attempt) % len(workers)]
        try:
            return client.scatter([value], workers=[worker], hash=False)[0]
        except (OSError, TimeoutError, KeyError, ValueError):
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.2)
    raise AssertionError


def entrusted(client: Any, value: Any, s: int) -> Any:
    """The same as the result of a task, so that a worker's death does not lose it; the scheduler
    has the value too then."""
    workers = sorted(client.nthreads())
    home = [workers[s % len(workers)]] if workers else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        return client.submit(
            same, value, workers=home, allow_other_workers=home is not None, pure=False
        )
