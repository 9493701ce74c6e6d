"""Experts in brief: each as a sparse GP with a few inducing inputs in the midst of its rows.

An expert of m rows says what it thinks of a row in m² steps, in brief in r², with r of a few tens.
With Φ = L⁻¹K_zx, LLᵀ = K_zz, and what the rows say about the latent function (weights λ and shifts
b; of exact experts 1 / σ_y² and y / σ_y²),

    B = I + Φ diag(λ) Φᵀ,    E[f*] = φᵀB⁻¹Φb,    var[f*] = σ² − φᵀ(I − B⁻¹)φ,    φ = L⁻¹k_z*.

That is a little less certain than the expert itself, and good enough to tell who can matter at a
row, and to stand in for those who hardly do. Beside that, where the expert's rows are, and how far
they reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from healgp.engines.local import LocalEngine
from healgp.experts import stages
from healgp.experts.variational import choose_inducing
from healgp.jit import jit
from healgp.kernels import KERNELS, Hyperparameters, squared_distances
from healgp.linalg import multiply

Array = np.ndarray

#: Inducing inputs: a share of the mean number of rows, within bounds.
_SHARE, _RANKS = 8, (8, 32)

#: Rounds of Lloyd's algorithm for them.
_ROUNDS = 8

#: Added to the diagonal of K_zz, as a multiple of the signal variance.
_JITTER = 1e-8

#: A distance from which everything is too far.
_FAR = 1e100


def rank_of(committee: Any) -> int:
    """Inducing inputs of each expert in brief."""
    return int(np.clip(committee.sizes.mean() / _SHARE, *_RANKS))


def summarise(
    kernel: str, theta: Hyperparameters, X: Array, weight: Array, shift: Array, rank: int
) -> tuple[Array, ...]:
    """Inducing inputs Z [rank, D], roots W [C, rank, rank] and α [C, rank] of one expert with the
    rows X [m, D], of which λ and b are [m, C]: E[f*] = αᵀk_z* and var[f*] = σ² − |W k_z*|²; the
    mean of its rows and their mean distance from it, both divided by the lengthscales. With fewer
    inducing inputs the rest of α and W is zero."""
    XT = np.ascontiguousarray((X / theta.lengthscales).T)
    middles = _middles(XT, min(rank, len(X)), _ROUNDS)
    # Those that others explain would make K_zz singular.
    Z = choose_inducing(kernel, theta, middles.T * theta.lengthscales, rank)
    r, C = len(Z), weight.shape[1]
    ZT = np.ascontiguousarray((Z / theta.lengthscales).T)
    K, cross = np.empty((r, r)), np.empty((r, len(X)))
    for A, out in ((ZT, K), (XT, cross)):
        stages.covariances(KERNELS[kernel], theta.shape, theta.signal_variance, ZT, A, out)
    K.flat[:: r + 1] += _JITTER * theta.signal_variance
    L = np.linalg.cholesky(K)
    phi = solve_triangular(L, cross, lower=True)
    inverse = solve_triangular(L, np.eye(r), lower=True)
    W, alpha = np.zeros((C, rank, rank)), np.zeros((C, rank))
    for c in range(C):
        values, U = np.linalg.eigh((phi * weight[:, c]) @ phi.T)
        values = np.maximum(values, 0.0)
        W[c, :r, :r] = np.sqrt(values / (1.0 + values))[:, None] * (U.T @ inverse)
        alpha[c, :r] = inverse.T @ (U @ ((U.T @ (phi @ shift[:, c])) / (1.0 + values)))
    padded = np.concatenate([Z, np.broadcast_to(Z[:1], (rank - r, Z.shape[1]))])
    centre = XT.mean(axis=1)
    radius = np.sqrt(((XT - centre[:, None]) ** 2).sum(axis=0).mean())
    return padded, W, alpha, centre, radius


@jit("contract")
def _middles(XT, r, rounds):
    """Middles [D, r] of r clusters of the rows XT [D, m], by Lloyd's algorithm from rows that are
    evenly spaced in number; a cluster that loses all rows stays where it was."""
    D, m = XT.shape
    Z, r2, nearest = np.empty((D, r)), np.empty(m), np.empty(m)
    owner, point = np.zeros(m, dtype=np.int64), np.empty(D)
    for i in range(r):
        Z[:, i] = XT[:, i * m // r]
    for _ in range(rounds if r < m else 0):
        nearest[:] = np.inf
        for i in range(r):
            for d in range(D):
                point[d] = Z[d, i]
            squared_distances(XT, 0, m, point, r2)
            for j in range(m):
                if r2[j] < nearest[j]:
                    nearest[j], owner[j] = r2[j], i
        sizes, totals = np.zeros(r), np.zeros((D, r))
        for j in range(m):
            sizes[owner[j]] += 1.0
            for d in range(D):
                totals[d, owner[j]] += XT[d, j]
        for i in range(r):
            if sizes[i] > 0.0:
                for d in range(D):
                    Z[d, i] = totals[d, i] / sizes[i]
    return Z


@jit("contract")
def _answers(kernel, shape, signal, ZT, W, alpha, XT, mean, var):
    """Means and variances [C, n] of one expert at the scaled rows XT [D, n]."""
    (C, r), n = alpha.shape, XT.shape[1]
    K, V = np.empty((r, n)), np.empty((r, n))
    stages.covariances(kernel, shape, signal, ZT, XT, K)
    for c in range(C):
        multiply(W[c], False, K, False, V, 0.0)
        m, v = mean[c], var[c]
        m[:], v[:] = 0.0, signal
        for i in range(r):
            a, k, u = alpha[c, i], K[i], V[i]
            for j in range(n):
                m[j] += a * k[j]
                v[j] -= u[j] * u[j]
        for j in range(n):
            v[j] = max(v[j], 1e-12 * signal)


@jit("contract")
def _groups(kernel, shape, signal, ZT, W, alpha, X, experts, rows, ends, mean, var):
    """Means and variances [N, C] of N pairs of an expert and a row of X, those of an expert being
    together and ending at `ends`."""
    (_, C, _), D, first = alpha.shape, X.shape[1], 0
    for last in ends:
        n, j = last - first, experts[first]
        XT, m, v = np.empty((D, n)), np.empty((C, n)), np.empty((C, n))
        for i in range(n):
            for d in range(D):
                XT[d, i] = X[rows[first + i], d]
        _answers(kernel, shape, signal, ZT[j], W[j], alpha[j], XT, m, v)
        for i in range(n):
            for c in range(C):
                mean[first + i, c], var[first + i, c] = m[c, i], v[c, i]
        first = last


def by_expert(experts: Array, n_experts: int) -> Array:
    """The stable order of some numbers of experts; short integers are sorted much faster."""
    short = np.uint16 if n_experts <= 2**16 else np.int64
    return np.argsort(experts.astype(short), kind="stable")


@dataclass
class Brief:
    """All experts of a committee in brief."""

    kernel: str
    theta: Hyperparameters
    unit: float
    latent_shape: tuple[int, ...]
    ZT: Array  # [J, D, rank], divided by the lengthscales
    W: Array  # [J, C, rank, rank]
    alpha: Array  # [J, C, rank]
    centres: Array  # [J, D], divided by the lengthscales
    radii: Array  # [J]

    @classmethod
    def of(cls, committee: Any, engine: LocalEngine) -> Brief:
        """Of a committee that is prepared."""
        parts = committee.in_brief(np.arange(committee.n_experts), rank_of(committee), engine)
        theta = committee.theta
        return cls(
            committee.kernel, theta, committee.unit, committee.latent_shape,
            cls._scaled(parts[0], theta), *parts[1:],
        )  # fmt: skip

    @staticmethod
    def _scaled(Z: Array, theta: Hyperparameters) -> Array:
        return np.ascontiguousarray(np.swapaxes(Z / theta.lengthscales, 1, 2))

    @property
    def n_experts(self) -> int:
        return len(self.ZT)

    @property
    def rank(self) -> int:
        return self.ZT.shape[2]

    def update(self, committee: Any, experts: Array, engine: LocalEngine) -> None:
        """After some experts have changed, or have come after the others."""
        Z, *rest = committee.in_brief(experts, self.rank, engine)
        more = committee.n_experts - self.n_experts
        names = "ZT", "W", "alpha", "centres", "radii"
        for name, values in zip(names, (self._scaled(Z, self.theta), *rest), strict=True):
            old = getattr(self, name)
            if more:
                old = np.concatenate([old, np.empty((more, *old.shape[1:]))])
            old[experts] = values
            setattr(self, name, old)

    def scaled(self, new: Array) -> Array:
        """Rows [n, D] as distances know them, none so far that its square would not be finite."""
        far = _FAR * self.theta.lengthscales
        return np.clip(new, -far, far) / self.theta.lengthscales

    def moments(self, new: Array, experts: Array) -> tuple[Array, Array]:
        """Latent means and variances [n, k] of the experts [n, k], each at its row of `new` [n, D],
        in the calling thread; with a last axis for the latent functions if there are several."""
        flat = experts.ravel()
        order = by_expert(flat, self.n_experts)
        ends = np.append(np.flatnonzero(np.diff(flat[order])) + 1, len(flat))
        found = np.empty((2, len(flat), self.alpha.shape[1]))
        Z, rows = self.scaled(new), order // experts.shape[1]
        _groups(*self._kernel, self.ZT, self.W, self.alpha, Z, flat[order], rows, ends, *found)
        mean, var = np.empty((2, *experts.shape, self.alpha.shape[1]))
        mean.reshape(found[0].shape)[order], var.reshape(found[0].shape)[order] = found
        return self._shaped(mean, var)

    @property
    def _kernel(self) -> tuple[int, float, float]:
        return KERNELS[self.kernel], self.theta.shape, self.theta.signal_variance

    def _shaped(self, mean: Array, var: Array) -> tuple[Array, Array]:
        """From [n, k, C] in the units of the kernel."""
        if not self.latent_shape:
            mean, var = mean[..., 0], var[..., 0]
        return (mean, var) if self.unit == 1.0 else (mean / self.unit, var / self.unit**2)
