"""The shared θ: the sum over experts of the log marginal likelihood, or of its lower bound,
maximised by L-BFGS-B."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee, ExpertError
from healgp.experts.sparse import SparseCommittee
from healgp.kernels import SHAPE_NAMES, Hyperparameters
from healgp.likelihoods import Gaussian, Likelihood

#: Where θ may go, in units of the inputs' and the target's standard deviation. Without bounds, data
#: that a kernel can explain exactly drive the noise to zero and the lengthscales to infinity.
LENGTHSCALE_BOUNDS = (0.02, 200.0)
SIGNAL_BOUNDS = (1e-4, 1e4)
NOISE_BOUNDS = (1e-5, 1e2)
SHAPE_BOUNDS = (1e-2, 1e3)

#: Of a likelihood's own parameter, which is a logarithm.
_PARAMETER_BOUND = 700.0

#: Of the variance of the log of a rate: far from the data the rate is its mean times e^{σ²/2}.
_LOG_RATE_BOUND = 10.0

#: Relative gain of the objective in an iteration at which training ends: of θ alone; of θ and
#: inducing inputs, which could be moved about for ever; where the objective itself ends in a loop
#: of natural-gradient steps; and where only inducing inputs are trained.
_EXACT_TOLERANCE, _COLLAPSED_TOLERANCE = 1e-9, 1e-5
_VARIATIONAL_TOLERANCE, _INDUCING_TOLERANCE = 1e-4, 5e-4

#: Rows times latent functions that a sparse expert is trained on at most; its q(u) is then found
#: from all of its rows.
TRAINING_SITES = 50_000

#: Pairs of an expert and a target that sparse experts' θ is first found from, and the rows of each,
#: at most.
_PAIRS, _PAIR_ROWS = 64, 1000

#: Deviation of a prior that draws the logarithms of their lengthscales together: with a few hundred
#: rows and some tens of columns the most likely lengthscales overfit.
_SPREAD = 0.3

#: Experts and rows of each that the signal variance of a classifier is chosen on, at most, and the
#: share of them that is held out; the factor of a step, the least share that it must gain, and
#: where the variance may go.
_SIGNAL_EXPERTS, _SIGNAL_ROWS, _SIGNAL_HELD = 16, 1000, 0.25
_SIGNAL_STEP, _SIGNAL_GAIN, _SIGNAL_RANGE = np.sqrt(10.0), 0.03, (0.9e-2, 1.1e2)

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Training:
    """What training found."""

    theta: Hyperparameters
    n_iter: int


def train(
    committee: Committee,
    ard: bool,
    max_iter: int,
    scale_X: np.ndarray,
    scale_y: float,
    engine: LocalEngine,
    report: Report = lambda iteration, value: None,
    brief: bool = False,
    spread: float = np.inf,
) -> Training:
    """Maximises Σ_j log p(y⁽ʲ⁾ | X⁽ʲ⁾, θ) from committee.theta, within the bounds above times the
    scales of X [D] and y. An evaluation that fails, or Ctrl-C, keeps the best θ so far. `brief`
    training is a start for another; `spread` is the deviation of a prior that draws the logarithms
    of the lengthscales together."""
    if max_iter == 0:
        return Training(committee.theta, 0)
    D = len(scale_X)
    shaped = committee.kernel in SHAPE_NAMES
    bounds = _log_bounds(ard, shaped, scale_X, scale_y)

    def objective(log_theta: np.ndarray) -> tuple[float, np.ndarray]:
        theta = Hyperparameters.from_log(log_theta, D, ard)
        value, gradient = committee.objective(theta, engine)
        apart = log_theta[:D] - log_theta[:D].mean() if ard else np.zeros(D)
        gradient[:D] -= apart / spread**2
        value -= 0.5 * float(apart @ apart) / spread**2
        return value, _tied(gradient, D, ard)[: len(log_theta)]

    best, iterations = _maximise(
        objective, committee.theta.to_log(ard, shaped), bounds, len(committee.y), max_iter,
        1e-5 if brief else _EXACT_TOLERANCE, report, not brief,
    )  # fmt: skip
    return Training(Hyperparameters.from_log(best, D, ard), iterations)


def train_sparse(
    committee: SparseCommittee,
    with_kernel: bool,
    ard: bool,
    max_iter: int,
    scale_X: np.ndarray,
    scale_y: float,
    engine: LocalEngine,
    report: Report = lambda iteration, value: None,
) -> int:
    """Maximises Σ_j ELBO_j over every q(u) and the inducing inputs, and over θ and the likelihood's
    parameter unless with_kernel is False. The committee is left with the best; returns the number
    of iterations."""
    if max_iter == 0:
        return 0
    D, M = len(scale_X), len(committee.Z)
    shaped, likelihood = committee.kernel in SHAPE_NAMES, committee.likelihood
    noise = isinstance(likelihood, Gaussian)
    log_theta = committee.theta.to_log(ard, shaped)
    k = len(log_theta) if with_kernel else 0
    bounds = np.full((k + M * D, 2), [-np.inf, np.inf])
    if with_kernel:
        bounds[:k] = _log_bounds(ard, shaped, scale_X, scale_y)
        if not noise:  # its place is that of the likelihood's parameter
            where = k - 1 - shaped
            log_theta[where] = likelihood.parameter
            bounds[where] = -_PARAMETER_BOUND, _PARAMETER_BOUND
            bounds[where - 1, 1] = np.log(_LOG_RATE_BOUND)

    def at(point: np.ndarray) -> tuple[Hyperparameters, Likelihood, np.ndarray]:
        Z = np.ascontiguousarray(point[k:].reshape(M, D))
        if not with_kernel:
            return committee.theta, likelihood, Z
        where, parameter = k - 1 - shaped, float(point[k - 1 - shaped])
        logs = point[:k].copy()
        if not noise:
            logs[where] = np.log(committee.theta.noise_variance)
        theta = Hyperparameters.from_log(logs, D, ard)
        return theta, likelihood.with_parameter(parameter), Z

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, by_Z = committee.objective(*at(point), engine)
        return value, np.concatenate([_tied(gradient, D, ard)[:k], by_Z.reshape(-1)])

    start = np.concatenate([log_theta[:k], committee.Z.reshape(-1)])
    tolerance = _VARIATIONAL_TOLERANCE if with_kernel else _INDUCING_TOLERANCE
    if noise:
        tolerance = _COLLAPSED_TOLERANCE
    best, iterations = _maximise(
        objective, start, bounds, len(committee.y), max_iter, tolerance, report
    )
    committee.theta, committee.likelihood, committee.Z = at(best)
    return iterations


def train_on_targets(
    X: np.ndarray, groups: list[np.ndarray], targets: Callable[[np.ndarray], list[np.ndarray]],
    kernel: str, theta: Hyperparameters, ard: bool, max_iter: int, scale_X: np.ndarray,
    rng: np.random.Generator, n_jobs: int | None,
) -> Hyperparameters:  # fmt: skip
    """θ under which exact experts explain targets as if they were Gaussian, on some of the experts
    and of their rows. `targets` gives one or more columns for an array of rows.

    It is where sparse experts start from. For classes the targets are the indicators of those that
    are present, and the lengthscales stay: the ELBO of sparse experts is a poor judge of them, for
    it favours functions that few inducing inputs can follow, and in a cluster of one class any
    smooth function will do. The marginal likelihood of the targets has a closed form and needs no
    inducing inputs.
    """
    order = rng.permutation(len(groups))[:_PAIRS]
    rows = [
        g if len(g) <= _PAIR_ROWS else np.sort(rng.choice(g, _PAIR_ROWS, replace=False))
        for g in (groups[i] for i in order)
    ]
    pairs = [(r, t) for r in rows for t in targets(r)]
    pairs = [pairs[i] for i in np.sort(rng.permutation(len(pairs))[:_PAIRS])]
    y = np.concatenate([t for _, t in pairs])
    scale = float(np.sqrt(np.mean(y**2))) or 1.0
    unit = scale**2 / (theta.signal_variance + theta.noise_variance)
    start = replace(
        theta,
        signal_variance=unit * theta.signal_variance,
        noise_variance=unit * theta.noise_variance,
    )
    committee = Committee.from_groups(X, X[:, 0], [r for r, _ in pairs], kernel, start)
    committee.y = y
    with LocalEngine(n_jobs, committee.sizes) as engine:
        # distances grow with the root of the number of columns; where the lengthscales are too
        # short for that, nothing is near anything, and the gradient has nothing to say
        longer = replace(start, lengthscales=np.sqrt(X.shape[1]) * start.lengthscales)
        if committee.objective(longer, engine)[0] > committee.objective(start, engine)[0]:
            committee.theta = longer
        return train(
            committee, ard, max_iter, scale_X, scale, engine, brief=True, spread=_SPREAD
        ).theta


def choose_signal(
    committee: SparseCommittee, rng: np.random.Generator, engine: LocalEngine
) -> Hyperparameters:
    """θ with the signal variance under which experts best predict rows that are held out.

    Steps of a factor from the present one, up while it helps, else down; on some experts. For
    classes it is a better judge than the ELBO: a variance that few inducing inputs cannot remove
    costs the bound more than it costs predictions.
    """
    J = committee.n_experts
    experts = np.sort(rng.choice(J, min(J, _SIGNAL_EXPERTS), replace=False))
    few = committee.sample(_SIGNAL_ROWS, experts, rng)
    held = rng.random(len(few.y)) < _SIGNAL_HELD

    def score(signal: float) -> float:
        try:
            return few.held_out(replace(committee.theta, signal_variance=signal), held, engine)
        except ExpertError:
            return -np.inf

    best = float(np.clip(committee.theta.signal_variance, *_SIGNAL_RANGE))
    best_score = score(best)
    for factor in (_SIGNAL_STEP, 1.0 / _SIGNAL_STEP):
        before = best
        while _SIGNAL_RANGE[0] <= best * factor <= _SIGNAL_RANGE[1]:
            there = score(best * factor)
            if not there > best_score + _SIGNAL_GAIN * abs(best_score):
                break
            best, best_score = best * factor, there
        if best != before:
            break
    return replace(committee.theta, signal_variance=float(best))


def _tied(gradient: np.ndarray, D: int, ard: bool) -> np.ndarray:
    """The gradient by one lengthscale instead of D, if they are all the same."""
    return gradient if ard else np.concatenate([[gradient[:D].sum()], gradient[D:]])


def _maximise(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    bounds: np.ndarray,
    N: int,
    max_iter: int,
    tolerance: float,
    report: Report,
    warn: bool = True,
) -> tuple[np.ndarray, int]:
    """The best point found by L-BFGS-B and the number of iterations, for an objective that is a sum
    over N rows."""
    start = np.clip(start, bounds[:, 0], bounds[:, 1])
    best_value, best, iteration = -np.inf, start, 0

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_value, best
        value, gradient = objective(point)
        if value > best_value:
            best_value, best = value, point.copy()
        # per row, so that the optimiser's tolerances mean the same for any number of rows
        return -value / N, -gradient / N

    def after_iteration(point: np.ndarray) -> None:
        nonlocal iteration
        iteration += 1
        report(iteration, best_value / N)

    try:
        found = minimize(
            negative, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=after_iteration,
            options={"maxiter": max_iter, "ftol": tolerance, "gtol": 1e-6},
        )  # fmt: skip
        if warn and found.nit >= max_iter and not found.success:
            warnings.warn(
                f"Training stopped after max_iter={max_iter} iterations before it converged; "
                "raise max_iter for a better fit.",
                ConvergenceWarning,
                stacklevel=4,
            )
    except KeyboardInterrupt:
        warnings.warn(
            f"Training was interrupted in iteration {iteration + 1}; the model uses the best "
            "hyperparameters so far.",
            stacklevel=4,
        )
    except ExpertError:
        if not np.isfinite(best_value):
            raise
        warnings.warn(
            f"An evaluation failed in iteration {iteration + 1} of training; the model uses the "
            "best hyperparameters before it.",
            ConvergenceWarning,
            stacklevel=4,
        )
    return best, iteration


def _log_bounds(ard: bool, shaped: bool, scale_X: np.ndarray, scale_y: float) -> np.ndarray:
    """Bounds [P, 2] of log θ."""
    known = scale_X[np.isfinite(scale_X)]  # a constant column has no scale
    low, high = (known.min(), known.max()) if len(known) else (1.0, 1.0)
    each = [(s, s) if np.isfinite(s) else (low, high) for s in scale_X]
    rows = [np.array(LENGTHSCALE_BOUNDS) * s for s in (each if ard else [(low, high)])]
    rows += [np.array(SIGNAL_BOUNDS) * scale_y**2, np.array(NOISE_BOUNDS) * scale_y**2]
    rows += [np.array(SHAPE_BOUNDS)] * shaped
    return np.log(np.array(rows))
