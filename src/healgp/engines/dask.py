"""Experts on the workers of a Dask cluster.

A shard is a run of experts with their rows, on one worker. Training sends θ to every shard and gets
each expert's value and gradient back, which are added up in the order of the experts: the result
does not depend on where they were. Predictions send rows to the shards that are to be asked.

What a worker held when it died is brought to another: shards of Dask collections by Dask itself,
which knows how they were made; shards of arrays by the client, which keeps the rows, and in lazy
predictions, which the client does not attend, by Dask too. Calls are pure functions of a shard, so
they are simply made again. A worker that joins is given its share of the
shards: left to itself, Dask would move them only while others are far behind with their work.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from itertools import count, zip_longest
from typing import Any, ClassVar, TypeVar

import numpy as np

from healgp.engines import shards as on_worker
from healgp.engines.cluster import (
    ATTEMPTS,
    Kept,
    current_client,
    given,
    layout,
    n_threads,
    same,
    sharded,
)
from healgp.engines.local import LocalEngine
from healgp.engines.shards import Shard
from healgp.experts.asking import Experts
from healgp.experts.committee import Committee, check
from healgp.experts.factors import plan
from healgp.kernels import Hyperparameters

Array = np.ndarray
Result = TypeVar("Result")

#: Arguments above this many bytes go to the workers directly, not through the scheduler.
_LARGE = 2**20

#: Numbers of what shards have been prepared for.
TOKENS = count()


@dataclass
class Sharded(Experts):
    """Experts in shards: shard s has the experts bounds[s]:bounds[s + 1]."""

    shards: list[Kept]
    bounds: Array
    offsets: Array
    kernel: str
    theta: Hyperparameters
    factor_bytes: float | None = None
    _token: int = field(default_factory=lambda: next(TOKENS), repr=False)
    _client: Any = field(default_factory=current_client, repr=False)
    _workers: frozenset[str] | None = field(default=None, repr=False)  # None: nobody is welcomed

    latent_shape: ClassVar[Any]  # as of the committees on one machine

    @property
    def homes(self) -> Array:
        return np.repeat(np.arange(len(self.shards)), np.diff(self.bounds))

    def _home(self, j: int) -> int:
        return int(np.searchsorted(self.bounds, j, side="right")) - 1

    @property
    def ahead(self) -> int:  # type: ignore[override]
        """Calls that keep every worker busy."""
        return 4 * n_threads(self._client)

    def engine(self, n_jobs: int | None) -> LocalEngine:
        """Threads of the client, which mostly wait for the workers."""
        threads = self.ahead
        return LocalEngine(threads, np.ones(threads))

    def blocks(self) -> list[tuple[int, int]]:
        """Blocks of experts, each within one shard; shards take turns, for neighbours are on
        different workers."""
        ends = zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True)
        of_shards = ([(i, min(i + 32, b)) for i in range(a, b, 32)] for a, b in ends)
        rounds = zip_longest(*of_shards)
        return [block for blocks in rounds for block in blocks if block is not None]

    def __post_init__(self) -> None:
        self._workers = frozenset(self._client.nthreads())

    def _welcome(self) -> None:
        """Gives workers that have joined their share of the shards."""
        if self._workers is None:
            return
        workers = sorted(self._client.nthreads())
        joined, self._workers = set(workers) - self._workers, frozenset(workers)
        for s, kept in enumerate(self.shards if joined else []):
            home = workers[s % len(workers)]
            if home in joined and not kept.move(self._client, home):
                joined.remove(home)  # it has gone again, or is too busy

    # ---- calls

    def _start(self, kept: list[Kept], submit: Callable[[], Any]) -> Callable[[], Any]:
        """Submits a task that needs what is kept; what is returned waits for it, and submits it
        again if a worker has taken it along."""
        from distributed import KilledWorker

        first = submit()

        def finish() -> Any:
            future = first
            for _ in range(ATTEMPTS):
                try:
                    return future.result()
                except (CancelledError, KilledWorker):
                    for each in kept:
                        each.restore()
                    future = submit()
            return future.result()

        return finish

    def _call(self, s: int, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Starts function(shard, *arguments) on the worker that has the shard."""

        def sent(argument: Any) -> Any:
            if isinstance(argument, Kept):
                return argument.future
            if isinstance(argument, np.ndarray) and argument.nbytes > _LARGE:
                return given(self._client, argument, s)
            return argument

        def submit() -> Any:
            there = [sent(argument) for argument in (self.shards[s], *arguments)]
            return self._client.submit(function, *there, pure=False)

        kept = [self.shards[s]] + [a for a in arguments if isinstance(a, Kept)]
        return self._start(kept, submit)

    def _all(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(shard, *arguments) of all shards, in their order."""
        self._welcome()
        waits = [self._call(s, function, *arguments) for s in range(len(self.shards))]
        return [wait() for wait in waits]

    def _changes(self, s: int) -> Any:
        """What the experts of a shard are to know beyond their rows: a dict, or where one is."""
        raise NotImplementedError

    def _ask(self, s: int, name: str, *arguments: Any) -> Callable[[], Any]:
        return self._call(s, on_worker.asked, self._token, self._changes(s), name, *arguments)

    def _room(self) -> float | None:
        """Bytes that the factors of a shard may take: the budget is a worker's, and each has about
        as many shards as the others."""
        if self.factor_bytes is None:
            return None
        return self.factor_bytes / self._shards_of_a_worker()

    def _shards_of_a_worker(self) -> float:
        return len(self.shards) / max(len(self._client.nthreads()), 1)

    # ---- what committees do

    def prepare_once(self, engine: LocalEngine) -> None:
        """Shards prepare themselves when they are asked."""
        self._welcome()

    def moments(
        self, new: Array, first: int, last: int, engine: LocalEngine
    ) -> tuple[Array, Array]:
        """Latent means and variances of some experts of one shard at the rows `new`."""
        s = self._home(first)
        start = int(self.bounds[s])
        return self._ask(s, "moments", new, first - start, last - start)()

    def moments_of(
        self, new: Array, asked: list[tuple[int, Array]], engine: LocalEngine
    ) -> list[tuple[Array, Array]]:
        """The same of some experts of one shard, each at its own rows of `new`."""
        s = self._home(asked[0][0])
        used, places = np.unique(np.concatenate([rows for _, rows in asked]), return_inverse=True)
        numbers = [j - int(self.bounds[s]) for j, _ in asked]
        parts = np.split(places, np.cumsum([len(rows) for _, rows in asked])[:-1])
        return self._ask(s, "moments_of", new[used], list(zip(numbers, parts, strict=True)))()

    def leave_one_out(self, rows: Array, engine: LocalEngine) -> tuple[Array, Array, Array]:
        """As of the committees on one machine."""
        owner = np.searchsorted(self.offsets, rows, side="right") - 1
        mean, var = np.empty((2, len(rows), *self.latent_shape))
        parts = self._by_shard(rows)
        waits = [self._ask(s, "leave_one_out", local) for s, _, local in parts]
        for (_, here, _), wait in zip(parts, waits, strict=True):
            _, mean[here], var[here] = wait()
        return owner, mean, var

    def inputs(self, rows: Array) -> Array:
        """Some of the committee's own rows [n, D]."""
        return self._fetched(rows, "inputs")

    def targets(self, rows: Array) -> Array:
        """Their y [n]."""
        return self._fetched(rows, "targets")

    def in_brief(self, experts: Array, rank: int, engine: LocalEngine) -> list[Array]:
        """Some experts as `healgp.experts.brief` has them, stacked."""
        waits = [self._ask(s, "in_brief", there, rank) for s, there in self._places(experts)]
        return [np.concatenate(parts) for parts in zip(*(wait() for wait in waits), strict=True)]

    def covariance(self, new: Array, j: int, engine: LocalEngine) -> Array:
        """Posterior covariance [n, n] of expert j at the rows `new` [n, D]."""
        s = self._home(j)
        return self._ask(s, "covariance", new, j - int(self.bounds[s]))()

    def prior_covariance(self, new: Array) -> Array:
        """K [n, n] of a latent function at the rows `new` [n, D]."""
        nothing = np.empty((new.shape[1], 0)), np.empty(0), np.array([0])
        return Committee(*nothing, self.kernel, self.theta).prior_covariance(new)

    def _places(self, experts: Array) -> list[tuple[int, Array]]:
        """Shards, and where they have some of the experts."""
        homes = self.homes[experts]
        return [(s, experts[homes == s] - self.bounds[s]) for s in np.unique(homes).tolist()]

    def _by_shard(self, rows: Array) -> list[tuple[int, Array, Array]]:
        """Shards, which of the rows are there, and where."""
        ends = self.offsets[self.bounds]
        shard = np.searchsorted(ends, rows, side="right") - 1
        found = [(int(s), np.flatnonzero(shard == s)) for s in np.unique(shard)]
        return [(s, here, rows[here] - ends[s]) for s, here in found]

    def _fetched(self, rows: Array, name: str) -> Array:
        parts = self._by_shard(rows)
        waits = [self._call(s, on_worker.plain, name, local) for s, _, local in parts]
        found = [wait() for wait in waits]
        out = np.empty((len(rows), *found[0].shape[1:]))
        for (_, here, _), values in zip(parts, found, strict=True):
            out[here] = values
        return out

    def local(self) -> Any:
        """The same committee here, with all rows."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return same, (self.local(),)

    def passport(self) -> Passport:
        """What goes to a worker that is to ask the shards itself. The client, which keeps the rows
        of arrays, is not there to bring them again: Dask must know how."""
        state = self.__dict__ | {"shards": [kept.rooted() for kept in self.shards], "_client": None}
        state["_workers"] = None  # the client moves shards, and nobody else
        if "_known" in state:
            state["_known"] = {}
        return Passport(type(self), state)


@dataclass
class Passport:
    """A sharded committee on its way to another process: the shards stay where they are."""

    kind: Any
    state: dict[str, Any]

    def committee(self) -> Any:
        committee = object.__new__(self.kind)
        shards = [Kept(partial(_arrived, future)) for future in self.state["shards"]]
        committee.__dict__.update(self.state | {"shards": shards, "_client": current_client()})
        return committee


def _arrived(future: Any) -> Any:
    return future


@dataclass
class ShardedCommittee(Sharded):
    """Exact experts in shards."""

    latent_shape, unit = Committee.latent_shape, Committee.unit

    @classmethod
    def from_groups(
        cls, X: Any, y: Any, groups: list[Array], kernel: str, theta: Hyperparameters
    ) -> ShardedCommittee:
        """Experts whose rows are X[groups[0]], X[groups[1]], …; X and y arrays, or the rows of Dask
        collections."""

        def build(X: Array, y: Array, groups: list[Array]) -> Shard:
            return Shard(Committee.from_groups(X, y, groups, kernel, theta))

        bounds, offsets = layout(groups, n_threads(current_client()))
        return cls(sharded(X, y, groups, bounds, build), bounds, offsets, kernel, theta)

    def _changes(self, s: int) -> Any:
        return {"theta": self.theta, "factor_bytes": self._room()}

    def subset(self, experts: Array) -> _Some:
        """Some of the experts, for training."""
        return _Some(self, experts, self.theta)

    def objective(self, theta: Hyperparameters, engine: LocalEngine) -> tuple[float, Array]:
        """Σ_j log p_j and its gradient, as of a committee on one machine."""
        return self.objective_of(theta, np.arange(self.n_experts))

    def objective_of(self, theta: Hyperparameters, experts: Array) -> tuple[float, Array]:
        """The same of some of the experts."""
        out = self._each(experts, on_worker.contributions, theta)
        found = np.concatenate(out)
        check(found[:, 0], self.sizes[experts], theta)
        sums = found.sum(axis=0)
        return float(sums[0]), sums[1:]

    def squares(self) -> Array:
        """Σ y² of each expert [J]."""
        return np.concatenate(self._all(on_worker.plain, "squares"))

    def _each(self, experts: Array, function: Any, *arguments: Any) -> list[Any]:
        """function(shard, *arguments, experts there) of the shards that have some of the experts;
        None stands for all."""
        self._welcome()
        waits = []
        for s, there in self._places(experts):
            everyone = len(there) == self.bounds[s + 1] - self.bounds[s]
            waits.append(self._call(s, function, *arguments, None if everyone else there))
        return [wait() for wait in waits]

    def prepare(self, engine: LocalEngine) -> float:
        """Every shard works out what predictions need. Returns Σ_j log p_j."""
        self._token = next(TOKENS)
        changes = self._changes(0)
        log_likelihood = np.concatenate(self._all(on_worker.factorize, self._token, changes))
        check(log_likelihood, self.sizes, self.theta)
        return float(log_likelihood.sum())

    def together(
        self, experts: Array, function: Callable[[Any, Array, LocalEngine], Result],
        engine: LocalEngine,
    ) -> Callable[[], Result]:  # fmt: skip
        """What gives function(committee, numbers, engine), for a committee of the experts that is
        put together on one of the workers."""
        places = self._places(experts)

        def submit() -> Any:
            parts = [
                self._client.submit(on_worker.extract, self.shards[s].future, there, pure=False)
                for s, there in places
            ]
            return self._client.submit(on_worker.together, function, self.theta, parts, pure=False)

        return self._start([self.shards[s] for s, _ in places], submit)

    def augmented(self, own: Array, experts: Array, X: Array, y: Array) -> ShardedCommittee:
        """Some of the experts, each with the rows X, y first and then those of its own that a mask
        over all rows leaves it."""
        places, ends = self._places(experts), self.offsets[self.bounds]

        def bring(s: int, there: Array) -> Any:
            self.shards[s].restore()
            future, mask = self.shards[s].future, own[ends[s] : ends[s + 1]]
            return self._client.submit(on_worker.augmented, future, mask, there, X, y, pure=False)

        shards = [Kept(partial(bring, s, there)) for s, there in places]
        sizes = np.add.reduceat(own.astype(np.intp), self.offsets[:-1])[experts] + len(y)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        bounds = np.concatenate([[0], np.cumsum([len(there) for _, there in places])])
        return ShardedCommittee(shards, bounds, offsets, self.kernel, self.theta)

    with_communication = Committee.with_communication

    def kept_bytes(self) -> float:
        """Bytes that the factors take on a worker, if all its shards are like the largest."""
        room, parts = (self._room() or 0.0) / 8, np.split(self.sizes, self.bounds[1:-1])
        most = max(int(plan(sizes, room)[1].sum()) for sizes in parts)
        return 8 * most * self._shards_of_a_worker()

    def local(self) -> Committee:
        committee = on_worker.joined(self._all(on_worker.whole), self.theta)
        committee.factor_bytes = self.factor_bytes
        return committee


@dataclass
class _Some:
    """Some experts of a sharded committee, as far as training needs them."""

    committee: ShardedCommittee
    experts: Array
    theta: Hyperparameters

    @property
    def kernel(self) -> str:
        return self.committee.kernel

    @property
    def n_rows(self) -> int:
        return int(self.committee.sizes[self.experts].sum())

    def objective(self, theta: Hyperparameters, engine: LocalEngine) -> tuple[float, Array]:
        return self.committee.objective_of(theta, self.experts)

    def squares(self) -> Array:
        """Σ y² of each of them."""
        return self.committee.squares()[self.experts]
