"""kin40k, first split, beside the peers that are installed (the extra `bench`); the robot arm where
kin40k is not at hand. All see standardised data and use all cores.

Settings, chosen to be fair:

- healgp: the defaults.
- scikit-learn's GaussianProcessRegressor: ARD rbf with noise, its own optimiser, the same start,
  on the largest of 500, 1,000, 2,000 … rows whose fit takes no longer than healgp's on all.
- GPBoost's Vecchia approximation: ARD rbf, its defaults (20 neighbours, its own optimiser).
- GPyTorch's SVGP: 500 inducing inputs from k-means, trained, ARD rbf, Adam with a step of 0.01,
  batches of 1,024, 40 passes over the data.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

from healgp import ExpertGPRegressor, datasets, metrics
from healgp.deviations import GAUSSIAN
from timing import table


def healgp(X, y, new, **parameters):
    for rule in ("gpoe", "nested"):  # load or compile the core outside the timing
        small = ExpertGPRegressor(points_per_expert=50, max_iter=1, aggregation=rule)
        small.fit(X[:200], y[:200]).predict(X[:9])
    start = time.perf_counter()
    model = ExpertGPRegressor(random_state=0, **parameters).fit(X, y)
    fitted = time.perf_counter()
    mean, std = model.predict(new, return_std=True)
    seconds = time.perf_counter() - fitted
    return mean, std, fitted - start, seconds, len(X), model._setting({}).deviations


def scikit_learn(X, y, new, budget):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    size, result = 500, None
    while size <= len(X):
        start = time.perf_counter()
        kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel).fit(X[:size], y[:size])
        fitted = time.perf_counter()
        if fitted - start > budget and result is not None:
            break
        mean, std = model.predict(new, return_std=True)
        result = mean, std, fitted - start, time.perf_counter() - fitted, size
        size *= 2
    return result


def gpboost_vecchia(X, y, new):
    import gpboost

    start = time.perf_counter()
    model = gpboost.GPModel(
        gp_coords=X, cov_function="gaussian_ard", likelihood="gaussian", gp_approx="vecchia"
    )
    model.fit(y=y)
    fitted = time.perf_counter()
    out = model.predict(gp_coords_pred=new, predict_var=True, predict_response=True)
    seconds = time.perf_counter() - fitted
    return out["mu"], np.sqrt(out["var"]), fitted - start, seconds, len(X)


def gpytorch_svgp(X, y, new):
    import gpytorch
    import torch
    from sklearn.cluster import MiniBatchKMeans

    torch.manual_seed(0)
    start = time.perf_counter()
    centres = MiniBatchKMeans(500, random_state=0, n_init=1).fit(X).cluster_centers_

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self, inducing):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q))
            self.mean = gpytorch.means.ConstantMean()
            base = gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1])
            self.kernel = gpytorch.kernels.ScaleKernel(base)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = SVGP(torch.tensor(centres, dtype=torch.float32))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(X))
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=0.01)
    inputs, targets = (torch.tensor(a, dtype=torch.float32) for a in (X, y))
    for _ in range(40):
        for batch in torch.randperm(len(X)).split(1024):
            optimiser.zero_grad()
            (-bound(model(inputs[batch]), targets[batch])).backward()
            optimiser.step()
    fitted = time.perf_counter()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        out = likelihood(model(torch.tensor(new, dtype=torch.float32)))
    seconds = time.perf_counter() - fitted
    return out.mean.numpy(), out.stddev.numpy(), fitted - start, seconds, len(X)


def compare(quick: bool) -> str:
    try:
        X, new, y, target = datasets.load("kin40k", 0, standardize=True)
        name = "kin40k, split 0"
    except FileNotFoundError:
        X, y = datasets.robot_arm(40_000)
        X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
        X, new, y, target = X[:36_000], X[36_000:], y[:36_000], y[36_000:]
        name = "robot arm (kin40k is not at hand)"
    if quick:
        X, y = X[:5000], y[:5000]
    warnings.simplefilter("ignore")
    paper = dict(kernel="rbf", partition_metric="plain", aggregation="gpoe", temperature=100.0)
    results = {"healgp, defaults": healgp(X, y, new)}
    fit_time = results["healgp, defaults"][2]
    results["healgp, one kernel and the paper's rule"] = healgp(X, y, new, **paper)
    peers = {
        "scikit-learn GP": lambda: scikit_learn(X, y, new, fit_time),
        "GPBoost Vecchia": lambda: gpboost_vecchia(X, y, new),
        "GPyTorch SVGP-500": lambda: gpytorch_svgp(X, y, new),
    }
    missing = []
    for peer, run in peers.items():
        try:
            results[peer] = run()
        except ImportError:
            missing.append(peer)
    lines = []
    total = sum(results["healgp, defaults"][2:4])
    for peer, (mean, std, fit, predict, size, *own) in results.items():
        (said,) = own or (GAUSSIAN,)
        inside = np.abs(said.position(target, mean, std) - 0.5) <= 0.475
        lines.append([
            peer, f"{size:,}", f"{fit:.1f}", f"{predict:.1f}", f"**{(fit + predict) / total:.1f}**",
            f"{-said.log_density(target, mean, std).mean():.3f}",
            f"{metrics.nlpd(target, mean, std):.3f}", f"{metrics.rmse(target, mean):.3f}",
            f"{inside.mean():.1%}",
        ])  # fmt: skip
    text = f"{name}, {len(X):,} rows to train, {len(new):,} to predict.\n\n" + table(
        [
            "",
            "rows",
            "fit, s",
            "predict, s",
            "both, times healgp's",
            "NLPD",
            "as a Gaussian",
            "RMSE",
            "in 95 %",
        ],
        lines,
    )
    if missing:
        text += f"\nNot installed: {', '.join(missing)} (`pip install '.[bench]'`).\n"
    return text + "\n" + (__doc__ or "").split("Settings, chosen to be fair:\n\n")[1]
