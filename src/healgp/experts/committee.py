"""The experts of a model together: their rows, the shared θ, and what each has worked out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from healgp.engines.local import LocalEngine
from healgp.experts import exact, stages
from healgp.experts.asking import Experts
from healgp.experts.brief import summarise
from healgp.experts.factors import Factors, plan
from healgp.kernels import KERNELS, SHAPE_NAMES, Hyperparameters
from healgp.linalg import JITTER

#: Bytes of Cholesky factors that a committee keeps unless it is told otherwise.
FACTOR_BYTES = 2**30

#: Σ (m + 30)³ of the experts that one task takes at least: one or two milliseconds.
_TASK_WORK = 4.5e7


class ExpertError(np.linalg.LinAlgError):
    """An expert's covariance could not be factorised."""


def check(log_likelihood: np.ndarray, sizes: np.ndarray, theta: Hyperparameters) -> None:
    """An error if an expert's log p [J] is NaN, for that is how it says that it failed."""
    failed = np.flatnonzero(np.isnan(log_likelihood))
    if len(failed):
        j = int(failed[0])
        raise ExpertError(
            f"The covariance matrix of expert {j} ({sizes[j]} rows) is not positive "
            f"definite even with jitter of {JITTER[-1]:g} times the signal variance "
            f"(signal_variance={theta.signal_variance:.3g}, noise_variance="
            f"{theta.noise_variance:.3g}). Raise noise_variance, or leave out columns with "
            "extreme values and rows that are nearly equal."
        )


