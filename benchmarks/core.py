"""The numerical core against LAPACK's own routines and against dgemm, in one run."""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy.linalg import cython_blas, cython_lapack

from healgp import linalg, partition
from healgp.datasets import robot_arm
from healgp.engines.local import LocalEngine, blas_threads
from healgp.experts.committee import Committee
from healgp.kernels import KERNELS, Hyperparameters
from healgp.linalg import _CHAR, _DOUBLE, _INT, _at, _external, _ref
from timing import best, in_threads, table

_dpotrf = _external(cython_lapack, "dpotrf", _CHAR, _INT, _DOUBLE, _INT, _INT)
_dpotri = _external(cython_lapack, "dpotri", _CHAR, _INT, _DOUBLE, _INT, _INT)
_dtrsm = _external(
    cython_blas, "dtrsm",
    _CHAR, _CHAR, _CHAR, _CHAR, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _INT,
)  # fmt: skip
_U, _L, _T, _N = (np.uint8(ord(c)) for c in "ULTN")


@njit(nogil=True)
def lapack_factor_and_invert(A, m):
    """LAPACK's potrf and potri, called as the library calls BLAS: no Python in between."""
    size = np.int32(m)
    _dpotrf(_ref(_L), _ref(size), _at(A, 0), _ref(size), _ref(np.int32(0)))
    _dpotri(_ref(_L), _ref(size), _at(A, 0), _ref(size), _ref(np.int32(0)))


@njit(nogil=True)
def lapack_solve(U, m, B, rows):
    """BLAS's trsm on the same factor; B holds one right-hand side after another."""
    _dtrsm(
        _ref(_L), _ref(_L), _ref(_N), _ref(_N), _ref(np.int32(m)), _ref(np.int32(rows)),
        _ref(1.0), _at(U, 0), _ref(np.int32(m)), _at(B, 0), _ref(np.int32(m)),
    )  # fmt: skip


@njit(nogil=True)
def dgemm_flops(A, B, C):
    np.dot(A, B, C)


def make_committee(m: int, J: int, kernel: str = "rbf", labels: np.ndarray | None = None):
    """J experts of m rows of the robot arm, standardised, with plausible hyperparameters."""
    X, y = robot_arm(m * J)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    groups = np.split(np.arange(m * J), J) if labels is None else partition.groups(labels)
    theta = Hyperparameters(np.full(8, 2.5), 1.0, 0.1)
    return Committee.from_groups(X, y, groups, kernel, theta)


def covariances(committee: Committee) -> list[np.ndarray]:
    """The experts' covariance matrices, flat."""
    matrices = []
    for a, b in zip(committee.offsets[:-1], committee.offsets[1:], strict=True):
        Z = committee.XT[:, a:b].T / committee.theta.lengthscales
        square = (Z**2).sum(1)
        K = np.exp(-0.5 * np.maximum(square[:, None] + square - 2 * Z @ Z.T, 0.0))
        K[np.diag_indices(len(K))] += committee.theta.noise_variance
        matrices.append(K.ravel())
    return matrices


def objective_seconds(committee: Committee, threads: int, repeats: int) -> float:
    with LocalEngine(threads, committee.sizes) as engine:
        committee.objective(committee.theta, engine)
        return best(lambda: committee.objective(committee.theta, engine), repeats)


def lapack_seconds(committee: Committee, threads: int, repeats: int) -> float:
    matrices, sizes = covariances(committee), committee.sizes
    scratch = [K.copy() for K in matrices]

    def restore() -> None:
        for K, original in zip(scratch, matrices, strict=True):
            K[:] = original

    lapack_factor_and_invert(np.eye(2).ravel(), 2)
    with blas_threads(1):
        return best(
            lambda: in_threads(
                lambda j: lapack_factor_and_invert(scratch[j], sizes[j]), len(sizes), threads
            ),
            repeats,
            restore,
        )


def dgemm_rate(threads: int, n: int = 1000) -> float:
    """Flop per second of matrix products, one per thread at a time."""
    A, C = np.random.default_rng(0).random((n, n)), [np.empty((n, n)) for _ in range(threads)]
    dgemm_flops(A[:2, :2].copy(), A[:2, :2].copy(), np.empty((2, 2)))
    with blas_threads(1):
        seconds = best(lambda: in_threads(lambda i: dgemm_flops(A, A, C[i]), threads, threads), 10)
    return 2.0 * n**3 * threads / seconds


