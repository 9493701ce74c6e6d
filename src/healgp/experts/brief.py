"""Experts in brief: each as a sparse GP with a few of its own rows as inducing inputs.

An expert of m rows says what it thinks of a row in m² steps, in brief in r², with r of a few tens.
With Φ = L⁻¹K_zx, LLᵀ = K_zz, and what the rows say about the latent function (weights λ and shifts
b; of exact experts 1 / σ_y² and y / σ_y²),

    B = I + Φ diag(λ) Φᵀ,    E[f*] = φᵀB⁻¹Φb,    var[f*] = σ² − φᵀ(I − B⁻¹)φ,    φ = L⁻¹k_z*.

That is a little less certain than the expert itself, and good enough to tell who can matter at a
row, and to stand in for those who hardly do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from healgp.engines.local import LocalEngine
from healgp.experts import stages
from healgp.experts.variational import choose_inducing
from healgp.kernels import KERNELS, Hyperparameters

Array = np.ndarray

#: Inducing inputs: a share of the mean number of rows, within bounds.
_SHARE, _RANKS = 8, (8, 32)

#: Added to the diagonal of K_zz, as a multiple of the signal variance.
_JITTER = 1e-8


def rank_of(committee: Any) -> int:
    """Inducing inputs of each expert in brief."""
    return int(np.clip(committee.sizes.mean() / _SHARE, *_RANKS))


def summarise(
    kernel: str, theta: Hyperparameters, X: Array, weight: Array, shift: Array, rank: int
) -> tuple[Array, Array, Array]:
    """Inducing inputs Z [rank, D], roots W [C, rank, rank] and α [C, rank] of one expert with the
    rows X [m, D], of which λ and b are [m, C]: E[f*] = αᵀk_z* and var[f*] = σ² − |W k_z*|². With
    fewer inducing inputs the rest of α and W is zero."""
    Z = choose_inducing(kernel, theta, X, rank)
    r, C = len(Z), weight.shape[1]
    ZT, XT = (np.ascontiguousarray((A / theta.lengthscales).T) for A in (Z, X))
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
    return padded, W, alpha


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

    @classmethod
    def of(cls, committee: Any, engine: LocalEngine) -> Brief:
        """Of a committee that is prepared."""
        parts = committee.in_brief(np.arange(committee.n_experts), rank_of(committee), engine)
        theta = committee.theta
        return cls(
            committee.kernel, theta, committee.unit, committee.latent_shape,
            cls._scaled(parts[0], theta), parts[1], parts[2],
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
        for name, values in zip(
            ("ZT", "W", "alpha"), (self._scaled(Z, self.theta), *rest), strict=True
        ):
            old = getattr(self, name)
            if more:
                old = np.concatenate([old, np.empty((more, *old.shape[1:]))])
            old[experts] = values
            setattr(self, name, old)

    def reach(self, share: float) -> float:
        """The distance at which the kernel falls below a share of the signal variance."""
        distances = np.geomspace(1e-3, 1e6, 2000)
        K = np.empty((1, len(distances)))
        kernel, shape = KERNELS[self.kernel], self.theta.shape
        stages.covariances(kernel, shape, 1.0, np.zeros((1, 1)), distances[None], K)
        below = np.flatnonzero(K[0] < share)
        return float(distances[below[0]]) if len(below) else np.inf

    def moments(self, new: Array, first: int, last: int) -> tuple[Array, Array]:
        """Latent means and variances [last − first, n] of some experts at the rows `new` [n, D], in
        the calling thread; with a last axis for the latent functions if there are several."""
        n, D, r = last - first, new.shape[1], self.rank
        theta, unit = self.theta, self.unit
        ZT = np.ascontiguousarray(self.ZT[first:last].transpose(1, 0, 2)).reshape(D, n * r)
        K = np.empty((n * r, len(new)))
        XT = np.ascontiguousarray((new / theta.lengthscales).T)
        stages.covariances(KERNELS[self.kernel], theta.shape, theta.signal_variance, ZT, XT, K)
        each = K.reshape(n, 1, r, len(new))
        V = np.matmul(self.W[first:last], each)
        var = theta.signal_variance - np.einsum("jcrn,jcrn->jcn", V, V)
        mean = np.matmul(self.alpha[first:last, :, None, :], each)[:, :, 0]
        var = np.maximum(var, 1e-12 * theta.signal_variance)
        mean, var = (np.moveaxis(v, 1, 2) for v in (mean / unit, var / unit**2))
        shape = (n, len(new), *self.latent_shape)
        return mean.reshape(shape), var.reshape(shape)
