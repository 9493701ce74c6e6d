"""What both estimators share: the parameters' checks, the partition, the settings, and the way from
new rows to aggregated latent functions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
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
from healgp.estimators.scaling import Scaling
from healgp.estimators.validation import validated
from healgp.experts.committee import Committee
from healgp.experts.sparse import SparseCommittee
from healgp.kernels import KERNELS, SHAPE_NAMES, Hyperparameters
from healgp.likelihoods import Classification, Gaussian, Likelihood, Poisson
from healgp.metrics import log_density
from healgp.nested import Route, nested
from healgp.prediction import Prior, Setting, stream

Array = np.ndarray

#: What was chosen from the training rows, by setting.
_CHOSEN = ("_curves", "_rules", "_routes")

#: Of the memory budget, the share for factors; the rest is for the rows that are predicted.
_FACTOR_SHARE = 0.8


class ExpertGP(BaseEstimator):
    """The common part of `ExpertGPRegressor` and `ExpertGPClassifier`."""

    #: What a setting of `predict_many` may change.
    _setting_names: tuple[str, ...] = ("aggregation", "weighting", "temperature",
                                       "normalize_weights")  # fmt: skip

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
        """A fit that fails leaves an earlier one as it was: what scikit-learn's validation has
        already replaced comes back."""
        names = ("n_features_in_", "feature_names_in_")
        before = {name: self.__dict__[name] for name in names if name in self.__dict__}
        try:
            with enough_memory():
                yield
        except BaseException:
            for name in names:
                self.__dict__.pop(name, None)
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
            from healgp.engines.dask import ShardedCommittee, ShardedSparse

            return ShardedCommittee, ShardedSparse
        return Committee, SparseCommittee

    def _training_rows(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        """X [N, D] and y [N], checked: arrays, or with engine="dask" the rows of collections."""
        if self.engine == "dask":
            from healgp.engines import dask, rows

            dask.current_client()  # before any work, an error where there is none
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
        likelihood: Likelihood, n_inducing: int, with_kernel: bool, scaling: Scaling,
        rng: np.random.Generator,
    ) -> tuple[Any, Array, float]:  # fmt: skip
        """A committee of sparse experts, trained; its training curve; and its ELBO."""
        curve: list[float] = []
        pieces = np.ones(max(len(rows), len(y) // 100))
        with LocalEngine(self.n_jobs, pieces) as engine:
            committee = self._kinds()[1].from_groups(
                Z, y, rows, kernel, theta, likelihood, n_inducing, rng, engine
            )
            max_iter = self.max_iter
            if not with_kernel and max_iter > 0:
                try:
                    committee.theta = selection.choose_signal(committee, rng, engine)
                except KeyboardInterrupt:
                    warnings.warn(
                        "Training was interrupted; the model uses the best so far.", stacklevel=3
                    )
                    max_iter = 0
            limit = max(training.TRAINING_SITES // likelihood.n_latent, 10 * n_inducing)
            trained = committee
            if committee.sizes.max() > limit:
                trained = committee.sample(limit, np.arange(committee.n_experts), rng)
            with (
                self._journal(committee, rows, scaling) as journal,
                self._progress("training", max_iter, "it") as bar,
            ):
                found = training.train_sparse(
                    trained, with_kernel, self.ard, max_iter, scaling.x_left, scaling.y_left,
                    engine, _reporter(bar, "ELBO per row", curve), journal,
                )  # fmt: skip
                bar.total = bar.n
            committee.theta, committee.likelihood = trained.theta, trained.likelihood
            committee.Z, committee.factor_bytes = trained.Z, self._factor_bytes()
            elbo = committee.prepare(engine)
            if not found.stopped:
                journal.done()
        return committee, np.array(curve), elbo

    def _journal(self, committee: Any, rows: list[Array], scaling: Scaling) -> Journal:
        """The evaluations of training, where they are to be kept."""
        elsewhere = ("checkpoint", "engine", "n_jobs", "verbose", "memory_budget", "partition")
        parameters = {k: v for k, v in self.get_params().items() if k not in elsewhere}
        return Journal(
            self.checkpoint, type(self).__name__, parameters, committee.kernel, committee.offsets,
            committee.theta.to_log(True, True), np.concatenate(rows), *vars(scaling).values(),
        )  # fmt: skip

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
        self._grbcm: tuple[Any, Committee, Array, Array] | None = None
        self._calibration_rows = calibration.sample_rows(committee.n_rows, committee.n_experts, rng)
        self._curves: dict[Setting, calibration.Curve] = {}
        self._rules: dict[Setting, calibration.Comparison] = {}
        self._routes: dict[tuple[Setting, float], int] = {}
        self._guide: routing.Guide | None = None
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

    def _progress(self, what: str, total: int, unit: str) -> tqdm:
        return tqdm(total=total, desc=what, unit=unit, disable=not self.verbose)

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

    # ---- temperature -----------------------------------------------------------------------

    @property
    def temperature_(self) -> float:
        """The temperature that `predict` uses."""
        check_is_fitted(self)
        return float(self._setting({}).temperature)

    @property
    def aggregation_(self) -> str:
        """The rule that `predict` uses."""
        check_is_fitted(self)
        return self._setting({}).aggregation

    @property
    def temperature_curve_(self) -> tuple[Array, Array]:
        """Temperatures, and the NLPD of training rows under them, each left out of its own expert
        (after `calibrate`, of the rows given to it); of y in standardised units."""
        check_is_fitted(self)
        found = self._curve(self._tempered())
        return found.temperatures, found.nlpd

    def calibrate(self, X: Any, y: Any) -> Self:
        """Chooses the temperature anew, on rows that were held out instead of by leave-one-out;
        needs temperature="auto"."""
        new, setting = self._new_rows(X), self._tempered()
        targets = self._new_targets(y, len(new))
        if not _is_auto(self.temperature):
            raise ValueError(
                f"temperature={self.temperature!r} was given, and calibrate() chooses it: "
                "set_params(temperature='auto') first."
            )
        committee, prior = self._committee_and_prior(setting.aggregation, new)
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("calibrating", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            self._curves[_key(setting)] = calibration.curve(
                committee, new, setting, prior, engine, self._log_density(targets), bar.update
            )
        return self

    def _tempered(self) -> Setting:
        """The estimator's setting but for its temperature, which it must have."""
        rule = "gpoe" if _is_auto(self.aggregation) else self.aggregation
        setting = self._setting({"temperature": calibration.INDIFFERENT, "aggregation": rule})
        if not calibration.has_temperature(setting):
            raise ValueError(
                f"aggregation={self.aggregation!r} with weighting={self.weighting!r} has no "
                "temperature."
            )
        return setting

    def _new_targets(self, y: Any, n: int) -> Array:
        """Targets of n new rows as the committee knows them."""
        raise NotImplementedError

    def _curve(self, setting: Setting) -> calibration.Curve:
        """NLPD over the temperatures for a rule, by leave-one-out; it is worked out once."""
        key = _key(setting)
        if key not in self._curves:
            self._curves[key] = self._leave_one_out(setting)
            if self.verbose:
                self._say(setting, self._curves[key])
        return self._curves[key]

    def _leave_one_out(self, setting: Setting) -> calibration.Curve:
        rows, base = self._calibration_rows, self._committee
        if base.n_experts == 1:
            return calibration.Curve(calibration.GRID, np.zeros(len(calibration.GRID)))
        if setting.aggregation == "grbcm" and self._communication is not None:
            rows = np.setdiff1d(rows, self._communication)
            if not len(rows):
                return calibration.Curve(calibration.GRID, np.zeros(len(calibration.GRID)))
        new, targets = base.inputs(rows), base.targets(rows)
        committee, prior = self._committee_and_prior(setting.aggregation, new)
        if setting.aggregation == "grbcm" and self._grbcm is not None:
            rows = self._grbcm[3][rows]
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("calibrating", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            without = calibration.LeaveOneOut(committee, rows, engine)
            return calibration.curve(
                without, new, setting, prior, engine, self._log_density(targets), bar.update
            )

    @property
    def aggregation_scores_(self) -> dict[str, float]:
        """NLPD by leave-one-out of the rules that aggregation="auto" chose from, of y in
        standardised units; empty where nothing was compared."""
        check_is_fitted(self)
        if not _is_auto(self.aggregation):
            return {}
        return dict(self._compared(self._setting({"aggregation": "gpoe"})).scores)

    @property
    def deviation_scale_(self) -> float:
        """What predictive deviations are multiplied by. With aggregation="auto" it is the root mean
        square of (y − mean) / deviation at training rows, each left out of its own expert, where
        that gains at least 0.01 in their NLPD; otherwise 1."""
        check_is_fitted(self)
        return self._setting({}).scale

    def _compared(self, setting: Setting) -> calibration.Comparison:
        """The two rules at training rows, each left out of its own expert: "gpoe", or "nested"
        where it gains enough for its cost; it is worked out once."""
        committee, key = self._committee, replace(setting, aggregation="gpoe", space="f")
        if not committee.is_exact or committee.n_experts == 1:
            return calibration.Comparison({}, "gpoe")
        if key not in self._rules:
            rows = self._calibration_rows
            new, targets = committee.inputs(rows), committee.targets(rows)
            prior, density = self._committee_and_prior("gpoe", new)[1], self._log_density(targets)
            with committee.engine(self.n_jobs) as engine:
                committee.prepare_once(engine)
                without: Any = calibration.LeaveOneOut(committee, rows, engine)
                one = stream(without, new, [key], prior, engine)[0]
                other = nested(without, new, setting.n_nearest, engine)

            def judged(mean: Array, var: Array) -> tuple[Array, float]:
                values = density(key, mean, var)
                if self.max_iter == 0:  # θ was given, and so are the deviations
                    return values, 1.0
                z = (targets - mean) / np.sqrt(var + self._noise())
                return calibration.scaled(values, z)

            found = calibration.Comparison.of("gpoe", judged(*one), "nested", judged(*other))
            if self.verbose:
                scores = ", ".join(f"{rule} {v:.4f}" for rule, v in found.scores.items())
                print(f"aggregation: {found.chosen}; NLPD by leave-one-out: {scores}")
                if found.scale != 1.0:
                    print(f"deviations are multiplied by {found.scale:.3g}")
            self._rules[key] = found
        return self._rules[key]

    def _log_density(self, targets: Array) -> Callable[[Setting, Array, Array], Array]:
        """log p of targets as a function of a setting and of latent moments in the committee's
        unit."""
        committee = self._committee
        likelihood, unit = getattr(committee, "likelihood", None), committee.unit

        def function(setting: Setting, mean: Array, var: Array) -> Array:
            if isinstance(likelihood, Classification):
                mean, var = (v.reshape(len(v), -1) for v in (mean, var))
                return likelihood.log_density(targets, unit * mean, unit**2 * var)
            if isinstance(likelihood, Poisson):
                return likelihood.log_density(targets, unit * mean, unit**2 * var)
            noise = committee.theta.noise_variance if setting.space == "f" else 0.0
            return log_density(targets, mean, np.sqrt(var + noise))

        return function

    def _say(self, setting: Setting, found: calibration.Curve) -> None:
        what = f"temperature of {setting.aggregation} with {setting.weighting}"
        if found.matters:
            chosen = found.chosen(self._committee.n_experts)
            print(f"{what}: {chosen:.3g}, NLPD by leave-one-out {found.nlpd.min():.4f}")
        else:
            print(f"{what}: it does not matter here, all predict alike")

    def _setting(self, changes: Mapping[str, Any], fitting: bool = False) -> Setting:
        names = self._setting_names
        unknown = set(changes) - set(names)
        if unknown:
            raise ValueError(
                f"A setting has {', '.join(sorted(map(repr, unknown)))}; it may have: "
                f"{', '.join(names)}."
            )
        given = {"space": "f"} | {name: getattr(self, name) for name in names} | dict(changes)
        automatic, best_rule = _is_auto(given["temperature"]), _is_auto(given["aggregation"])
        if automatic:
            given["temperature"] = calibration.INDIFFERENT
        if best_rule:
            given["aggregation"] = "gpoe"
        setting = Setting(**given)
        sparse = self._is_sparse() if fitting else not self._committee.is_exact
        if setting.aggregation in ("grbcm", "nested") and sparse:
            raise ValueError(
                f"aggregation={setting.aggregation!r} needs exact experts, and these are sparse. "
                "Choose another rule, or for a Gaussian likelihood n_inducing=None."
            )
        if fitting:
            return setting
        if automatic and calibration.has_temperature(setting):
            chosen = self._curve(setting).chosen(self._committee.n_experts)
            setting = replace(setting, temperature=chosen)
        if best_rule:
            found = self._compared(setting)
            setting = replace(setting, aggregation=found.chosen, scale=found.scale)
        return setting

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

        return rows.predicted(self, X, function, width, dtype) if rows.is_collection(X) else None

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
            asked = [self._route(setting) for setting in some]
            found = (
                self._routed(new, some, prior, max(asked))
                if min(asked) > 0
                else self._stream(committee, new, some, prior)
            )
            for i, result in zip(here, found, strict=True):
                results[i] = result
        unit = self._committee.unit
        return chosen, [(unit * mean, unit**2 * var) for mean, var in results]

    def _stream(
        self, committee: Any, new: Array, settings: list[Setting],
        prior: Prior,
    ) -> list[tuple[Array, Array]]:  # fmt: skip
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("predicting", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            return stream(committee, new, settings, prior, engine, bar.update)

    def _routed(
        self, new: Array, settings: list[Setting], prior: Prior, asked: int
    ) -> list[tuple[Array, Array]]:
        committee = self._committee
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("predicting", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            guide = self._guided(engine)
            return routing.routed(committee, new, settings, prior, guide, asked, engine, bar.update)

    def _guided(self, engine: LocalEngine) -> routing.Guide:
        if self._guide is None:
            self._guide = routing.Guide(self._committee, engine)
        return self._guide

    def _noise(self) -> float:
        """The noise variance of y, where it has one beside the latent function."""
        likelihood = getattr(self._committee, "likelihood", Gaussian())
        return self._committee.theta.noise_variance if isinstance(likelihood, Gaussian) else 0.0

    def _route(self, setting: Setting) -> int:
        """How many experts are asked under a setting (by the nested rule, to find the most
        confident); 0 where everyone is asked. It is worked out once."""
        committee, key = self._committee, (setting, float(self.routing_tol))
        if self.routing is None or not routing.has_route(setting):
            return 0
        if committee.n_experts < routing.LEAST_EXPERTS:
            return 0
        if key not in self._routes:
            is_nested = setting.aggregation == "nested"
            limit = routing.AUDITED_NESTED if is_nested else routing.AUDITED
            rows = self._calibration_rows
            rows = rows[:: -(-len(rows) // limit)]
            new = committee.inputs(rows)
            with committee.engine(self.n_jobs) as engine:
                committee.prepare_once(engine)
                without: Any = calibration.LeaveOneOut(committee, rows, engine)
                guide = self._guided(engine)
                if is_nested:
                    self._routes[key] = routing.audit_nested(
                        lambda asked: nested(
                            without, new, setting.n_nearest, engine,
                            None if asked is None else Route(guide, asked),
                        ), setting.n_nearest, committee.n_experts, self._noise(), self.routing_tol,
                    )  # fmt: skip
                else:
                    prior = self._committee_and_prior("", new)[1]
                    self._routes[key] = routing.audit(
                        without, new, setting, prior, self._noise(), guide, self.routing_tol,
                        engine,
                    )  # fmt: skip
        return self._routes[key]

    def _nested(self, new: Array, setting: Setting) -> tuple[Array, Array]:
        committee, asked = self._committee, self._route(setting)
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("predicting", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
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

    def _committee_and_prior(self, aggregation: str, new: Array) -> tuple[Any, Prior]:
        """The experts to ask and what they fall back to: for grBCM, experts that know the
        communication set as well, and the communication expert."""
        if aggregation != "grbcm":
            committee = self._committee
            return committee, Prior(0.0, committee.theta.signal_variance / committee.unit**2)
        if self._grbcm is None:
            if not self._committee.is_exact or self._communication is None:
                raise RuntimeError("a sparse committee has no communication set")
            self._grbcm = self._committee.with_communication(self._communication)
        augmented, communication, *_ = self._grbcm
        setting = Setting("poe", "ones", 0.0, None, "f")  # one expert's product is the expert
        mean, var = self._stream(communication, new, [setting], Prior(0.0, 1.0))[0]
        return augmented, Prior(mean, var)

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
        return state | {"_grbcm": None, "_guide": None, "_centres": None} | pairs

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_committee" in state:
            state = state | {name: dict(state[name]) for name in _CHOSEN}
        super().__setstate__(state)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _key(setting: Setting) -> Setting:
    """A setting but for its temperature."""
    return replace(setting, temperature=calibration.INDIFFERENT)


def _reporter(bar: tqdm, what: str, curve: list[float]) -> training.Report:
    """Moves the bar, and adds the objective to the training curve."""

    def report(iteration: int, value: float) -> None:
        curve.append(value)
        bar.update()
        bar.set_postfix({what: f"{value:.4f}"})

    return report