@dataclass
class Committee(Experts):
    """J exact experts with one θ. Expert j owns the columns offsets[j]:offsets[j + 1] of XT; after
    `replace` only the first filled[j] of them hold rows, and the others are room for more."""

    XT: np.ndarray  # [D, N]
    y: np.ndarray  # [N]
    offsets: np.ndarray  # [J + 1]
    kernel: str
    theta: Hyperparameters
    alpha: np.ndarray | None = field(default=None, repr=False)  # [N], K⁻¹y of each expert
    factor_bytes: float | None = None
    filled: np.ndarray | None = field(default=None, repr=False)  # [J]
    log_likelihoods: np.ndarray | None = field(default=None, repr=False)  # [J]
    _factors: Factors | None = field(default=None, repr=False)

    @classmethod
    def from_groups(
        cls, X: np.ndarray, y: np.ndarray, groups: list[np.ndarray], kernel: str,
        theta: Hyperparameters,
    ) -> Committee:  # fmt: skip
        """Experts whose rows are X[groups[0]], X[groups[1]], …; a row may be in several."""
        order = np.concatenate(groups)
        offsets = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
        return cls(np.ascontiguousarray(X[order].T), y[order], offsets, kernel, theta)

    def with_communication(
        self, chosen: np.ndarray
    ) -> tuple[Committee, Committee, np.ndarray, np.ndarray]:
        """For grBCM, D_c being the rows `chosen`: the experts on D_c ∪ D_j (D_c has left D_j);
        the expert on D_c; which experts the first are, for those left without rows drop out; and
        where each row of this committee is in theirs (those of D_c, in the last of them)."""
        X, y = self.inputs(chosen), self.targets(chosen)
        own = np.zeros(self.offsets[-1], dtype=bool)
        own[self.places(np.arange(self.n_rows))] = True
        own[chosen] = False
        sizes = np.add.reduceat(own.astype(np.intp), self.offsets[:-1])
        left = np.flatnonzero(sizes) if own.any() else np.array([0])
        both = self.augmented(own, left, X, y)
        alone = Committee.from_groups(X, y, [np.arange(len(y))], self.kernel, self.theta)
        if self.factor_bytes is not None:  # one budget for all of them
            alone.factor_bytes = self.factor_bytes - self.kept_bytes()
            both.factor_bytes = alone.factor_bytes - alone.kept_bytes()
        place = np.cumsum(own) - 1 + np.repeat(np.cumsum(sizes > 0) * len(y), np.diff(self.offsets))
        place[chosen] = both.offsets[-2] + np.arange(len(y))
        return both, alone, left, place

    def augmented(
        self, own: np.ndarray, experts: np.ndarray, X: np.ndarray, y: np.ndarray
    ) -> Committee:
        """Some of the experts, each with the rows X, y first and then those of its own that a mask
        over all rows leaves it."""
        n = len(y)
        groups = [
            np.concatenate([np.arange(n), n + self.offsets[j] + np.flatnonzero(own[slice(*ends)])])
            for j, ends in ((j, self.offsets[j : j + 2]) for j in experts)
        ]
        rows = np.concatenate([X, self.XT.T])
        targets = np.concatenate([y, self.y])
        return Committee.from_groups(rows, targets, groups, self.kernel, self.theta)

    def subset(self, experts: np.ndarray) -> Committee:
        """Some of the experts, not prepared."""
        columns = np.concatenate([self.columns(j) for j in experts])
        offsets = np.concatenate([[0], np.cumsum(self.sizes[experts])])
        XT = np.ascontiguousarray(self.XT[:, columns])
        return Committee(XT, self.y[columns], offsets, self.kernel, self.theta)

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets) if self.filled is None else self.filled

    @property
    def n_rows(self) -> int:
        return int(self.sizes.sum())

    def columns(self, j: int) -> np.ndarray:
        """Where the rows of expert j are."""
        return np.arange(self.offsets[j], self.offsets[j] + self.sizes[j])

    def places(self, rows: np.ndarray) -> np.ndarray:
        if self.filled is None:
            return rows
        ends = np.cumsum(self.filled)
        owner = np.searchsorted(ends, rows, side="right")
        return self.offsets[owner] + rows - (ends - self.filled)[owner]

    def inputs(self, rows: np.ndarray | slice) -> np.ndarray:
        """Some of the committee's own rows [n, D]."""
        return np.ascontiguousarray(self.XT[:, rows].T)

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """Their y [n]."""
        return self.y[rows]

    def squares(self) -> np.ndarray:
        """Σ y² of each expert [J]."""
        sizes, own = self.sizes, self.places(np.arange(self.n_rows))
        return np.add.reduceat(self.y[own] ** 2, np.cumsum(sizes) - sizes)

    def in_brief(self, experts: np.ndarray, rank: int, engine: LocalEngine) -> list[np.ndarray]:
        """Some experts as `healgp.experts.brief` has them, stacked."""
        noise = self.theta.noise_variance

        def run(j: int) -> tuple[np.ndarray, ...]:
            rows = self.columns(j)
            weight, shift = np.full((len(rows), 1), 1.0 / noise), self.y[rows, None] / noise
            return summarise(self.kernel, self.theta, self.inputs(rows), weight, shift, rank)

        return [np.stack(parts) for parts in zip(*engine.map(run, experts), strict=True)]

    def centres(self) -> np.ndarray:
        """The mean of the rows of each expert [J, D]."""
        XT, sizes = self.XT, self.sizes
        if self.filled is not None:
            XT = XT[:, self.places(np.arange(self.n_rows))]
        return np.add.reduceat(XT, np.cumsum(sizes) - sizes, axis=1).T / sizes[:, None]

    #: There is one latent function, in the units of y.
    latent_shape = ()
    unit = 1.0

    def __getstate__(self) -> dict[str, Any]:
        # Factors are as large as everything else squared, and quickly made again.
        state = self.__dict__ | {"_factors": None}
        state.pop("_tasks", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # joblib hands large arrays over read-only, which would be another type to compile for.
        for name in ("XT", "y", "offsets", "alpha", "filled"):
            if state[name] is not None:
                state[name] = np.require(state[name], requirements=["C", "W"])
        self.__dict__.update(state)

    @cached_property
    def _tasks(self) -> list[np.ndarray]:
        """Runs of experts, the largest first, so that no thread ends up with a large one last."""
        sizes = self.sizes
        order = np.argsort(-sizes, kind="stable")
        work = np.cumsum((sizes[order] + 30.0) ** 3) / _TASK_WORK
        ends = np.flatnonzero(np.diff(np.floor(work), append=np.inf)) + 1
        return np.split(order, ends[:-1])

    def _arguments(self, theta: Hyperparameters) -> tuple[Any, ...]:
        return (
            KERNELS[self.kernel], theta.shape, theta.signal_variance, theta.noise_variance,
            theta.lengthscales,
        )  # fmt: skip

    def objective(self, theta: Hyperparameters, engine: LocalEngine) -> tuple[float, np.ndarray]:
        """Σ_j log p_j(y⁽ʲ⁾ | X⁽ʲ⁾, θ) and its gradient in (log ℓ_1 … log ℓ_D, log σ², log σ_y²,
        log shape): the paper's equation for the log marginal likelihood of the experts."""
        out = self.contributions(theta, engine)
        check(out[:, 0], self.sizes, theta)
        total = out.sum(axis=0)  # in the order of the experts, whichever finished first
        return float(total[0]), total[1:]

    def contributions(self, theta: Hyperparameters, engine: LocalEngine) -> np.ndarray:
        """[J, D + 4], each expert's term of the objective and its gradient; NaN where it failed."""
        sizes = self.sizes
        m, D, shaped = int(sizes.max()), len(self.XT), self.kernel in SHAPE_NAMES
        out = np.empty((self.n_experts, D + 4))
        head = self._arguments(theta)

        def run(experts: np.ndarray) -> None:
            scratch = engine.scratch(*exact.scratch_sizes(m, D, shaped))
            exact.objective(*head, self.XT, self.y, self.offsets, sizes, experts, *scratch, out)

        engine.run(run, self._tasks)
        return out

    def prepare(self, engine: LocalEngine, *known: Any) -> float:
        """Works out α and the factors, from what is known of them; returns Σ_j log p_j."""
        log_likelihoods = self.factorize(engine, *known)
        check(log_likelihoods, self.sizes, self.theta)
        return float(log_likelihoods.sum())

    def factorize(
        self, engine: LocalEngine, known: np.ndarray | None = None,
        sources: np.ndarray | None = None, sources_packed: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Works out α and, as far as memory allows, the factors (see `healgp.experts.factors`).
        Where the factor of an expert's first known[j] rows is at an address, sources[j] > 0, it
        starts from that. Returns log p_j [J], NaN where it failed."""
        sizes = self.sizes
        m, D, shaped = int(sizes.max()), len(self.XT), self.kernel in SHAPE_NAMES
        if known is None or sources is None:
            known = sources = np.zeros(self.n_experts, dtype=np.int64)
        factors = Factors(sizes, self._room)
        alpha, log_likelihoods = np.empty(len(self.y)), np.empty(self.n_experts)
        head = self._arguments(self.theta)

        def run(experts: np.ndarray) -> None:
            A, _, _, Z, _, r2, phi = engine.scratch(*exact.scratch_sizes(m, D, shaped))
            exact.factorize(
                *head, self.XT, self.y, self.offsets, sizes, experts, A, Z, r2, phi, alpha,
                factors.addresses, factors.packed, known, sources, sources_packed, log_likelihoods,
            )  # fmt: skip

        engine.run(run, self._tasks)
        self.alpha, self._factors, self.log_likelihoods = alpha, factors, log_likelihoods
        return log_likelihoods

    @property
    def _room(self) -> float:
        """Numbers that the factors may have."""
        return (FACTOR_BYTES if self.factor_bytes is None else self.factor_bytes) / 8

    def kept_bytes(self) -> float:
        """Bytes that the factors take, or will when they are made (again)."""
        now = 0 if self._factors is None else self._factors.nbytes
        return max(now, 8 * int(plan(self.sizes, self._room)[1].sum()))

    def prepare_once(self, engine: LocalEngine) -> None:
        """Prepares the experts unless they are: factors do not travel with a pickled model."""
        if self._factors is None:
            self.prepare(engine)

    def replace(self, experts: np.ndarray, new: Committee, width: int | None) -> None:
        """Some experts, existing ones and those that come after them, by the prepared ones of
        `new`. Each has `width` columns, so that the next rows find room and nobody else is copied;
        None is twice its rows. What is copied altogether grows with the rows, not with its
        square."""
        (old_alpha, log_likelihoods, factors), theirs = self._found(), new._found()
        J = max(self.n_experts, int(experts.max()) + 1)
        before, sizes = self.sizes, np.zeros(J, dtype=np.int64)
        sizes[: len(before)] = before
        sizes[experts] = new.sizes
        wanted = 2 * sizes if width is None else np.maximum(sizes, width)
        widths = np.append(np.diff(self.offsets), wanted[len(before) :])
        crowded = bool((sizes > widths).any())
        offsets = np.append(0, np.cumsum(wanted if crowded else widths))
        XT, y, alpha = self.XT, self.y, old_alpha
        if crowded or offsets[-1] > len(y):
            room = int(offsets[-1] if crowded else max(offsets[-1], 1.5 * len(y)))
            XT, y, alpha = np.zeros((len(XT), room)), np.zeros(room), np.zeros(room)
            old = self.places(np.arange(before.sum()))
            to = old + np.repeat(offsets[: len(before)] - self.offsets[:-1], before)
            XT[:, to], y[to], alpha[to] = self.XT[:, old], self.y[old], old_alpha[old]
        for i, j in enumerate(experts):
            own, place = new.columns(i), slice(offsets[j], offsets[j] + sizes[j])
            XT[:, place], y[place], alpha[place] = new.XT[:, own], new.y[own], theirs[0][own]
        log_likelihoods = np.append(log_likelihoods, np.empty(J - len(before)))
        log_likelihoods[experts] = theirs[1]
        factors.replace(experts, theirs[2], sizes, self._room)
        self.XT, self.y, self.alpha, self.offsets, self.filled = XT, y, alpha, offsets, sizes
        self.log_likelihoods = log_likelihoods
        self.__dict__.pop("_tasks", None)

    @property
    def factors(self) -> Factors:
        return self._found()[2]

    def _found(self) -> tuple[np.ndarray, np.ndarray, Factors]:
        """What `prepare` has worked out."""
        if self.alpha is None or self.log_likelihoods is None or self._factors is None:
            raise RuntimeError("prepare() comes first")
        return self.alpha, self.log_likelihoods, self._factors

    def moments(
        self, new: np.ndarray, first: int, last: int, engine: LocalEngine
    ) -> tuple[np.ndarray, np.ndarray]:
        """Latent means and variances [last − first, n] of some experts at the rows `new` [n, D].

        Runs in the calling thread; `prepare` must have been called.
        """
        experts, shape = np.arange(first, last), (last - first, len(new))
        begins = np.zeros(len(experts), dtype=np.intp)
        mean, var = self._moments(new, experts, begins, begins + len(new), engine)
        return mean.reshape(shape), var.reshape(shape)

    def moments_of(
        self, new: np.ndarray, asked: list[tuple[int, np.ndarray]], engine: LocalEngine
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The same of some experts, each at its own rows of `new`."""
        ends = np.cumsum([len(rows) for _, rows in asked])
        begins = np.concatenate([[0], ends[:-1]])
        experts, rows = np.array([j for j, _ in asked]), np.concatenate([r for _, r in asked])
        mean, var = self._moments(new[rows], experts, begins, ends, engine)
        return [(mean[a:b], var[a:b]) for a, b in zip(begins, ends, strict=True)]

    def _moments(
        self, new: np.ndarray, experts: np.ndarray, begins: np.ndarray, ends: np.ndarray,
        engine: LocalEngine,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Of some experts, each at a run of the rows `new`, one after another."""
        alpha, _, factors = self._found()
        sizes = self.sizes
        m, D = int(sizes.max()), len(self.XT)
        mean, var = np.empty((2, int((ends - begins).sum())))
        again = m * m if factors.packed else 0
        wide = m + exact.PAD
        A, Z, scaled, V, r2, phi = engine.scratch(
            again, D * wide, D * exact.ROWS, m * exact.ROWS, max(wide, exact.ROWS), wide
        )
        exact.moments(
            *self._arguments(self.theta), self.XT, self.offsets, sizes, alpha,
            factors.addresses, factors.packed, experts, begins, ends,
            np.ascontiguousarray(new.T), A, Z, scaled, V, r2, phi, mean, var,
        )  # fmt: skip
        return mean, var

    def leave_one_out(
        self, rows: np.ndarray, engine: LocalEngine
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For some of the committee's own rows: which expert each belongs to, and what that expert
        would say about it without it, latent mean and variance."""
        owner = np.searchsorted(self.offsets, rows, side="right") - 1
        mean, var = np.empty((2, len(rows)))

        def run(j: int) -> None:
            here = np.flatnonzero(owner == j)
            mean[here], var[here], _ = self.without(rows[here], j, engine, False)

        engine.run(run, np.unique(owner))
        return owner, mean, var

    def without(
        self, rows: np.ndarray, j: int, engine: LocalEngine, coefficients: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What expert j says about some of its own rows, each without that row: latent means and
        variances, and the coefficients [n, m] of the means if they are asked for; in the calling
        thread."""
        (alpha, _, factors), sizes = self._found(), self.sizes
        m, D = int(sizes.max()), len(self.XT)
        wide = m + exact.PAD
        A, Z, V, r2, phi = engine.scratch(
            m * m if factors.packed else 0, D * wide, m * exact.ROWS, wide, wide
        )
        mean, var = np.empty((2, len(rows)))
        out = np.empty((len(rows) if coefficients else 0, sizes[j]))
        exact.leave_one_out(
            *self._arguments(self.theta), self.XT, self.y, self.offsets, sizes, alpha,
            factors.addresses, factors.packed, j, rows, A, Z, V, r2, phi, mean, var, out,
        )  # fmt: skip
        return mean, var, out

    def coefficients(
        self, new: np.ndarray, rows: np.ndarray, j: int, engine: LocalEngine
    ) -> np.ndarray:
        """(K + σ_y²I)⁻¹k* [n, m] of expert j at some rows of `new` [·, D]: what its latent mean
        combines its y with; in the calling thread."""
        (_, _, factors), sizes = self._found(), self.sizes
        m, D = int(sizes.max()), len(self.XT)
        wide = m + exact.PAD
        A, Z, scaled, V, r2, phi = engine.scratch(
            m * m if factors.packed else 0, D * wide, D * exact.ROWS, m * exact.ROWS,
            max(wide, exact.ROWS), wide,
        )  # fmt: skip
        out = np.empty((len(rows), sizes[j]))
        exact.coefficients(
            *self._arguments(self.theta), self.XT, self.offsets, sizes, factors.addresses,
            factors.packed, j, np.ascontiguousarray(new[rows].T), A, Z, scaled, V, r2, phi, out,
        )  # fmt: skip
        return out

    def covariance_of_means(self, i: int, j: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """cov(m_i, m_j) at some rows, from the coefficients a [n, m_i] and b [n, m_j] there."""
        kernel, shape, signal, _, lengthscales = self._arguments(self.theta)
        out = np.empty(len(a))
        exact.covariance_of_means(
            kernel, shape, signal, lengthscales, self.XT, self.offsets[i], self.sizes[i],
            self.offsets[j], self.sizes[j], a, b, out,
        )  # fmt: skip
        return out

    def prior_covariance(self, new: np.ndarray) -> np.ndarray:
        """K [n, n] of the latent function at the rows `new` [n, D]."""
        return self._between(self._scaled(new.T), self._scaled(new.T))

    def cross_covariance(self, new: np.ndarray, j: int) -> np.ndarray:
        """k [m, n] between the rows of expert j and `new` [n, D]."""
        return self._between(self._scaled(self._own(j)), self._scaled(new.T))

    def covariance_between(self, i: int, j: int) -> np.ndarray:
        """K [m_i, m_j] between the rows of two experts; for i = j with the noise."""
        K = self._between(self._scaled(self._own(i)), self._scaled(self._own(j)))
        if i == j:
            K.flat[:: len(K) + 1] += self.theta.noise_variance
        return K

    def covariance(self, new: np.ndarray, j: int, engine: LocalEngine) -> np.ndarray:
        """Posterior covariance [n, n] of expert j at the rows `new` [n, D]."""
        a = self.coefficients(new, np.arange(len(new)), j, engine)
        S = self.prior_covariance(new) - a @ self.cross_covariance(new, j)
        return 0.5 * (S + S.T)

    def _own(self, j: int) -> np.ndarray:
        return self.XT[:, self.offsets[j] : self.offsets[j] + self.sizes[j]]

    def _scaled(self, XT: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(XT / self.theta.lengthscales[:, None])

    def _between(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        K = np.empty((A.shape[1], B.shape[1]))
        theta = self.theta
        stages.covariances(KERNELS[self.kernel], theta.shape, theta.signal_variance, A, B, K)
        return K
