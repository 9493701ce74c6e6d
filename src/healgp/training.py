"""The shared θ: the sum over experts of the log marginal likelihood, or of its lower bound,
maximised by L-BFGS-B."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from healgp.checkpoint import Journal
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

#: The gain in log p per row over that of noise alone, below which hardly anything was explained: so
#: much, or log(N) / 2 of all rows for each parameter, as the Bayesian information criterion has it.
#: This counts so much at most, for with few rows and many columns most parameters say no more than
#: that their column does not matter.
_EXPLAINED, _CRITERION = 0.01, 0.1

#: Progressive training: experts that it begins with, how many times as many each next stage has,
#: the relative gain in an iteration at which a stage ends, and the gain in log p per row still to
#: be had at which no further stage follows.
_FIRST, _MORE, _STAGE_TOLERANCE, _ENOUGH = 32, 4, 1e-5, 1e-3

#: Rows times latent functions that a sparse expert is trained on at most; its q(u) is then found
#: from all of its rows.
TRAINING_SITES = 50_000

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Training:
    """What training found."""

    theta: Hyperparameters
    n_iter: int
    value: float = -np.inf  # log p per row there
    gain: float = 0.0  # of the objective per row, over that of the start
    stopped: bool = False  # by Ctrl-C or by an evaluation that failed
    interrupted: bool = False  # by Ctrl-C
    is_noise: bool = False  # nothing else was found


@dataclass(frozen=True)
class _Found:
    """The best point, the objective per row there, the number of iterations, and as above."""

    point: np.ndarray
    value: float
    n_iter: int
    gain: float
    converged: bool = True
    stopped: bool = False
    interrupted: bool = False
    is_noise: bool = False


def train(
    committee: Committee,
    ard: bool,
    max_iter: int,
    scale_X: np.ndarray,
    scale_y: float,
    engine: LocalEngine,
    report: Report = lambda iteration, value: None,
    tolerance: float = _EXACT_TOLERANCE,
    warn: bool = True,
    spread: float = np.inf,
    asked: float = 0.5,
    journal: Journal | None = None,
) -> Training:
    """Maximises Σ_j log p(y⁽ʲ⁾ | X⁽ʲ⁾, θ) from committee.theta, within the bounds above times the
    scales of X [D] and y. An evaluation that fails, or Ctrl-C, keeps the best θ so far. It ends
    at a relative gain of `tolerance`, and warns if max_iter comes first; `spread` is the deviation
    of a prior that draws the logarithms of the lengthscales together. A journal keeps the
    evaluations.

    Distances grow with the root of the number of columns. Where the lengthscales to start from are
    too short for that, nothing is near anything, and the gradient has nothing to say: a θ that
    explains hardly more than noise alone would is looked for a second time, from lengthscales √D as
    long and half of y noise. Where that explains hardly more either, y may be nothing but noise;
    and this, lengthscales that no other row is within explain too, but for whoever asks close to a
    row. So at least half of y is noise then; and all of it, unless what is found gains the nats
    asked of each of its parameters. (With none asked, whatever is found is right.)"""
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

    kept = objective if journal is None else journal.remembered(objective)
    N, start = committee.n_rows, committee.theta.to_log(ard, shaped)

    def maximised(point: np.ndarray) -> _Found:
        return _maximise(kept, point, bounds, N, max_iter, tolerance, report)

    found, squares = maximised(start), committee.squares()
    if not found.stopped and len(squares) < N:  # one row cannot tell a signal from noise
        square = float(squares.sum()) / N or 1.0
        signal = len(start) - 2 - shaped  # the noise is next
        far = start.copy()
        far[:signal] += 0.5 * np.log(D)
        far[[signal, signal + 1]] = np.log(square / 2)
        noise = far.copy()
        noise[[signal, signal + 1]] = bounds[signal, 0], np.log(square)
        # the value but for the little signal that is left
        value = -0.5 * (np.log(2.0 * np.pi * square) + 1.0)
        alone = _Found(np.clip(noise, *bounds.T), value, 0, 0.0, is_noise=True)
        found = _or_noise(found, alone, partial(maximised, far), N, signal + 1, asked)
    if warn and not found.converged:
        _say_unconverged(max_iter)
    theta, apart = Hyperparameters.from_log(found.point, D, ard), found.point[:D]
    prior = 0.5 * float(np.sum((apart - apart.mean()) ** 2)) / spread**2 / N if ard else 0.0
    return Training(
        theta, found.n_iter, found.value + prior, found.gain, found.stopped, found.interrupted,
        found.is_noise,
    )  # fmt: skip


def _or_noise(
    found: _Found, alone: _Found, from_afar: Callable[[], _Found], N: int, k: int,
    asked: float,
) -> _Found:  # fmt: skip
    """What was found; or, if that is hardly more than noise alone, what is found from longer
    lengthscales, or noise alone, whose logarithm is number k of the point."""
    nat = len(found.point) / N
    enough = alone.value + max(_EXPLAINED, min(0.5 * nat * np.log(N), _CRITERION))
    if found.value >= enough:
        return found
    every = [found]
    with suppress(ExpertError):  # what there is already is sound
        every.append(from_afar())
    best = max(every, key=lambda f: f.value)
    if best.value < enough and asked:
        half = alone.point[k] - np.log(2.0)
        cautious = [f for f in every if f.point[k] >= half and f.value >= alone.value + asked * nat]
        alone = replace(alone, converged=all(f.converged for f in every))
        best = max([alone, *cautious], key=lambda f: f.value)
    # an evaluation that failed on the way does not end training, for this was beside it
    return replace(
        best, n_iter=sum(f.n_iter for f in every), gain=best.value - (found.value - found.gain),
        stopped=every[-1].interrupted, interrupted=every[-1].interrupted,
    )  # fmt: skip


def train_progressively(
    committee: Committee,
    ard: bool,
    max_iter: int,
    scale_X: np.ndarray,
    scale_y: float,
    rng: np.random.Generator,
    engine: LocalEngine,
    report: Report = lambda iteration, value: None,
    journal: Journal | None = None,
) -> Training:
    """The same from few experts to many: θ is found on some that are drawn at random, then on four
    times as many, and so on.

    What a θ from s experts loses against that from all J is noise that falls with 1/s − 1/J. A
    stage that gains g over the θ of the one before, on four times its experts, has removed three
    quarters of it or more; at most g/3 · (1 − s/J) is left. Where that is too little to matter, no
    larger stage follows.
    """
    J, n, iterations = committee.n_experts, _FIRST, 0
    order, theta = rng.permutation(J), committee.theta
    while 2 * n <= J and max_iter > 0:
        some = committee.subset(np.sort(order[:n]))
        some.theta = theta
        found = train(
            some, ard, max_iter, scale_X, scale_y, engine, report, _STAGE_TOLERANCE, warn=False,
            journal=journal,
        )  # fmt: skip
        iterations += found.n_iter
        left = found.gain / (_MORE - 1) * (1.0 - n / J)
        if found.stopped or (left < _ENOUGH and not found.is_noise):
            return Training(found.theta, iterations, stopped=found.stopped)
        if not found.is_noise:  # more rows may show more, but not from there
            theta = found.theta
        n *= _MORE
    committee.theta = theta
    tolerance = _EXACT_TOLERANCE if n == _FIRST else _STAGE_TOLERANCE
    found = train(
        committee, ard, max_iter, scale_X, scale_y, engine, report, tolerance, journal=journal
    )
    return Training(found.theta, iterations + found.n_iter, stopped=found.stopped)


def train_sparse(
    committee: SparseCommittee,
    with_kernel: bool,
    ard: bool,
    max_iter: int,
    scale_X: np.ndarray,
    scale_y: float,
    engine: LocalEngine,
    report: Report = lambda iteration, value: None,
    journal: Journal | None = None,
) -> Training:
    """Maximises Σ_j ELBO_j over every q(u) and the inducing inputs, and over θ and the likelihood's
    parameter unless with_kernel is False. The committee is left with the best."""
    if max_iter == 0:
        return Training(committee.theta, 0)
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
    kept = objective if journal is None else journal.remembered(objective, *_sites_of(committee))
    found = _maximise(kept, start, bounds, committee.n_rows, max_iter, tolerance, report)
    if not found.converged:
        _say_unconverged(max_iter)
    committee.theta, committee.likelihood, committee.Z = at(found.point)
    return Training(committee.theta, found.n_iter, stopped=found.stopped)


def _sites_of(committee: SparseCommittee) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """What one evaluation leaves to the next, and what puts it back."""

    def state() -> list[np.ndarray]:
        return [committee.sites.weight, committee.sites.shift]

    def restore(state: list[np.ndarray]) -> None:
        committee.sites.weight[:], committee.sites.shift[:] = state

    return state, restore


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
) -> _Found:
    """The best point that L-BFGS-B finds, for an objective that is a sum over N rows."""
    start = np.clip(start, bounds[:, 0], bounds[:, 1])
    best_value, best, iteration, first_value = -np.inf, start, 0, -np.inf
    converged, stopped, interrupted = True, False, False

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_value, best, first_value
        value, gradient = objective(point)
        if not np.isfinite(first_value):
            first_value = value
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
        converged = found.success or found.nit < max_iter
    except KeyboardInterrupt:
        stopped = interrupted = True
        warnings.warn(
            f"Training was interrupted in iteration {iteration + 1}; the model uses the best "
            "hyperparameters so far.",
            stacklevel=4,
        )
    except ExpertError:
        if not np.isfinite(best_value):
            raise
        stopped = True
        warnings.warn(
            f"An evaluation failed in iteration {iteration + 1} of training; the model uses the "
            "best hyperparameters before it.",
            ConvergenceWarning,
            stacklevel=4,
        )
    gain = (best_value - first_value) / N
    return _Found(best, best_value / N, iteration, gain, converged, stopped, interrupted)


def _say_unconverged(max_iter: int) -> None:
    warnings.warn(
        f"Training stopped after max_iter={max_iter} iterations before it converged; raise "
        "max_iter for a better fit.",
        ConvergenceWarning,
        stacklevel=4,
    )


def say_interrupted() -> None:
    """Warns of Ctrl-C beside an optimisation."""
    warnings.warn("Training was interrupted; the model uses the best so far.", stacklevel=5)


def prepared(committee: Any, engine: LocalEngine) -> float:
    """What committee.prepare gives, also after Ctrl-C: what was trained is not lost for it."""
    try:
        return committee.prepare(engine)
    except KeyboardInterrupt:
        warnings.warn(
            "Interrupted while the trained experts were made ready to predict; this is done again "
            "now, and a second interrupt gives the model up.",
            stacklevel=5,
        )
        return committee.prepare(engine)


def _log_bounds(ard: bool, shaped: bool, scale_X: np.ndarray, scale_y: float) -> np.ndarray:
    """Bounds [P, 2] of log θ."""
    known = scale_X[np.isfinite(scale_X)]  # a constant column has no scale
    low, high = (known.min(), known.max()) if len(known) else (1.0, 1.0)
    each = [(s, s) if np.isfinite(s) else (low, high) for s in scale_X]
    rows = [np.array(LENGTHSCALE_BOUNDS) * s for s in (each if ard else [(low, high)])]
    rows += [np.array(SIGNAL_BOUNDS) * scale_y**2, np.array(NOISE_BOUNDS) * scale_y**2]
    rows += [np.array(SHAPE_BOUNDS)] * shaped
    return np.log(np.array(rows))
