"""Sparse experts on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np

from healgp.engines import shards as on_worker
from healgp.engines.cluster import Kept, current_client, given, layout, n_threads, sharded
from healgp.engines.dask import TOKENS, Sharded
from healgp.engines.local import LocalEngine
from healgp.engines.shards import Shard
from healgp.experts.sparse import SparseCommittee, choice, total
from healgp.experts.variational import Sites
from healgp.kernels import Hyperparameters
from healgp.likelihoods import Likelihood

Array = np.ndarray


@dataclass
class ShardedSparse(Sharded):
    """Sparse experts in shards. The workers have the rows; inducing inputs and sites, which change
    from step to step, are the client's and travel with each call."""

    likelihood: Likelihood = field(default_factory=Likelihood)
    Z: Array = field(default_factory=lambda: np.empty((0, 0)))
    z_offsets: Array = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    sites: Sites = field(default_factory=lambda: Sites.silent(0, 1))
    _known: dict[int, Kept] = field(default_factory=dict, repr=False)

    is_exact = False
    latent_shape, unit = SparseCommittee.latent_shape, SparseCommittee.unit
    sample = SparseCommittee.sample

    @classmethod
    def from_groups(
        cls, X: Any, y: Any, groups: list[Array], kernel: str, theta: Hyperparameters,
        likelihood: Likelihood, n_inducing: int, rng: np.random.Generator, engine: LocalEngine,
    ) -> ShardedSparse:  # fmt: skip
        """As of a committee on one machine; X and y arrays, or the rows of Dask collections."""

        def build(X: Array, y: Array, groups: list[Array]) -> Shard:
            rows, ends = np.concatenate(groups), np.cumsum([0] + [len(group) for group in groups])
            nothing = np.empty((0, X.shape[1])), np.zeros(len(ends), dtype=np.intp)
            return Shard(
                SparseCommittee(
                    X[rows], y[rows], ends, kernel, theta, likelihood, *nothing, Sites.silent(0, 1)
                )
            )

        bounds, offsets = layout(groups, n_threads(current_client()))
        among = choice(groups, n_inducing, rng)
        self = cls(
            sharded(X, y, groups, bounds, build), bounds, offsets, kernel, theta,
            likelihood=likelihood,
        )  # fmt: skip
        waits = [
            self._call(s, on_worker.inducing, n_inducing, among[a:b])
            for s, (a, b) in enumerate(pairwise(bounds))
        ]
        Z = list(chain.from_iterable(wait() for wait in waits))
        self.Z, self.z_offsets = np.concatenate(Z), np.cumsum([0] + [len(z) for z in Z])
        self.sites = Sites(*likelihood.first_sites(self.targets(np.arange(self.n_rows))))
        return self

    def _rows_of(self, s: int) -> slice:
        return slice(*self.offsets[self.bounds[s : s + 2]])

    def _inducing_of(self, s: int) -> slice:
        return slice(*self.z_offsets[self.bounds[s : s + 2]])

    def _z_offsets_of(self, s: int) -> Array:
        ends = self.z_offsets[self.bounds[s] : self.bounds[s + 1] + 1]
        return ends - ends[0]

    def _changes(self, s: int) -> Any:
        """Where θ, likelihood, inducing inputs and sites of a shard lie, once they are there."""
        if s not in self._known:
            changes = self._but_sites(s) | {"sites": self.sites[self._rows_of(s)]}
            self._known[s] = Kept(lambda: given(self._client, changes, s))
        return self._known[s]

    def _but_sites(self, s: int) -> dict[str, Any]:
        return {
            "theta": self.theta, "likelihood": self.likelihood, "Z": self.Z[self._inducing_of(s)],
            "z_offsets": self._z_offsets_of(s), "factor_bytes": self._room(),
        }  # fmt: skip

    def objective(
        self, theta: Hyperparameters, likelihood: Likelihood, Z: Array, engine: LocalEngine
    ) -> tuple[float, Array, Array]:
        """As of a committee on one machine."""
        self._welcome()
        waits = [
            self._call(
                s, on_worker.terms, theta, likelihood, Z[self._inducing_of(s)],
                self._z_offsets_of(s), *self._sites_of(s),
            )
            for s in range(len(self.shards))
        ]  # fmt: skip
        return total(chain.from_iterable(self._with_sites(waits)))

    def _sites_of(self, s: int) -> tuple[Array, Array]:
        sites = self.sites[self._rows_of(s)]
        return sites.weight, sites.shift

    def _with_sites(self, waits: list[Callable[[], Any]]) -> list[Any]:
        """What the calls found; the sites that came with it are kept."""
        results = [
            wait() for wait in waits
        ]  # all or nothing: an interrupt leaves them as they were
        for s, (_, sites) in enumerate(results):
            rows = self._rows_of(s)
            self.sites.weight[rows], self.sites.shift[rows] = sites.weight, sites.shift
        return [found for found, _ in results]

    def prepare(self, engine: LocalEngine) -> float:
        """Finds every q(u). Returns Σ_j ELBO_j."""
        self._token, self._known = next(TOKENS), {}
        self._welcome()
        waits = [
            self._call(
                s, on_worker.bounds, self._token, self._but_sites(s), *self._sites_of(s)
            )
            for s in range(len(self.shards))
        ]  # fmt: skip
        return sum(chain.from_iterable(self._with_sites(waits)))

    def local(self) -> SparseCommittee:
        parts = self._all(on_worker.whole)
        return SparseCommittee(
            np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]),
            self.offsets, self.kernel, self.theta, self.likelihood, self.Z, self.z_offsets,
            self.sites, self.factor_bytes,
        )  # fmt: skip
