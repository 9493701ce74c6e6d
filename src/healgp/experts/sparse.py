"""Sparse variational experts together: their rows, inducing inputs, sites, and the shared θ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from healgp.engines.local import LocalEngine
from healgp.experts import stages
from healgp.experts.asking import Experts
from healgp.experts.brief import summarise
from healgp.experts.committee import FACTOR_BYTES, ExpertError
from healgp.experts.variational import (
    Expert,
    Frame,
    Posterior,
    Sites,
    block_rows,
    choose_inducing,
)
from healgp.kernels import KERNELS, Hyperparameters
from healgp.likelihoods import Gaussian, Likelihood

Array = np.ndarray

#: Gain of the ELBO per row at which natural-gradient steps end, and their number at most: while
#: kernel and inducing inputs are still moving, and for the model.
_TRAINING_STEPS, _FINAL_STEPS = (1e-3, 5), (1e-4, 100)

#: Rows that inducing inputs are chosen among, at least; twenty for each of them if that is more.
_CHOICE = 10_000


@dataclass
class SparseCommittee(Experts):
    """J sparse experts with one θ and one likelihood. Expert j owns the rows
    offsets[j]:offsets[j + 1] of X and the inducing inputs z_offsets[j]:z_offsets[j + 1] of Z."""

    X: Array  # [N, D]
    y: Array  # [N]
    offsets: Array  # [J + 1]
    kernel: str
    theta: Hyperparameters
    likelihood: Likelihood
    Z: Array  # [ΣM, D]
    z_offsets: Array  # [J + 1]
    sites: Sites  # [N, C] each
    factor_bytes: float | None = None
    _states: list[tuple[Frame, Posterior] | None] = field(default_factory=list, repr=False)

    is_exact = False

    @classmethod
    def from_groups(
        cls, X: Array, y: Array, groups: list[Array], kernel: str, theta: Hyperparameters,
        likelihood: Likelihood, n_inducing: int, rng: np.random.Generator, engine: LocalEngine,
    ) -> SparseCommittee:  # fmt: skip
        """Experts whose rows are X[groups[0]], X[groups[1]], …, with up to `n_inducing` inducing
        inputs each, chosen greedily under θ."""
        among = choice(groups, n_inducing, rng)
        Z = list(
            engine.map(
                lambda each: choose_inducing(kernel, theta, X[each[0][each[1]]], n_inducing),
                zip(groups, among, strict=True),
            )
        )
        order = np.concatenate(groups)
        return cls(
            X[order], y[order], _offsets(groups), kernel, theta, likelihood,
            np.concatenate(Z), _offsets(Z), Sites(*likelihood.first_sites(y[order])),
        )  # fmt: skip

    def sample(self, limit: int, experts: Array, rng: np.random.Generator) -> SparseCommittee:
        """Some of the experts, on at most `limit` rows each."""
        rows, Z = [], []
        for j in experts:
            own = np.arange(self.offsets[j], self.offsets[j + 1])
            rows.append(own if len(own) <= limit else np.sort(rng.choice(own, limit, False)))
            Z.append(self.Z[self.z_offsets[j] : self.z_offsets[j + 1]])
        order = np.concatenate(rows)
        return SparseCommittee(
            self.inputs(order), self.targets(order), _offsets(rows), self.kernel, self.theta,
            self.likelihood, np.concatenate(Z), _offsets(Z), self.sites[order],
        )  # fmt: skip

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Beyond the rows, the shape of the latent functions: empty when there is one."""
        C = self.likelihood.n_latent
        return () if C == 1 else (C,)

    def inputs(self, rows: Array | slice) -> Array:
        """Some of the committee's own rows [n, D]."""
        return self.X[rows]

    def targets(self, rows: Array) -> Array:
        """Their y [n]."""
        return self.y[rows]

    @property
    def unit(self) -> float:
        """What the latent functions are measured in by `moments`: y's own units when they are those
        of f, otherwise the prior's deviation."""
        if isinstance(self.likelihood, Gaussian):
            return 1.0
        return float(np.sqrt(self.theta.signal_variance))

    @property
    def work(self) -> Array:
        """One size for each piece that a thread can take, for the engine."""
        M = int(np.diff(self.z_offsets).max())
        rows = block_rows(M, self.likelihood.n_latent)
        return np.full(max(self.n_experts, len(self.y) // rows + 1), rows)

    def _kept(self) -> Array:
        """Which experts' posteriors are kept in memory."""
        squares = np.diff(self.z_offsets).astype(np.int64) ** 2
        room = FACTOR_BYTES if self.factor_bytes is None else self.factor_bytes
        return np.cumsum((self.likelihood.n_latent + 3) * squares * 8) <= room

    def _inducing(self, Z: Array, j: int) -> Array:
        return Z[self.z_offsets[j] : self.z_offsets[j + 1]]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_states": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # joblib hands large arrays over read-only, which would be another type to compile for
        for name in ("X", "y", "offsets", "Z", "z_offsets"):
            state[name] = np.require(state[name], requirements=["C", "W"])
        self.__dict__.update(state)

    def _each(
        self, function: Callable[[int, Any], Any], engine: LocalEngine, experts: Any = None
    ) -> Iterator[Any]:
        """function(j, map over blocks) for every expert in order: threads share the experts, or
        with few of them the blocks of rows."""
        experts = range(self.n_experts) if experts is None else experts
        if self.n_experts >= 2 * engine.n_threads:
            return engine.map(lambda j: function(j, map), experts)
        return (function(j, engine.map) for j in experts)

    def _frame(self, j: int, theta: Hyperparameters, Z: Array) -> Frame:
        frame = Frame.of(self.kernel, theta, self._inducing(Z, j))
        if frame is None:
            raise ExpertError(
                f"The covariance matrix of the inducing inputs of expert {j} is not positive "
                f"definite (signal_variance={theta.signal_variance:.3g}). Leave out columns with "
                "extreme values."
            )
        return frame

    def _expert(
        self, j: int, theta: Hyperparameters, likelihood: Likelihood, Z: Array, blocks_map: Any,
        with_gradient: bool = False,
    ) -> tuple[Expert, slice]:  # fmt: skip
        """Expert j, and where its rows are."""
        rows, frame = slice(self.offsets[j], self.offsets[j + 1]), self._frame(j, theta, Z)
        expert = Expert(frame, likelihood, self.X[rows], self.y[rows], blocks_map, with_gradient)
        return expert, rows

    def _improved(
        self, expert: Expert, j: int, rows: slice | Array, tolerance: float, max_steps: int
    ) -> Posterior:
        """q(u) of an expert on some rows, from their sites, or anew if that fails. The sites are
        replaced."""
        found = expert.improve(self.sites[rows], tolerance, max_steps)
        if found is None:
            first = Sites(*expert.likelihood.first_sites(expert.y))
            found = expert.improve(first, tolerance, max_steps)
        if found is None:
            raise ExpertError(
                f"The variational posterior of expert {j} ({len(expert.y)} rows) could not be "
                f"found (signal_variance={self.theta.signal_variance:.3g}). Lower signal_variance, "
                "or leave out rows with extreme values."
            )
        self.sites.weight[rows], self.sites.shift[rows] = found[0].weight, found[0].shift
        return found[1]

    def objective(
        self, theta: Hyperparameters, likelihood: Likelihood, Z: Array, engine: LocalEngine
    ) -> tuple[float, Array, Array]:
        """Σ_j max_q ELBO_j; its gradient by (log ℓ [D], log σ², the likelihood's parameter,
        log shape), and by Z. The sites are left where the maximum is, for the next call."""
        return total(self.terms(theta, likelihood, Z, engine))

    def terms(
        self, theta: Hyperparameters, likelihood: Likelihood, Z: Array, engine: LocalEngine
    ) -> Iterator[tuple[float, Array, Array]]:
        """Each expert's term of the objective and its gradients."""

        def run(j: int, blocks_map: Any) -> tuple[float, Array, Array]:
            expert, rows = self._expert(j, theta, likelihood, Z, blocks_map, with_gradient=True)
            q = self._improved(expert, j, rows, *_TRAINING_STEPS)
            there = expert.evaluate(q, gradient=True)
            assert there.gradient is not None
            g = there.gradient
            tail = [g.signal, g.parameter, g.shape]
            return there.elbo, np.concatenate([g.lengthscales, tail]), g.inducing

        return self._each(run, engine)

    def held_out(self, theta: Hyperparameters, held: Array, engine: LocalEngine) -> float:
        """Σ log p(y_i) over the rows that are held out (a mask), each predicted by its own expert
        from its other rows."""

        def run(j: int, blocks_map: Any) -> float:
            rows = np.arange(self.offsets[j], self.offsets[j + 1])
            new, rows = rows[held[rows]], rows[~held[rows]]
            if not len(new) or not len(rows):
                return 0.0
            frame = self._frame(j, theta, self.Z)
            expert = Expert(frame, self.likelihood, self.X[rows], self.y[rows], blocks_map)
            q = self._improved(expert, j, rows, *_TRAINING_STEPS)
            mean, var, _ = q.latent(frame.features(self.X[new]), theta.signal_variance)
            return float(self.likelihood.log_density(self.y[new], mean, var).sum())

        return sum(self._each(run, engine))

    def prepare(self, engine: LocalEngine) -> float:
        """Finds every q(u), and keeps them as far as memory allows. Returns Σ_j ELBO_j."""
        return sum(self.bounds(engine))

    def bounds(self, engine: LocalEngine) -> list[float]:
        """The same, each expert's ELBO."""
        self._states, kept = [None] * self.n_experts, self._kept()

        def run(j: int, blocks_map: Any) -> float:
            expert, rows = self._expert(j, self.theta, self.likelihood, self.Z, blocks_map)
            q = self._improved(expert, j, rows, *_FINAL_STEPS)
            if kept[j]:
                self._states[j] = expert.frame, q
            return expert.evaluate(q).elbo

        return list(self._each(run, engine))

    def prepare_once(self, engine: LocalEngine) -> None:
        """Makes q(u) from the sites unless it is there: it does not travel with a pickled model."""
        if not self._states:
            self._states = [None] * self.n_experts

            def run(j: int, blocks_map: Any) -> None:
                self._states[j] = self._state(j, blocks_map)

            for _ in self._each(run, engine, np.flatnonzero(self._kept())):
                pass

    def _state(self, j: int, blocks_map: Any = map) -> tuple[Frame, Posterior]:
        state = self._states[j]
        if state is not None:
            return state
        expert, rows = self._expert(j, self.theta, self.likelihood, self.Z, blocks_map)
        q = expert.posterior(self.sites[rows])
        if q is None:  # sites from a file may be any numbers
            raise ExpertError(
                f"The variational posterior of expert {j} ({len(expert.y)} rows) cannot be made "
                "from its sites. Fit the model again."
            )
        return expert.frame, q

    def moments(
        self, new: Array, first: int, last: int, engine: LocalEngine
    ) -> tuple[Array, Array]:
        """Latent means and variances of some experts at the rows `new` [n, D], in `unit`:
        [last − first, n], with a last axis for the latent functions if there are several."""
        C, unit = self.likelihood.n_latent, self.unit
        mean, var = np.empty((2, last - first, len(new), C))
        for j in range(first, last):
            frame, q = self._state(j)
            rows = block_rows(frame.n_inducing, C)
            for start in range(0, len(new), rows):
                part = slice(start, start + rows)
                V = frame.features(new[part])
                a, b, _ = q.latent(V, self.theta.signal_variance)
                mean[j - first, part], var[j - first, part] = a / unit, b / unit**2
        shape = (last - first, len(new), *self.latent_shape)
        return mean.reshape(shape), var.reshape(shape)

    def in_brief(self, experts: Array, rank: int, engine: LocalEngine) -> list[Array]:
        """Some experts as `healgp.experts.brief` has them, stacked."""

        def run(j: int) -> tuple[Array, ...]:
            rows = slice(self.offsets[j], self.offsets[j + 1])
            sites = self.sites[rows]
            X, weight, shift = self.X[rows], sites.weight, sites.shift
            return summarise(self.kernel, self.theta, X, weight, shift, rank)

        return [np.stack(parts) for parts in zip(*engine.map(run, experts), strict=True)]

    def prior_covariance(self, new: Array) -> Array:
        """K [n, n] of a latent function at the rows `new` [n, D]."""
        theta, XT = self.theta, np.ascontiguousarray((new / self.theta.lengthscales).T)
        K = np.empty((len(new), len(new)))
        stages.covariances(KERNELS[self.kernel], theta.shape, theta.signal_variance, XT, XT, K)
        return K

    def covariance(self, new: Array, j: int, engine: LocalEngine) -> Array:
        """Posterior covariance [n, n] of the first latent function of expert j."""
        frame, q = self._state(j)
        V = frame.features(new)
        S = self.prior_covariance(new) - V.T @ V + V.T @ q.cov[0] @ V
        return 0.5 * (S + S.T)

    def leave_one_out(self, rows: Array, engine: LocalEngine) -> tuple[Array, Array, Array]:
        """For some of the committee's own rows: which expert each belongs to, and what that expert
        would say about it without the row's own site, latent means and variances in `unit`. With
        v = V_i, s = vᵀSv and the site's weight λ and shift b:

            var[f_i] = σ² − vᵀv + s / (1 − λs),    E[f_i] = (vᵀm − s b) / (1 − λs)

        For a Gaussian likelihood that is leave-one-out at the same inducing inputs; for others it
        is the cavity, an approximation: the sites of the other rows stay as they are."""
        C, unit = self.likelihood.n_latent, self.unit
        owner = np.searchsorted(self.offsets, rows, side="right") - 1
        mean, var = np.empty((2, len(rows), C))

        def run(j: int) -> None:
            frame, q = self._state(j)
            here = np.flatnonzero(owner == j)
            V, sites = frame.features(self.X[rows[here]]), self.sites[rows[here]]
            full, total, _ = q.latent(V, self.theta.signal_variance)
            outside = self.theta.signal_variance - (V * V).sum(axis=0)[:, None]
            s = np.maximum(total - outside, 0.0)
            left = np.maximum(1.0 - sites.weight * s, 1e-10)
            mean[here] = (full - s * sites.shift) / left / unit
            var[here] = np.maximum(outside + s / left, 1e-10 * self.theta.signal_variance) / unit**2

        engine.run(run, np.unique(owner))
        shape = (len(rows), *self.latent_shape)
        return owner, mean.reshape(shape), var.reshape(shape)


def choice(groups: list[Array], n_inducing: int, rng: np.random.Generator) -> list[Array | slice]:
    """Which rows of each group its inducing inputs are chosen among: all, or some of very many."""
    limit = max(_CHOICE, 20 * n_inducing)
    return [
        slice(None) if len(g) <= limit else rng.choice(len(g), limit, replace=False) for g in groups
    ]


def total(terms: Iterable[tuple[float, Array, Array]]) -> tuple[float, Array, Array]:
    """The sum of experts' terms, in their order: value, gradient, and the gradients by Z of each
    after the other."""
    values, gradients, by_Z = zip(*terms, strict=True)
    return float(sum(values)), np.sum(gradients, axis=0), np.concatenate(by_Z)


def _offsets(parts: list[Array]) -> Array:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])])
