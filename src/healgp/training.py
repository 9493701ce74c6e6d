"""The shared θ: the sum over experts of the log marginal likelihood, maximised by L-BFGS-B."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee, ExpertError
from healgp.kernels import SHAPE_NAMES, Hyperparameters

#: Where θ may go, in units of the inputs' and the target's standard deviation. Without bounds, data
#: that a kernel can explain exactly drive the noise to zero and the lengthscales to infinity.
LENGTHSCALE_BOUNDS = (0.02, 200.0)
SIGNAL_BOUNDS = (1e-4, 1e4)
NOISE_BOUNDS = (1e-5, 1e2)
SHAPE_BOUNDS = (1e-2, 1e3)


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
    report: Callable[[int, float], None] = lambda iteration, value: None,
) -> Training:
    """Maximises Σ_j log p(y⁽ʲ⁾ | X⁽ʲ⁾, θ) from committee.theta, within the bounds above times the
    scales of X [D] and y. An evaluation that fails, or Ctrl-C, keeps the best θ so far."""
    if max_iter == 0:
        return Training(committee.theta, 0)
    D, N = len(scale_X), len(committee.y)
    shaped = committee.kernel in SHAPE_NAMES
    bounds = _log_bounds(ard, shaped, scale_X, scale_y)
    start = np.clip(committee.theta.to_log(ard, shaped), bounds[:, 0], bounds[:, 1])
    best_value, best, iteration = -np.inf, start, 0

    def negative(log_theta: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_value, best
        theta = Hyperparameters.from_log(log_theta, D, ard)
        value, gradient = committee.objective(theta, engine)
        if value > best_value:
            best_value, best = value, log_theta.copy()
        if not ard:
            gradient = np.concatenate([[gradient[:D].sum()], gradient[D:]])
        # per row, so that the optimiser's tolerances mean the same for any number of rows
        return -value / N, -gradient[: len(start)] / N

    def after_iteration(log_theta: np.ndarray) -> None:
        nonlocal iteration
        iteration += 1
        report(iteration, best_value / N)

    try:
        found = minimize(
            negative, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=after_iteration,
            options={"maxiter": max_iter, "ftol": 1e-9, "gtol": 1e-6},
        )  # fmt: skip
        if found.nit >= max_iter and not found.success:
            warnings.warn(
                f"Training stopped after max_iter={max_iter} iterations before it converged; "
                "raise max_iter for a better fit.",
                ConvergenceWarning,
                stacklevel=3,
            )
    except KeyboardInterrupt:
        warnings.warn(
            f"Training was interrupted in iteration {iteration + 1}; the model uses the best "
            "hyperparameters so far.",
            stacklevel=3,
        )
    except ExpertError:
        if not np.isfinite(best_value):
            raise
        warnings.warn(
            f"An evaluation failed in iteration {iteration + 1} of training; the model uses the "
            "best hyperparameters before it.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return Training(Hyperparameters.from_log(best, D, ard), iteration)


def _log_bounds(ard: bool, shaped: bool, scale_X: np.ndarray, scale_y: float) -> np.ndarray:
    """Bounds [P, 2] of log θ."""
    known = scale_X[np.isfinite(scale_X)]  # a constant column has no scale
    low, high = (known.min(), known.max()) if len(known) else (1.0, 1.0)
    each = [(s, s) if np.isfinite(s) else (low, high) for s in scale_X]
    rows = [np.array(LENGTHSCALE_BOUNDS) * s for s in (each if ard else [(low, high)])]
    rows += [np.array(SIGNAL_BOUNDS) * scale_y**2, np.array(NOISE_BOUNDS) * scale_y**2]
    rows += [np.array(SHAPE_BOUNDS)] * shaped
    return np.log(np.array(rows))
