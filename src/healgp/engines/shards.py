"""What a Dask worker has and does: a run of experts, and pure functions of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.experts.sparse import SparseCommittee
from healgp.experts.variational import Sites, choose_inducing
from healgp.kernels import Hyperparameters
from healgp.likelihoods import Likelihood

Array = np.ndarray
Result = TypeVar("Result")


class Shard:
    """Experts with their rows; and the same as they were last asked for, prepared. That is only
    there to save time: it does not travel, and is made again when it is needed."""

    def __init__(self, experts: Any) -> None:
        self.experts: Any = experts  # Committee or SparseCommittee
        self._lock = threading.Lock()
        self._token: Any = None
        self._ready: Any = None

    def __reduce__(self) -> Any:
        return Shard, (self.experts,)

    def __sizeof__(self) -> int:  # which tells Dask what moving it costs
        arrays = (value for value in vars(self.experts).values() if isinstance(value, np.ndarray))
        return sum(array.nbytes for array in arrays)

    def keep(self, token: Any, ready: Any) -> None:
        with self._lock:
            self._token, self._ready = token, ready

    def ready(self, token: Any, changes: dict[str, Any]) -> Any:
        """The experts with the changes, prepared for predictions: once for each token."""
        with self._lock:
            if self._token != token:
                ready = replace(self.experts, **changes)
                with ready.engine(None) as engine:
                    ready.prepare_once(engine)
                self._token, self._ready = token, ready
            return self._ready


def asked(shard: Shard, token: Any, changes: dict[str, Any], name: str, *arguments: Any) -> Any:
    """A method of prepared experts."""
    experts = shard.ready(token, changes)
    with experts.engine(None) as engine:
        return getattr(experts, name)(*arguments, engine)


def plain(shard: Shard, name: str, *arguments: Any) -> Any:
    """A method that needs their rows only."""
    return getattr(shard.experts, name)(*arguments)


def whole(shard: Shard) -> Any:
    return shard.experts


# ---- exact experts -----------------------------------------------------------------------------


def contributions(shard: Shard, theta: Hyperparameters, experts: Array | None) -> Array:
    """Terms of the objective, of all experts or of some."""
    committee = shard.experts if experts is None else shard.experts.subset(experts)
    with committee.engine(None) as engine:
        return committee.contributions(theta, engine)


def factorize(shard: Shard, token: Any, changes: dict[str, Any]) -> Array:
    """log p_j of the experts, which are then prepared."""
    committee = replace(shard.experts, **changes)
    with committee.engine(None) as engine:
        log_likelihood = committee.factorize(engine)
    shard.keep(token, committee)
    return log_likelihood


def augmented(shard: Shard, own: Array, experts: Array, X: Array, y: Array) -> Shard:
    return Shard(shard.experts.augmented(own, experts, X, y))


def extract(shard: Shard, experts: Array) -> Committee:
    return shard.experts.subset(experts)


def joined(parts: Sequence[Committee], theta: Hyperparameters) -> Committee:
    """Experts of several committees in one."""
    sizes = np.concatenate([part.sizes for part in parts])
    return Committee(
        np.concatenate([part.XT for part in parts], axis=1),
        np.concatenate([part.y for part in parts]),
        np.concatenate([[0], np.cumsum(sizes)]),
        parts[0].kernel,
        theta,
    )


def together(
    function: Callable[[Committee, Array, LocalEngine], Result], theta: Hyperparameters,
    parts: list[Committee],
) -> Result:  # fmt: skip
    """A function of experts from several shards."""
    committee = joined(parts, theta)
    with committee.engine(None) as engine:
        committee.prepare(engine)
        return function(committee, np.arange(committee.n_experts), engine)


# ---- sparse experts ----------------------------------------------------------------------------


def inducing(shard: Shard, n_inducing: int, among: list[Any]) -> list[Array]:
    """Inducing inputs of each expert."""
    c: SparseCommittee = shard.experts
    parts = zip(c.offsets[:-1], c.offsets[1:], among, strict=True)
    return [choose_inducing(c.kernel, c.theta, c.X[a:b][some], n_inducing) for a, b, some in parts]


def _with_sites(shard: Shard, weight: Array, shift: Array, **changes: Any) -> SparseCommittee:
    # what comes from the client may be read-only, and steps replace the sites in place
    return replace(shard.experts, sites=Sites(weight.copy(), shift.copy()), **changes)


def terms(
    shard: Shard, theta: Hyperparameters, likelihood: Likelihood, Z: Array, z_offsets: Array,
    weight: Array, shift: Array,
) -> tuple[list[Any], Sites]:  # fmt: skip
    """Terms of the objective, and the sites where their maximum is."""
    committee = _with_sites(shard, weight, shift, z_offsets=z_offsets)
    with committee.engine(None) as engine:
        found = list(committee.terms(theta, likelihood, np.array(Z), engine))
    return found, committee.sites


def bounds(
    shard: Shard, token: Any, changes: dict[str, Any], weight: Array, shift: Array
) -> tuple[list[float], Sites]:
    """The experts' ELBO and sites; they are then prepared."""
    committee = _with_sites(shard, weight, shift, **changes)
    with committee.engine(None) as engine:
        found = committee.bounds(engine)
    shard.keep(token, committee)
    return found, committee.sites
