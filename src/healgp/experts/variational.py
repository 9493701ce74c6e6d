"""One sparse variational expert: evidence lower bound with gradient, natural-gradient step, latent
moments.

The latent functions of an expert share the kernel and M inducing inputs Z. With K_uu = UᵀU and
V = U⁻ᵀ K_uf, the whitened u = Uᵀv has the prior N(0, I), and each latent function c its own
q(v_c) = N(m_c, S_c). Then

    E[f_c] = Vᵀ m_c,    var[f_c] = σ² − diag(VᵀV) + diag(Vᵀ S_c V),
    ELBO = Σ_i E[log p(y_i | f_i)] − Σ_c KL(q(v_c) ‖ N(0, I)).

A pass over the rows in blocks gives the ELBO, its gradient in the kernel's parameters, the
likelihood's parameter and Z at fixed m and S, and where a natural-gradient step of length one
leads: with λ_i = −2 ∂E_i/∂var_i and g_i = ∂E_i/∂mean_i, to S⁻¹ = I + V diag(λ) Vᵀ and
S⁻¹m = V(g + λ E[f]). So q is kept as two numbers per row and latent function, the sites λ and
g + λ E[f], which stay meaningful when θ and Z move. For a Gaussian likelihood one step is the
optimum, and the ELBO there the collapsed bound (Titsias 2009).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from healgp.experts import stages
from healgp.kernels import KERNELS, SHAPE_NAMES, Hyperparameters
from healgp.likelihoods import Likelihood

Array = np.ndarray
Map = Callable[[Callable[..., Any], Iterable[Any]], Iterator[Any]]

#: Added to the diagonal of K_uu, as a multiple of the signal variance; the second where the first
#: is not enough.
JITTER = (1e-8, 1e-6, 1e-4)

#: Rows in a block at most, and numbers in its largest array [C, M, rows].
ROWS, _BLOCK = 512, 2**22

#: Bytes of V and K_uf that an expert keeps while θ and Z stay; beyond it they are made again in
#: every pass.
FEATURE_BYTES = 2**28

#: Steps that may be refused and shortened before natural-gradient steps are given up.
_HALVINGS = 20

_rows = np.ascontiguousarray
_scratch = threading.local()


def _again(name: str, *shape: int) -> Array:
    """An array for what a block of rows needs while it is worked on. A thread gets the same memory
    every time, for asking the system for fresh pages costs as much as filling them."""
    size = math.prod(shape)
    kept: Array | None = getattr(_scratch, name, None)
    if kept is None or kept.size < size:
        kept = np.empty(size)
        setattr(_scratch, name, kept)
    return kept[:size].reshape(shape)


@dataclass
class Sites:
    """What each row says about each latent function, in place of the likelihood: a Gaussian factor
    exp(shift·f − ½ weight·f²)."""

    weight: Array  # [n, C], ≥ 0
    shift: Array  # [n, C]

    @classmethod
    def silent(cls, n: int, C: int) -> Sites:
        return cls(np.zeros((n, C)), np.zeros((n, C)))

    def towards(self, other: Sites, step: float) -> Sites:
        """A natural-gradient step, which is a straight line in these parameters."""
        return Sites(
            self.weight + step * (other.weight - self.weight),
            self.shift + step * (other.shift - self.shift),
        )

    def __getitem__(self, rows: slice | Array) -> Sites:
        return Sites(self.weight[rows], self.shift[rows])

    def copy(self) -> Sites:
        return Sites(self.weight.copy(), self.shift.copy())


@dataclass
class Posterior:
    """m and S of q(v_c), and Σ_c KL(q(v_c) ‖ N(0, I))."""

    mean: Array  # [C, M]
    cov: Array  # [C, M, M]
    kl: float

    @classmethod
    def of(cls, cov: Array, shift: Array) -> Posterior | None:
        """From S⁻¹ [C, M, M], which is overwritten, and S⁻¹m [C, M]; None if a precision is not
        positive definite."""
        mean = np.empty_like(shift)
        kl = stages.posterior(cov, shift, mean)
        return None if np.isnan(kl) else cls(mean, cov, float(kl))

    def latent(self, V: Array, signal: float, products: bool = False) -> tuple[Array, Array, Array]:
        """Means and variances [n, C] at rows with the features V [M, n], and S_c V [C, M, n] if
        these products are asked for; the thread's next call overwrites them."""
        C, (M, n) = len(self.mean), V.shape
        mean, var = np.empty((2, C, n))
        T = _again("products", C if products else 1, M, n)
        stages.latent(self.mean, self.cov, V, signal, mean, var, T)
        return mean.T, var.T, T


@dataclass
class Cross:
    """K(Z, X) [M, n] and its slopes at scaled rows XT [D, n]."""

    XT: Array
    K: Array
    slope: Array  # σ²φ′
    tilt: Array  # σ² ∂φ/∂log shape; for a kernel without a shape one row that means nothing


