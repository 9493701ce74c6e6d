"""Sparse experts: a step against its matrix products, and MNIST from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from healgp.engines.local import blas_threads
from healgp.experts.variational import Expert, Frame, Sites
from healgp.kernels import Hyperparameters
from healgp.likelihoods import Bernoulli, Gaussian, Likelihood, RobustMax, Softmax
from timing import best_of_each, in_threads, table


def step(repeats: int, threads: int = 2) -> str:
    """ELBO with gradient, q(u) made from the sites included, for several likelihoods."""
    cases: list[tuple[str, Likelihood, int, int, int]] = [
        ("softmax, 10 classes", Softmax(n_classes=10), 12, 500, 100),
        ("robustmax, 10 classes", RobustMax(n_classes=10), 12, 500, 100),
        ("softmax, 10 classes", Softmax(n_classes=10), 2, 2000, 500),
        ("bernoulli", Bernoulli(), 24, 500, 100),
        ("gaussian", Gaussian(-2.0), 24, 500, 100),
        ("gaussian", Gaussian(-2.0), 2, 10_000, 500),
    ]
    rows = []
    for name, likelihood, J, n, M in cases:
        ours, products = our_step(likelihood, J, n, M), its_products(likelihood.n_latent, n, M)
        with blas_threads(1):
            spent, least = best_of_each(
                [lambda run=run, J=J: in_threads(run, J, threads) for run in (ours, products)],
                3 * repeats,
            )
        cells = f"{1e3 * spent:.0f}", f"{1e3 * least:.0f}", f"**{spent / least:.2f}**"
        rows.append([name, J, f"{n:,}", M, *cells])
    head = ["likelihood", "experts", "rows each", "inducing", "step, ms", "products, ms", "ratio"]
    return table(head, rows)


def our_step(likelihood: Likelihood, J: int, n: int, M: int) -> Callable[[int], object]:
    """A step of expert j of J, of n rows with M inducing inputs each."""
    rng, D, C = np.random.default_rng(0), 20, likelihood.n_latent
    X = rng.standard_normal((J * n, D))
    y = rng.integers(0, max(C, 2), J * n).astype(float)
    theta = Hyperparameters(np.full(D, 4.0), 10.0, 0.1)
    groups = np.array_split(np.arange(J * n), J)
    sites = Sites(np.full((J * n, C), 0.1), rng.standard_normal((J * n, C)))
    Z = [X[g[:M]] for g in groups]

    def run(j: int) -> None:
        part = slice(j * n, (j + 1) * n)
        frame = Frame.of("rbf", theta, Z[j])
        assert frame is not None
        expert = Expert(frame, likelihood, X[part], y[part], with_gradient=True)
        q = expert.posterior(sites[part])
        assert q is not None
        expert.evaluate(q, gradient=True)

    return run


def its_products(C: int, n: int, M: int) -> Callable[[int], object]:
    """dgemm on arrays of the same shapes: for each latent function V diag(λ) Vᵀ (half of
    it, being symmetric), its inverse (M³ flop) and S V; and U⁻¹, U⁻ᵀK_uf, U⁻¹G, GVᵀ,
    U⁻¹(GVᵀ)U⁻ᵀ, and the derivative by K_uf times the rows, for the inducing inputs' gradient."""
    rng, D = np.random.default_rng(0), 20
    V, S = rng.standard_normal((M, n)), rng.standard_normal((M, M))
    half, other = rng.standard_normal((M, n // 2)), rng.standard_normal((n // 2, M))
    VT = np.ascontiguousarray(V.T)
    left, right = rng.standard_normal((M, M // 2)), rng.standard_normal((M // 2, M))
    X = rng.standard_normal((n, D))

    def run(j: int) -> None:
        for _ in range(C):
            half @ other
            left @ right
            S @ V
        left @ right
        S.T @ V
        S @ V
        V @ VT
        S @ S @ S
        V @ X

    return run


MNIST = """
import json, sys, time, warnings
import numpy as np
from sklearn.decomposition import PCA
from healgp import ExpertGPClassifier, datasets, metrics
warnings.simplefilter("ignore")
n = json.loads(sys.argv[1])
X, y = datasets.load("mnist")
pca = PCA(20, random_state=0).fit(X[:60_000].astype(float))
Z = pca.transform(X.astype(float))
train, test = slice(0, n), slice(60_000, 70_000)
del X
ExpertGPClassifier(max_iter=1).fit(Z[:300], y[:300]).predict(Z[:10])  # load or compile the core
start = time.perf_counter()
model = ExpertGPClassifier(random_state=0).fit(Z[train], y[train])
fitted = time.perf_counter()
p = model.predict_proba(Z[test])
predicted = time.perf_counter()
scores = [float(metrics.top_k_accuracy(y[test], p, k)) for k in (1, 2, 3)]
scores.append(float(-np.log(p[np.arange(10_000), y[test]]).mean()))
with open("/proc/self/status") as lines:
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
print(json.dumps(dict(fit=fitted - start, predict=predicted - fitted, peak=peak, scores=scores)))
"""


def mnist(quick: bool) -> str:
    """All of MNIST with our defaults, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", MNIST, json.dumps(6_000 if quick else 60_000)],
        capture_output=True,
        text=True,
    )
    if run.returncode:
        return "MNIST is not in HEALGP_DATA.\n"
    r = json.loads(run.stdout.splitlines()[-1])
    cells = [f"{v:.4f}" for v in r["scores"]]
    cells += [f"{r['fit']:.0f}", f"{r['predict']:.1f}", f"{r['peak']:.0f}"]
    return table(["top 1", "top 2", "top 3", "NLPD", "fit, s", "predict, s", "peak, MB"], [cells])
