"""What the data decide before training: the kernel, and in which metric rows are near one another.

Both are judged by the marginal likelihood per row of the experts. Kernels are trained briefly on
the same few experts; the winner's lengthscales divide the inputs, which are partitioned again, and
the new partition stays where it explains the data better. Sparse experts get their start from exact
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee, ExpertError
from healgp.experts.sparse import SparseCommittee
from healgp.kernels import Hyperparameters
from healgp.training import Training, say_interrupted, train

Array = np.ndarray

#: Experts that kernels are compared on: a share of them, within bounds; rows of each, and
#: iterations, at most; and the relative gain at which training ends that is a start for another.
_SHARE, _EXPERTS, _ROWS, _ITERATIONS, _TOLERANCE = 0.2, (4, 8), 1000, 20, 1e-5

#: Pairs of an expert and a target that sparse experts' θ is first found from, and the rows of each,
#: at most. An expert of very many rows gives one sample for every so many of them: where there is
#: much noise, a thousand rows say nothing.
_PAIRS, _PAIR_ROWS, _SAMPLED = 64, 1000, 50_000

#: Deviation of a prior that draws the logarithms of their lengthscales together: with a few hundred
#: rows and some tens of columns the most likely lengthscales overfit.
_SPREAD = 0.3

#: Experts and rows of each that the signal variance of a classifier is chosen on, at most, and the
#: share of them that is held out; the factor of a step, the least share that it must gain, and
#: where the variance may go.
_SIGNAL_EXPERTS, _SIGNAL_ROWS, _SIGNAL_HELD = 16, 1000, 0.25
_SIGNAL_STEP, _SIGNAL_GAIN, _SIGNAL_RANGE = np.sqrt(10.0), 0.03, (0.9e-2, 1.1e2)


@dataclass(frozen=True)
class Selection:
    """The kernel with the largest marginal likelihood per row, θ as far as it was trained, and what
    was compared."""

    kernel: str
    theta: Hyperparameters
    scores: dict[str, float]
    interrupted: bool = False  # by Ctrl-C

    @classmethod
    def of(
        cls, kernels: Sequence[str], start: Hyperparameters, trained: Callable[[str], Training]
    ) -> Selection:
        """The best by the marginal likelihood per row of what `trained` gives each; one alone is
        not compared, nor one whose training was interrupted, but where it is all there is."""
        results: dict[str, Training] = {}
        interrupted = False
        for kernel in kernels:
            try:
                found = trained(kernel)
            except KeyboardInterrupt:
                say_interrupted()
                found = Training(start, 0, interrupted=True)
            except ExpertError:
                if len(kernels) == 1:
                    raise
                continue
            interrupted = found.interrupted
            if not (interrupted and results):
                results[kernel] = found
            if interrupted:
                break
        if not results:
            raise ExpertError(
                "No kernel could be trained: every covariance matrix was singular. Raise "
                "noise_variance, or leave out columns with extreme values and rows that are nearly "
                "equal."
            )
        best = max(results, key=lambda kernel: results[kernel].value)
        scores = {kernel: found.value for kernel, found in results.items()}
        return cls(best, results[best].theta, scores if len(results) > 1 else {}, interrupted)


def choose_kernel(
    Z: Any, y: Any, groups: list[Array], kernels: Sequence[str], theta: Hyperparameters,
    ard: bool, max_iter: int, scale_X: Array, scale_y: float, rng: np.random.Generator,
    n_jobs: int | None,
) -> Selection:  # fmt: skip
    """Trains each kernel briefly from θ on the same few experts."""
    few = _few(groups, rng)

    def trained(kernel: str) -> Training:
        committee = Committee.from_groups(Z, y, few, kernel, theta)
        with committee.engine(n_jobs) as engine:
            if max_iter == 0:
                return Training(theta, 0, committee.prepare(engine) / committee.n_rows)
            found = train(
                committee, ard, min(max_iter, _ITERATIONS), scale_X, scale_y, engine,
                tolerance=_TOLERANCE, warn=False, asked=1.0,
            )  # fmt: skip
        # more rows may show more than noise, but not from there
        return replace(found, theta=theta) if found.is_noise else found

    return Selection.of(kernels, theta, trained)


def _few(groups: list[Array], rng: np.random.Generator) -> list[Array]:
    n = int(np.clip(_SHARE * len(groups), *_EXPERTS))
    chosen = np.sort(rng.permutation(len(groups))[:n])
    return [
        g if len(g) <= _ROWS else np.sort(rng.choice(g, _ROWS, replace=False))
        for g in (groups[i] for i in chosen)
    ]


def explains_better(old: Any, new: Any, n_jobs: int | None) -> bool:
    """Whether the committee `new` of the same rows has a larger marginal likelihood than `old`. All
    rows count: experts differ so much in how noisy theirs are that a part of them decides by
    chance."""
    values = []
    for committee in (old, new):
        committee.factor_bytes = 0.0  # only the value is wanted
        with committee.engine(n_jobs) as engine:
            try:
                values.append(committee.prepare(engine))
            except ExpertError:
                values.append(-np.inf)
    return values[1] > values[0]


def train_on_targets(
    X: Any, groups: list[np.ndarray], targets: Callable[[np.ndarray], list[np.ndarray]],
    kernels: Sequence[str], theta: Hyperparameters, ard: bool, max_iter: int, scale_X: np.ndarray,
    rng: np.random.Generator, n_jobs: int | None,
) -> Selection:  # fmt: skip
    """The kernel and θ under which exact experts explain targets as if they were Gaussian, on some
    of the experts and of their rows. `targets` gives one or more columns for an array of rows.

    It is where sparse experts start from. For classes the targets are the indicators of those that
    are present, and the lengthscales stay: the ELBO of sparse experts is a poor judge of them, for
    it favours functions that few inducing inputs can follow, and in a cluster of one class any
    smooth function will do. The marginal likelihood of the targets has a closed form and needs no
    inducing inputs.
    """
    if max_iter == 0:
        return Selection(kernels[0], theta, {})
    order = rng.permutation(len(groups))[:_PAIRS]
    rows = [
        g if len(g) <= _PAIR_ROWS else np.sort(rng.choice(g, _PAIR_ROWS, replace=False))
        for g in (groups[i] for i in order)
        for _ in range(max(len(g) // _SAMPLED, 1))
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
    columns = [r for r, _ in pairs]
    longer = replace(start, lengthscales=np.sqrt(X.shape[1]) * start.lengthscales)
    noisy = replace(longer, signal_variance=scale**2 / 2, noise_variance=scale**2 / 2)

    def trained(kernel: str) -> Training:
        committee = Committee.from_groups(X, np.zeros(len(X)), columns, kernel, start)
        committee.y = y
        with committee.engine(n_jobs) as engine:
            # distances grow with the root of the number of columns; where the lengthscales are too
            # short for that, nothing is near anything, and the gradient has nothing to say
            if committee.objective(longer, engine)[0] > committee.objective(start, engine)[0]:
                committee.theta = longer
            # from little noise, data that are mostly noise are explained by ever shorter
            # lengthscales; where rows are very many, another start is tried as well
            results = []
            for first in [committee.theta] + ([noisy] if len(rows) > len(order) else []):
                committee.theta = first
                found = train(
                    committee, ard, max_iter, scale_X, scale, engine, tolerance=_TOLERANCE,
                    warn=False, spread=_SPREAD, asked=0.0,
                )  # fmt: skip
                results.append(found)
                if found.interrupted:
                    break
            best = max(results, key=lambda result: result.value)
            return replace(best, interrupted=found.interrupted)

    return Selection.of(kernels, start, trained)


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