def objective(rows: int, repeats: int) -> str:
    """Objective with gradient against potrf + potri, and against m³ flops at dgemm's speed."""
    lines = []
    for threads in (1, 2):
        rate = dgemm_rate(threads)
        for m in (100, 500, 1000):
            J = rows // m
            committee = make_committee(m, J)
            ours = objective_seconds(committee, threads, repeats)
            lapack = lapack_seconds(committee, threads, repeats)
            limit = J * m**3 / rate
            lines.append([
                m, J, threads, f"{1e3 * ours:.1f}", f"{1e3 * lapack:.1f}",
                f"**{ours / lapack:.2f}**", f"{1e3 * limit:.1f}", f"{ours / limit:.1f}",
            ])  # fmt: skip
    return table(
        ["m", "J", "threads", "objective with gradient, ms", "LAPACK potrf + potri, ms", "ratio",
         "m³ flop at dgemm speed, ms", "ratio"],
        lines,
    )  # fmt: skip


def threads(rows: int, repeats: int) -> str:
    """Two threads against one, on even experts and on k-means' uneven ones."""
    lines = []
    for m in (100, 500):
        J = rows // m
        committee = make_committee(m, J)
        labels = partition.kmeans(committee.XT.T, J, np.random.default_rng(0))
        for name, c in (("even", committee), ("k-means", make_committee(m, J, labels=labels))):
            one, two = (objective_seconds(c, n, 2 * repeats) for n in (1, 2))
            lines.append(
                [m, name, f"{c.sizes.min()} to {c.sizes.max()}", f"{1e3 * one:.1f}",
                 f"{1e3 * two:.1f}", f"**{one / two:.2f}**"]
            )  # fmt: skip
    return table(["m", "experts", "rows", "1 thread, ms", "2 threads, ms", "times as fast"], lines)


def kernels(rows: int, repeats: int) -> str:
    """Every kernel against rbf, objective with gradient."""
    lines = []
    for m in (100, 500):
        seconds = {
            name: objective_seconds(make_committee(m, rows // m, name), 2, 2 * repeats)
            for name in KERNELS
        }
        lines += [
            [m, name, f"{1e3 * s:.1f}", f"**{s / seconds['rbf']:.2f}**"]
            for name, s in seconds.items()
        ]
    return table(["m", "kernel", "2 threads, ms", "against rbf"], lines)


def prediction(rows: int, repeats: int) -> str:
    """4,000 rows by all experts of 500, against the triangular solves alone."""
    m, n = 500, 4000
    J = rows // m
    committee = make_committee(m, J)
    new = np.ascontiguousarray(committee.XT[:, :n].T)
    lines = []
    for count in (1, 2):
        with LocalEngine(count, committee.sizes) as engine:
            committee.prepare(engine)

            def ask(engine: LocalEngine = engine) -> None:
                for _ in engine.map(lambda j: committee.moments(new, j, j + 1, engine), range(J)):
                    pass

            ask()
            ours = best(ask, repeats)
        factors = [K.copy() for K in covariances(committee)]
        for K in factors:
            linalg.cholesky(K, m)
        B = [np.random.default_rng(0).random(m * n) for _ in range(count)]
        lapack_solve(factors[0], m, B[0], 1)
        spare = list(range(count))

        def solve(j: int, factors: list = factors, B: list = B, spare: list = spare) -> None:
            i = spare.pop()
            lapack_solve(factors[j], m, B[i], n)
            spare.append(i)

        with blas_threads(1):
            trsm = best(
                lambda solve=solve, count=count: in_threads(solve, J, count), repeats,
                lambda B=B: [b.fill(1.0) for b in B],
            )  # fmt: skip
        lines.append(
            [n, J, count, f"{1e3 * ours:.0f}", f"{1e3 * trsm:.0f}", f"**{ours / trsm:.2f}**"]
        )
    return table(
        ["rows", "experts of 500", "threads", "latent moments, ms", "BLAS trsm alone, ms", "ratio"],
        lines,
    )