def _tilt(kernel: str, M: int, n: int) -> Array:
    return np.empty((M if kernel in SHAPE_NAMES else 1, n))


@dataclass
class Frame:
    """What θ and Z decide: K_uu with its jitter and slopes, and U⁻¹."""

    kernel: str
    theta: Hyperparameters
    ZT: Array  # [D, M], divided by the lengthscales
    inner: Cross
    R: Array  # [M, M], U⁻¹

    @property
    def n_inducing(self) -> int:
        return len(self.R)

    @classmethod
    def of(cls, kernel: str, theta: Hyperparameters, Z: Array) -> Frame | None:
        """None if K_uu cannot be factorised."""
        ZT, M = np.ascontiguousarray((Z / theta.lengthscales).T), len(Z)
        K, slope, R = np.empty((3, M, M))
        self = cls(kernel, theta, ZT, Cross(ZT, K, slope, _tilt(kernel, M, M)), R)
        made = stages.frame(*self._constants(), JITTER, K, slope, self.inner.tilt, R)
        return self if made else None

    def scaled(self, X: Array) -> Array:
        return np.ascontiguousarray((X / self.theta.lengthscales).T)

    def _constants(self) -> tuple[int, float, float, Array]:
        theta = self.theta
        return KERNELS[self.kernel], theta.shape, theta.signal_variance, self.ZT

    def cross(self, X: Array) -> tuple[Array, Cross]:
        """V = U⁻ᵀ K(Z, X), and K(Z, X) with slopes, at the rows X [n, D]."""
        XT = self.scaled(X)
        K, V, slope = np.empty((3, self.n_inducing, XT.shape[1]))
        tilt = _tilt(self.kernel, *K.shape)
        stages.features_and_slopes(*self._constants(), XT, self.R, K, V, slope, tilt)
        return V, Cross(XT, K, slope, tilt)

    def features(self, X: Array) -> Array:
        """V = U⁻ᵀ K(Z, X) [M, n] at the rows X [n, D]."""
        V = np.empty((self.n_inducing, len(X)))
        stages.features(*self._constants(), self.scaled(X), self.R, V)
        return V


@dataclass
class Gradient:
    """∂ELBO/∂ log ℓ [D], log σ², log shape, the likelihood's parameter, and Z [M, D] (in units of ℓ
    until all is summed)."""

    lengthscales: Array
    signal: float
    shape: float
    parameter: float
    inducing: Array

    @classmethod
    def zero(cls, M: int, D: int) -> Gradient:
        return cls(np.zeros(D), 0.0, 0.0, 0.0, np.zeros((M, D)))

    def __iadd__(self, other: Gradient) -> Gradient:
        self.lengthscales += other.lengthscales
        self.signal += other.signal
        self.shape += other.shape
        self.parameter += other.parameter
        self.inducing += other.inducing
        return self


