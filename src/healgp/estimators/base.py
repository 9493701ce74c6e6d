"""What both estimators share: the parameters' checks, the partition, the settings, and the way from
new rows to aggregated latent functions."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from healgp import calibration, partition, persistence, routing, selection, streaming, training
from healgp.checkpoint import Journal
from healgp.checks import check_bool, check_number, choose
from healgp.engines.local import (
    LocalEngine,
    blas_threads,
    effective_n_jobs,
    enough_memory,
    memory,
)  # fmt: skip
from healgp.estimators.choosing import Choosing
from healgp.estimators.scaling import Scaling
from healgp.estimators.validation import validated
from healgp.experts.committee import Committee
from healgp.experts.sparse import SparseCommittee
from healgp.kernels import KERNELS, SHAPE_NAMES, Hyperparameters
from healgp.likelihoods import Likelihood
from healgp.nested import Route, nested
from healgp.prediction import Prior, Setting

Array = np.ndarray

#: What was chosen from the training rows, by setting.
_CHOSEN = ("_curves", "_rules", "_routes")

#: Of the memory budget, the share for factors; the rest is for the rows that are predicted.
_FACTOR_SHARE = 0.8


class ExpertGP(Choosing):
    """The common part of `ExpertGPRegressor` and `ExpertGPClassifier`."""

    # ---- fitting ---------------------------------------------------------------------------

    def _check_shared(self) -> None:
        if self.points_per_expert is not None:
            check_number("points_per_expert", self.points_per_expert, 1, integer=True)
        if self.n_inducing is not None:
            check_number("n_inducing", self.n_inducing, 1, integer=True)
        partition.check(self.partition)
        choose("kernel", self.kernel, ("auto", *KERNELS))
        check_bool("ard", self.ard)
        check_bool("standardize", self.standardize)
        self._setting({}, fitting=True)
        check_number("signal_variance", self.signal_variance, 0, positive=True)
        if self.routing is not None:
            choose("routing", self.routing, ("auto",))
        if self.memory_budget is not None:
            check_number("memory_budget", self.memory_budget, 0)
        check_number("routing_tol", self.routing_tol, 0, positive=True)
        choose("engine", self.engine, ("local", "dask"))
        if self.checkpoint is not None and not isinstance(self.checkpoint, str | os.PathLike):
            raise ValueError(f"checkpoint={self.checkpoint!r} must be None or the path of a file.")
        if self.checkpoint is not None and self.random_state is None:
            raise ValueError(
                "checkpoint needs a random_state that is a number: a fit that goes on must divide "
                "the rows as the one before did."
            )
        check_number("max_iter", self.max_iter, 0, integer=True)
        effective_n_jobs(self.n_jobs)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A fit that fails leaves an earlier one as it was."""
        before = dict(self.__dict__)
        try:
            with enough_memory():
                yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _rng(self) -> np.random.Generator:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return np.random.default_rng(seed)

    def _partition(
        self, X: Any, Z: Any, rng: np.random.Generator
    ) -> tuple[Array, list[Array], int]:
        """Labels, the rows of each expert, and how many rows an expert was to have."""
        N = len(X)
        m = N if self.points_per_expert is None else min(self.points_per_expert, N)
        # scikit-learn's k-means sets and restores BLAS's threads as well
        with blas_threads(1), self._progress("partitioning", N, "row") as bar:
            labels = partition.labels_of(self.partition, X, Z, N // m, rng)
            bar.update(N)
        return labels, partition.groups(labels), m

    def _kinds(self) -> tuple[Any, Any]:
        """The classes of exact and of sparse committees."""
        if self.engine == "dask":
            from healgp.engines.dask import ShardedCommittee
            from healgp.engines.dask_sparse import ShardedSparse

            return ShardedCommittee, ShardedSparse
        return Committee, SparseCommittee

    def _training_rows(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        """X [N, D] and y [N], checked: arrays, or with engine="dask" the rows of collections."""
        if self.engine == "dask":
            from healgp.engines import cluster, rows

            cluster.current_client()  # before any work, an error where there is none
            if rows.is_collection(X):
                return rows.training_rows(self, X, y, bool(options.get("y_numeric")))
        return validated(self, X, y, **options)

    def _kernels(self) -> tuple[str, ...]:
        """The kernels to choose from."""
        return tuple(KERNELS) if self.kernel == "auto" else (self.kernel,)

    def _starting_theta(self, D: int) -> Hyperparameters:
        try:
            lengthscales = np.asarray(self.lengthscale, dtype=float)
        except (TypeError, ValueError):
            lengthscales = np.array(np.nan)
        if lengthscales.ndim > 1 or lengthscales.size not in (1, D):
            raise ValueError(
                f"lengthscale has {lengthscales.size} values; give one number, or one for each of "
                f"the {D} columns of X."
            )
        if not (np.isfinite(lengthscales).all() and (lengthscales > 0).all()):
            raise ValueError(f"lengthscale={self.lengthscale!r} must be finite and above 0.")
        if not self.ard and len(np.unique(lengthscales)) > 1:
            raise ValueError("With ard=False lengthscale must be one number.")
        return Hyperparameters(
            np.broadcast_to(lengthscales, (D,)).copy(),
            float(self.signal_variance),
            float(getattr(self, "noise_variance", 0.1)),
        )

    def _fit_sparse(
        self, Z: Any, y: Any, rows: list[Array], kernel: str, theta: Hyperparameters,
        likelihood: Likelihood, n_inducing: int, with_kernel: bool, max_iter: int, scaling: Scaling,
        rng: np.random.Generator,
    ) -> tuple[Any, Array, float]:  # fmt: skip
        """A committee of sparse experts, trained; its training curve; and its ELBO."""
        curve: list[float] = []
        pieces = np.ones(max(len(rows), len(y) // 100))
        with LocalEngine(self.n_jobs, pieces) as engine:
            divided = partial(
                self._kinds()[1].from_groups, Z, y, rows, kernel, theta, likelihood, n_inducing,
                rng, engine,
            )  # fmt: skip
            try:
                committee = divided()
            except KeyboardInterrupt:  # while inducing inputs were chosen
                training.say_interrupted()
                committee, max_iter = divided(), 0
            if not with_kernel and max_iter > 0:
                try:
                    committee.theta = selection.choose_signal(committee, rng, engine)
                except KeyboardInterrupt:
                    training.say_interrupted()
                    max_iter = 0
            limit = max(training.TRAINING_SITES // likelihood.n_latent, 10 * n_inducing)
            trained = committee
            if committee.sizes.max() > limit:
                trained = committee.sample(limit, np.arange(committee.n_experts), rng)
            with (
                self._journal(committee, rows, scaling, max_iter) as journal,
                self._progress("training", max_iter, "it") as bar,
            ):
                found = training.train_sparse(
                    trained, with_kernel, self.ard, max_iter, scaling.x_left, scaling.y_left,
                    engine, _reporter(bar, "ELBO per row", curve), journal,
                )  # fmt: skip
                bar.total = bar.n
            committee.theta, committee.likelihood = trained.theta, trained.likelihood
            committee.Z, committee.factor_bytes = trained.Z, self._factor_bytes()
            elbo = training.prepared(committee, engine)
            if not found.stopped:
                journal.done()
        return committee, np.array(curve), elbo

    def _journal(
        self, committee: Any, rows: list[Array], scaling: Scaling, max_iter: int
    ) -> Journal:
        """The evaluations of training, where there are any and they are to be kept."""
        elsewhere = ("checkpoint", "engine", "n_jobs", "verbose", "memory_budget", "partition")
        parameters = {k: v for k, v in self.get_params().items() if k not in elsewhere}
        return Journal(
            self.checkpoint if max_iter else None, type(self).__name__, parameters,
            committee.kernel, committee.offsets, committee.theta.to_log(True, True),
            np.concatenate(rows), *vars(scaling).values(),
        )  # fmt: skip

    def _say_kernel(self, chosen: selection.Selection) -> None:
        if self.verbose and chosen.scores:
            scores = ", ".join(f"{kernel} {value:.4f}" for kernel, value in chosen.scores.items())
            print(f"kernel: {chosen.kernel}; log p per row of some experts: {scores}")

    def _choose_now(self) -> None:
        """Rule and temperature are chosen now, not at the first prediction."""
        try:
            self._setting({})
        except KeyboardInterrupt:
            warnings.warn(
                "Interrupted while the temperature or the rule was chosen. Training is done, and "
                "they are chosen when they are first needed.",
                stacklevel=4,
            )

    def _store(
        self,
        committee: Any,
        scaling: Scaling,
        rng: np.random.Generator,
        communication: Array | None = None,
    ) -> None:
        """What both estimators keep of a fit."""
        theta = committee.theta
        self._scaling, self._committee = scaling, committee
        self._communication = communication
        self._trained = self.max_iter > 0
        self._grbcm = None
        self._calibration_rows = calibration.sample_rows(committee.n_rows, committee.n_experts, rng)
        self._curves, self._rules, self._routes = {}, {}, {}
        self._left_out, self._confident = {}, {}
        self._guide = None
        self._centres: Any = None  # of partial_fit
        self._arrivals: streaming.Arrivals | None = None
        self.n_experts_ = committee.n_experts
        self.lengthscales_ = theta.lengthscales
        self.signal_variance_ = theta.signal_variance
        for name in ("log_marginal_likelihood_", "elbo_", "noise_variance_", "alpha_"):
            self.__dict__.pop(name, None)  # those of an earlier fit go
        self.kernel_ = committee.kernel
        if committee.kernel in SHAPE_NAMES:
            setattr(self, SHAPE_NAMES[committee.kernel] + "_", theta.shape)

    def _factor_bytes(self) -> float:
        """What the experts' factors may take of the memory budget."""
        budget = self.memory_budget
        return _FACTOR_SHARE * (memory() / 4 if budget is None else float(budget))

    # ---- prediction ------------------------------------------------------------------------

    def expert_moments(self, X: Any) -> tuple[Array, Array]:
        """Latent mean and variance of each expert at each row, [J, n], with a last axis for the
        latent functions where there are several: for a look at a modest number of rows. Of a
        Gaussian likelihood they are in the units of y."""
        new = self._new_rows(X)
        mean, var = self._moments(self._committee, new)
        unit = self._committee.unit
        return self._scaling.mean(unit * mean), self._scaling.var(unit**2 * var)

    def expert_weights(self, X: Any) -> Array:
        """Weight of each expert at each row under the estimator's setting, [J, n], with a last axis
        for the latent functions where there are several: for a look at a modest number of rows."""
        new, setting = self._new_rows(X), self._setting({})
        if setting.aggregation == "nested":
            raise ValueError(
                "aggregation='nested' solves for its combination at every row and has no weights "
                "between 0 and 1. Look at expert_moments(X), or choose another rule."
            )
        committee, prior = self._committee_and_prior(setting.aggregation, new)
        mean, var = self._moments(committee, new)
        noise = committee.theta.noise_variance if setting.space == "y" else 0.0
        weights = setting.weights(mean, var + noise, prior.mean, prior.var + noise)
        if setting.aggregation == "grbcm" and self._grbcm is not None:
            # An expert whose rows all went into D_c has no say.
            everyone = np.zeros((self.n_experts_, len(new)))
            everyone[self._grbcm[2]] = weights
            return everyone
        return weights

    def _new_rows(self, X: Any) -> Array:
        check_is_fitted(self)
        return self._scaling.inputs(validated(self, X, reset=False))

    def _lazily(self, X: Any, function: Any, width: int, dtype: Any = float) -> Any:
        """For a Dask collection X, a lazy Dask array [n, width] of function(model, rows); None for
        everything else."""
        check_is_fitted(self)
        if self.engine != "dask":
            return None
        from healgp.engines import rows

        if not rows.is_collection(X):
            return None
        # found here and once, for they travel with the model: every block would find them again
        if self._route(self._setting({})).experts:
            with self._committee.engine(self.n_jobs) as engine:
                self._committee.prepare_once(engine)
                self._guided(engine)
        return rows.predicted(self, X, function, width, dtype)

    def _latent(
        self, X: Any, settings: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Setting], list[tuple[Array, Array]]]:
        """The settings in full, and mean and variance for each, in standardised units: [n], with
        several latent functions [n, C]."""
        new = self._new_rows(X)
        if isinstance(settings, Mapping):
            raise ValueError("settings must be a list of dicts; for one setting, a list of one.")
        chosen = [self._setting(changes) for changes in settings]
        results: list[Any] = [None] * len(chosen)
        for i, setting in enumerate(chosen):
            if setting.aggregation == "nested":
                results[i] = self._nested(new, setting)
        for is_grbcm in (False, True):
            here = [
                i
                for i, s in enumerate(chosen)
                if s.aggregation != "nested" and (s.aggregation == "grbcm") == is_grbcm
            ]
            if not here:
                continue
            committee, prior = self._committee_and_prior("grbcm" if is_grbcm else "", new)
            some = [chosen[i] for i in here]
            net = self._net(some, len(new))
            found = (
                self._stream(committee, new, some, prior)
                if net is None
                else self._routed(new, some, prior, net)
            )
            for i, result in zip(here, found, strict=True):
                results[i] = result
        unit = self._committee.unit
        return chosen, [(unit * mean, unit**2 * var) for mean, var in results]

    def _routed(
        self, new: Array, settings: list[Setting], prior: Prior, net: routing.Net
    ) -> list[tuple[Array, Array]]:
        committee = self._committee
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("predicting", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            guide = self._guided(engine)
            return routing.routed(committee, new, settings, prior, guide, net, engine, bar.update)

    def _net(self, settings: list[Setting], n: int) -> routing.Net | None:
        """Who is asked about n rows for all of the settings; None if one of them asks everyone, and
        then the others need no audit."""
        nets = []
        for setting in sorted(settings, key=routing.has_route):
            nets.append(self._route(setting))
            if not self._is_asked_by(nets[-1], n):
                return None
        return reduce(operator.or_, nets)

    def _is_asked_by(self, net: routing.Net, n: int) -> bool:
        """Whether the experts are asked about n rows as a net says, or everyone is."""
        guide = self._guide
        return net.experts > 0 and (guide is None or guide.spares(net.experts, n))

    def _nested(self, new: Array, setting: Setting) -> tuple[Array, Array]:
        committee, net = self._committee, self._route(setting)
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("predicting", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            asked = net.experts if self._is_asked_by(net, len(new)) else 0
            route = Route(self._guided(engine), asked) if asked else None
            mean, var = nested(committee, new, setting.n_nearest, engine, route, bar.update)
        # every expert's noise is its own: in y-space the same combination is the best
        return mean, var + (committee.theta.noise_variance if setting.space == "y" else 0.0)

    def _moments(self, committee: Any, new: Array) -> tuple[Array, Array]:
        with committee.engine(self.n_jobs) as engine:
            committee.prepare_once(engine)
            blocks = engine.map(
                lambda j: committee.moments(new, j, j + 1, engine), range(committee.n_experts)
            )
            means, variances = zip(*blocks, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the fitted model as a folder, `model.json` and its arrays, for `healgp.load`.

        A model that is there already is replaced and stays whole until the new one is, also when
        the process is killed meanwhile. A callable `partition` comes back as the labels it gave.
        """
        persistence.save(self, path)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_committee")

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "_committee" not in state:
            return state
        # as pairs, for formats whose dicts have plain keys only
        pairs = {name: list(state[name].items()) for name in _CHOSEN}
        return state | persistence.made_again() | pairs

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_committee" in state:
            state = state | {name: dict(state[name]) for name in _CHOSEN}
        super().__setstate__(state)


def _reporter(bar: tqdm, what: str, curve: list[float]) -> training.Report:
    """Moves the bar, and adds the objective to the training curve."""

    def report(iteration: int, value: float) -> None:
        curve.append(value)
        bar.update()
        bar.set_postfix({what: f"{value:.4f}"})

    return report
