"""Numbers at their limits, against 50 digits of mpmath."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import mpmath as mp
import numpy as np

from healgp import ExpertGPRegressor, aggregation, weights
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee
from healgp.kernels import KERNELS, Hyperparameters
from trust.tally import Tally, main

mp.mp.dps = 50


def kernel(name: str, r2: Any, alpha: Any) -> Any:
    r = mp.sqrt(r2)
    if name == "rbf":
        return mp.exp(-r2 / 2)
    if name == "rational_quadratic":
        return (1 + r2 / (2 * alpha)) ** -alpha
    nu = {"matern12": 1, "matern32": 3, "matern52": 5}[name]
    s = mp.sqrt(nu) * r
    return {1: 1, 3: 1 + s, 5: 1 + s + s * s / 3}[nu] * mp.exp(-s)


def log_likelihood(name: str, X: np.ndarray, y: np.ndarray, log_theta: list[Any]) -> Any:
    """log N(y | 0, K + σ²I) from log θ: lengthscales, signal, noise, shape."""
    *lengths, signal, noise, shape = (mp.exp(v) for v in log_theta)
    n = len(y)
    K = mp.matrix(n, n)
    for i, j in itertools.product(range(n), repeat=2):
        r2 = mp.fsum(
            ((mp.mpf(float(X[i, d])) - mp.mpf(float(X[j, d]))) / lengths[d]) ** 2
            for d in range(X.shape[1])
        )
        K[i, j] = signal * kernel(name, r2, shape) + (noise if i == j else 0)
    t = mp.matrix([mp.mpf(float(v)) for v in y])
    L = mp.cholesky(K)
    half = mp.lu_solve(L, t)
    log_det = 2 * mp.fsum(mp.log(L[i, i]) for i in range(n))
    return -(mp.fsum(v * v for v in half) + log_det + n * mp.log(2 * mp.pi)) / 2


def likelihoods(tally: Tally, n: int) -> None:
    rng = np.random.default_rng(0)
    hard = itertools.product(KERNELS, (0.02, 1.0, 200.0), (1e-5, 0.1, 100.0), (False, True))
    for name, length, noise, equal in itertools.islice(hard, 0, None, max(1, 90 // n)):
        X = rng.uniform(-2, 2, (6, 2))
        if equal:
            X[3:] = X[:3]
        y = rng.standard_normal(6)
        theta = Hyperparameters(np.array([length, 1.3 * length]), 0.9, noise, 0.7)
        groups = [np.array([0, 1, 3, 4]), np.array([2]), np.array([5])]  # two clusters of one row
        committee = Committee.from_groups(X, y, groups, name, theta)
        with tally.right(f"log p, {name}, lengthscale {length}, noise {noise}, equal {equal}"):
            with LocalEngine(1, committee.sizes) as engine:
                value, gradient = committee.objective(theta, engine)
            logs = [mp.log(mp.mpf(v)) for v in (length, 1.3 * length, 0.9, noise, 0.7)]

            def exact(
                at: Any, name: str = name, X: Any = X, y: Any = y, groups: Any = groups
            ) -> Any:
                return mp.fsum(log_likelihood(name, X[g], y[g], at) for g in groups)

            whole = exact(logs)
            assert abs(value - float(whole)) < 1e-8 * max(1.0, abs(float(whole)))
            step = mp.mpf(10) ** -15
            for i in range(4 + (name == "rational_quadratic")):
                up = [v + step * (i == k) for k, v in enumerate(logs)]
                slope = float((exact(up) - whole) / step)
                assert abs(gradient[i] - slope) < 1e-6 * max(1.0, abs(slope)), (i, slope)


def rules(tally: Tally, n: int) -> None:
    """Every rule on moments from nearly certain to the prior."""
    rng = np.random.default_rng(1)
    for _ in range(n):
        J, prior = int(rng.integers(1, 8)), 10.0 ** rng.uniform(-3, 3)
        var = prior * 10.0 ** rng.uniform(-12, 0, (J, 1))
        mean = rng.standard_normal((J, 1)) * 10.0 ** rng.uniform(-3, 3)
        beta = weights.softmax_variance(mean, var, temperature=10.0 ** rng.uniform(-2, 4))
        m, v, b = ([mp.mpf(float(x)) for x in a[:, 0]] for a in (mean, var, beta))
        p, one = mp.mpf(prior), mp.mpf(1)

        def product(w: Any, left: Any, m: Any = m, v: Any = v) -> tuple[Any, Any]:
            precision = mp.fsum(a / s for a, s in zip(w, v, strict=True)) + left
            total = mp.fsum(a * u / s for a, u, s in zip(w, m, v, strict=True))
            return total / precision, 1 / precision

        ones = [one] * J
        expected = {
            "poe": (aggregation.poe(mean, var), product(ones, 0)),
            "gpoe": (aggregation.gpoe(mean, var, beta), product(b, 0)),
            "bcm": (aggregation.bcm(mean, var, prior), product(ones, (1 - J) / p)),
            "rbcm": (
                aggregation.rbcm(mean, var, beta, prior),
                product(b, (1 - mp.fsum(b)) / p),
            ),
            "barycenter": (
                aggregation.barycenter(mean, var, beta),
                (mp.fdot(b, m), mp.fdot(b, v)),
            ),
            "wasserstein": (
                aggregation.wasserstein(mean, var, beta),
                (mp.fdot(b, m), mp.fdot(b, [mp.sqrt(s) for s in v]) ** 2),
            ),
        }
        for rule, (found, true) in expected.items():
            with tally.right(f"{rule} of {J} experts, prior {prior:.3g}"):
                size = float(max(abs(u) for u in m))
                assert abs(found[0][0] - float(true[0])) <= 1e-9 * size
                assert abs(found[1][0] - float(true[1])) <= 1e-9 * float(true[1])


def stress(tally: Tally) -> None:
    """Whole fits on data that make kernels singular."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (400, 2))
    y = np.sin(X[:, 0]) * X[:, 1]
    repeated = np.repeat(X[:10], 1000, axis=0)
    noisy = np.repeat(y[:10], 1000) + rng.normal(0, 0.1, 10_000)
    cases = {
        "10,000 duplicated rows": (repeated, np.repeat(y[:10], 1000), {}),
        "duplicated rows, noise": (repeated, noisy, {}),
        "rows 1e-9 apart": (X[:4].repeat(100, 0) + 1e-9 * X, y[:4].repeat(100), {}),
        "noise at its lower bound": (X, y, {"noise_variance": 1e-5, "max_iter": 0}),
        "noise below its bound": (X, y, {"noise_variance": 1e-14, "max_iter": 0}),
        "lengthscales at the upper bound": (X, y, {"lengthscale": 200.0, "max_iter": 0}),
        "lengthscales at the lower bound": (X, y, {"lengthscale": 0.02, "max_iter": 0}),
        "both": (X, y, {"lengthscale": 200.0, "noise_variance": 1e-5, "max_iter": 0}),
        "clusters of one row": (X, y, {"partition": np.r_[np.arange(30), np.full(370, 30)]}),
    }  # fmt: skip
    for (name, (rows, target, more)), rule in itertools.product(
        cases.items(), ("gpoe", "rbcm", "nested", "grbcm")
    ):
        with tally.right(f"{name}, {rule}"):
            model = ExpertGPRegressor(**{
                "points_per_expert": 100, "kernel": "rbf", "aggregation": rule, "random_state": 0,
            } | more).fit(rows, target)  # fmt: skip
            at = rows[:: max(1, len(rows) // 200)]
            mean, std = model.predict(at, return_std=True)
            assert np.isfinite(mean).all()
            assert (std > 0).all()
            if "max_iter" not in more:
                off = np.abs(mean - target[:: max(1, len(rows) // 200)]).mean()
                assert off < 0.12, f"the mean is {off:.3f} off"


def run(tally: Tally, effort: float = 1.0) -> None:
    warnings.simplefilter("ignore")
    likelihoods(tally, max(6, int(90 * effort)))
    rules(tally, max(10, int(200 * effort)))
    if effort >= 0.5:
        stress(tally)


if __name__ == "__main__":
    main(run)