def block_rows(M: int, C: int) -> int:
    """Rows in a block for M inducing inputs and C latent functions."""
    return min(max(_BLOCK // (M * C), 32), ROWS)


@dataclass
class Pass:
    """ELBO of an expert at q, the sites that a natural-gradient step of length one leads to, and
    the gradient."""

    elbo: float
    sites: Sites
    gradient: Gradient | None = None


class Expert:
    """The rows X [n, D], y [n] of an expert, for as long as θ and Z stay. Blocks of rows go through
    `blocks_map`, which may be that of a thread pool."""

    def __init__(
        self, frame: Frame, likelihood: Likelihood, X: Array, y: Array, blocks_map: Map = map,
        with_gradient: bool = False,
    ) -> None:  # fmt: skip
        self.frame, self.likelihood, self.X, self.y, self.map = frame, likelihood, X, y, blocks_map
        self.with_gradient = with_gradient  # slopes will be needed: make them with V
        M, n = frame.n_inducing, len(y)
        rows = block_rows(M, likelihood.n_latent)
        self.parts = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
        self._kept: dict[int, tuple[Array, Cross | None]] | None = (
            {} if 3 * M * n * 8 <= FEATURE_BYTES else None
        )

    def features(self, part: slice, slopes: bool = False) -> tuple[Array, Cross | None]:
        """V [M, rows] of a block, and K_uf with its slopes where they are asked for; both are kept
        if there is room."""
        kept = self._kept.get(part.start) if self._kept is not None else None
        if kept is not None and (kept[1] is not None or not slopes):
            return kept
        X = self.X[part]
        made: tuple[Array, Cross | None]
        if slopes or self.with_gradient:
            made = self.frame.cross(X)
        else:
            made = self.frame.features(X), None
        if self._kept is not None:
            self._kept[part.start] = made
        return made

    def posterior(self, sites: Sites) -> Posterior | None:
        """q with S⁻¹ = I + V diag(weight) Vᵀ and S⁻¹m = V shift; None if it cannot be found."""
        C, M = self.likelihood.n_latent, self.frame.n_inducing

        def statistics(part: slice) -> tuple[Array, Array]:
            (V, _), here = self.features(part), sites[part]
            precision, shift = np.zeros((C, M, M)), np.empty((C, M))  # a triangle is filled
            weights, shifts = here.weight.T, here.shift.T
            stages.statistics(V, _rows(weights), _rows(shifts), precision, shift)
            return precision, shift

        each = iter(self.map(statistics, self.parts))
        precision, shift = next(each)
        for a, b in each:
            precision += a
            shift += b
        precision.reshape(C, M * M)[:, :: M + 1] += 1.0
        return Posterior.of(precision, shift)

    def evaluate(self, q: Posterior, gradient: bool = False) -> Pass:
        """The ELBO at q."""
        C, M, D = self.likelihood.n_latent, self.frame.n_inducing, self.X.shape[1]
        signal = self.frame.theta.signal_variance
        new = Sites.silent(len(self.y), C)
        value, total, product = -q.kl, Gradient.zero(M, D), np.zeros((M, M))

        def run(part: slice) -> tuple[float, Gradient | None, Array | None]:
            V, cross = self.features(part, gradient)
            mean, var, T = q.latent(V, signal, products=gradient)
            e = self.likelihood.expectations(self.y[part], mean, var)
            # a likelihood that is not log-concave can have a negative weight, which would cost S
            # its definiteness
            new.weight[part] = np.maximum(-2.0 * e.var, 0.0)
            new.shift[part] = e.mean + new.weight[part] * mean
            if cross is None or not gradient:
                return float(e.value.sum()), None, None
            product, lengthscales, inducing = np.empty((M, M)), np.empty(D), np.empty((M, D))
            by_signal, by_shape = stages.through_rows(
                q.mean, V, T, _rows(e.mean.T), _rows(e.var.T), self.frame.R, self.frame.ZT,
                cross.XT, cross.K, cross.slope, cross.tilt, _again("by_K", M, V.shape[1]), product,
                lengthscales, inducing,
            )  # fmt: skip
            by_signal += signal * float(e.var.sum())
            here = Gradient(lengthscales, by_signal, by_shape, e.parameter, inducing)
            return float(e.value.sum()), here, product

        for a, b, c in self.map(run, self.parts):
            value += a
            if b is not None:
                total += b
                product += c
        if not np.isfinite(value):
            value = -np.inf
        if not gradient:
            return Pass(value, new)
        inner, lengthscales, inducing = self.frame.inner, np.empty(D), np.empty((M, D))
        by_signal, by_shape = stages.through_inducing(
            self.frame.R, product, inner.XT, inner.K, inner.slope, inner.tilt, lengthscales,
            inducing,
        )  # fmt: skip
        total += Gradient(lengthscales, by_signal, by_shape, 0.0, inducing)
        total.inducing /= self.frame.theta.lengthscales
        return Pass(value, new, total)

    def improve(
        self, sites: Sites, tolerance: float, max_steps: int
    ) -> tuple[Sites, Posterior] | None:
        """Natural-gradient steps from `sites` until one gains less than `tolerance` per row; a step
        that loses is shortened. None if there is no q with a finite ELBO."""
        exact = self.likelihood.exact_sites(self.y)
        if exact is not None:
            sites = Sites(*exact)
        q = self.posterior(sites)
        if q is None or exact is not None:
            return None if q is None else (sites, q)
        now, step, taken = self.evaluate(q), 1.0, 0
        for _ in range(max_steps + _HALVINGS):
            trial = sites.towards(now.sites, step)
            trial_q = self.posterior(trial)
            there = self.evaluate(trial_q) if trial_q is not None else None
            slack = 1e-10 * abs(now.elbo)
            if trial_q is None or there is None or not there.elbo >= now.elbo - slack:
                step *= 0.25
                continue
            gain, enough = there.elbo - now.elbo, tolerance * len(self.y) * step
            sites, q, now, taken = trial, trial_q, there, taken + 1
            if gain < enough or taken == max_steps:
                break
            step = min(1.0, 2.0 * step)
        return (sites, q) if np.isfinite(now.elbo) else None


def choose_inducing(kernel: str, theta: Hyperparameters, X: Array, M: int) -> Array:
    """Up to M rows of X, one after another that with the largest variance given those before; fewer
    when nothing is left to explain."""
    XT = np.ascontiguousarray((X / theta.lengthscales).T)
    n = len(X)
    M = min(M, n)
    left, L, k = np.ones(n), np.empty((M, n)), np.empty((1, n))
    chosen: list[int] = []
    for i in range(M):
        row = int(left.argmax())
        if i > 0 and left[row] < JITTER[0]:
            break
        chosen.append(row)
        stages.covariances(KERNELS[kernel], theta.shape, 1.0, XT[:, [row]], XT, k)
        L[i] = (k[0] - L[:i, row] @ L[:i]) / np.sqrt(left[row])
        left -= L[i] ** 2
        left[row] = -np.inf
    return X[chosen]
