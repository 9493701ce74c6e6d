"""ExpertGPRegressor: validates, wires the parts together, stores what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from scipy.special import ndtri
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from tqdm import tqdm

from healgp import metrics, partition, training
from healgp.checks import check_bool, check_number, choose
from healgp.engines.local import LocalEngine, blas_threads, effective_n_jobs
from healgp.estimators.scaling import Scaling
from healgp.experts.committee import Committee
from healgp.kernels import KERNELS, SHAPE_NAMES, Hyperparameters
from healgp.prediction import Prior, Setting, stream

Array = np.ndarray

_SETTING_NAMES = ("aggregation", "weighting", "temperature", "normalize_weights", "space")


class ExpertGPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression by a committee of small exact experts.

    The rows are divided among experts of about `points_per_expert` rows that share one kernel and
    one noise; at prediction their Gaussians are combined with weights that follow each expert's
    confidence at the row (a tempered softmax), which keeps the mean from wandering and the error
    bars honest. Cost grows linearly with the number of rows.

    Parameters
    ----------
    points_per_expert : int or None, default=500
        There are int(N / points_per_expert) experts, at least one. None is one expert for all
        rows: the exact GP.
    partition : {"kmeans", "random", "balanced"}, array of labels or callable, default="kmeans"
        Which rows go together. An array has one label per row; a callable gets
        (X, n_experts, rng) and returns labels.
    kernel : {"rbf", "matern12", "matern32", "matern52", "rational_quadratic"}, default="rbf"
    ard : bool, default=True
        A lengthscale of its own for every column; otherwise one for all.
    aggregation : {"poe", "gpoe", "bcm", "rbcm", "grbcm", "barycenter", "wasserstein"}, \
            default="gpoe"
        The rule that combines the experts (see `healgp.aggregation`).
    weighting : {"ones", "uniform", "entropy", "softmax_variance", "softmax_entropy", \
            "softmax_wasserstein"}, default="softmax_variance"
        The experts' weights (see `healgp.weights`); "poe" and "bcm" always use ones.
    temperature : float, default=100.0
        Multiplies the score in the softmax: larger is sparser. In units of standardised y, so that
        100 means the same on every data set (with standardize=False, in units of y itself).
    normalize_weights : bool or None, default=None
        Whether weights add up to one. None: always for "gpoe" and the barycenters and for every
        softmax, never for "ones" and "entropy" in the other rules.
    space : {"f", "y"}, default="f"
        Combine predictions of the latent function, or of noisy observations.
    standardize : bool, default=True
        Scale X and y to mean 0 and deviation 1 inside; predictions come back in the units of y.
    lengthscale, signal_variance, noise_variance : float, default=1.0, 1.0, 0.1
        Where training starts, in standardised units. lengthscale may be an array of one per column.
    max_iter : int, default=100
        Most iterations of L-BFGS-B. 0 keeps the starting values. θ stays within lengthscale
        [0.02, 200], signal variance [1e-4, 1e4], noise variance [1e-5, 100] and, for
        "rational_quadratic", alpha [0.01, 1000], in units of the deviations of X and y. A
        lengthscale at 200 means that its column does not matter.
    n_jobs : int or None, default=None
        Threads. None is all cores, one inside a worker of joblib or Dask. The result does not
        depend on it, but for rounding where there are fewer experts than threads.
    random_state : int, RandomState or None, default=None
        Decides the partition and the communication set of "grbcm".
    verbose : int, default=0
        1 shows progress bars.

    Attributes
    ----------
    n_experts_ : int
    labels_ : array [N], the expert of each training row
    lengthscales_ : array [D]
    signal_variance_, noise_variance_ : float (these three in standardised units)
    alpha_ : float, with kernel="rational_quadratic"
    temperature_ : float
    log_marginal_likelihood_ : float, the sum over experts, of standardised y
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from healgp import ExpertGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (2000, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(2000)
    >>> model = ExpertGPRegressor(points_per_expert=200, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> mean.round(1), std.round(1)
    (array([0.8]), array([0.1]))
    """

    def __init__(
        self,
        points_per_expert: int | None = 500,
        partition: Any = "kmeans",
        kernel: str = "rbf",
        ard: bool = True,
        aggregation: str = "gpoe",
        weighting: str = "softmax_variance",
        temperature: float = 100.0,
        normalize_weights: bool | None = None,
        space: str = "f",
        standardize: bool = True,
        lengthscale: Any = 1.0,
        signal_variance: float = 1.0,
        noise_variance: float = 0.1,
        max_iter: int = 100,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.points_per_expert = points_per_expert
        self.partition = partition
        self.kernel = kernel
        self.ard = ard
        self.aggregation = aggregation
        self.weighting = weighting
        self.temperature = temperature
        self.normalize_weights = normalize_weights
        self.space = space
        self.standardize = standardize
        self.lengthscale = lengthscale
        self.signal_variance = signal_variance
        self.noise_variance = noise_variance
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    # ---- fitting ---------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Divides the rows, finds the shared hyperparameters, prepares the experts.

        X is [N, D], y is [N], both finite. Ctrl-C ends training with the best θ so far.
        """
        self._check_parameters()
        X, y = validate_data(
            self, X, y, dtype=np.float64, order="C", y_numeric=True, multi_output=True
        )
        if y.ndim == 2 and y.shape[1] > 1:
            raise ValueError(
                f"y has {y.shape[1]} columns, and ExpertGPRegressor predicts one output. Fit one "
                "model per column, for instance with sklearn.multioutput.MultiOutputRegressor."
            )
        y = column_or_1d(y, dtype=np.float64, warn=True)
        N, D = X.shape
        theta = self._starting_theta(D)
        scaling = Scaling.of(X, y, self.standardize)
        Z = scaling.inputs(X)

        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        rng = np.random.default_rng(seed)
        m = N if self.points_per_expert is None else min(self.points_per_expert, N)
        with blas_threads(1):  # scikit-learn's k-means sets and restores BLAS's threads as well
            labels = partition.labels_of(self.partition, X, Z, N // m, rng)
        rows = partition.groups(labels)
        committee = Committee.from_groups(Z, scaling.targets(y), rows, self.kernel, theta)
        # The communication set of grBCM, as positions in the committee's order of rows.
        communication = np.sort(rng.choice(N, m, replace=False))

        with (
            LocalEngine(self.n_jobs, committee.sizes) as engine,
            self._progress("training", self.max_iter, "it") as bar,
        ):

            def report(iteration: int, value: float) -> None:
                bar.update()
                bar.set_postfix({"log p per row": f"{value:.4f}"})

            found = training.train(
                committee, self.ard, self.max_iter, scaling.x_left, scaling.y_left, engine, report
            )
            bar.total = bar.n  # converged: the bar is full
            committee.theta = theta = found.theta
            log_likelihood = committee.prepare(engine)

        # All at once, so that a fit that fails leaves an earlier one as it was.
        self._scaling, self._committee, self._communication = scaling, committee, communication
        self._grbcm: tuple[Committee, Committee, Array] | None = None
        self.labels_, self.n_experts_ = labels, len(rows)
        self.n_iter_, self.log_marginal_likelihood_ = found.n_iter, log_likelihood
        self.lengthscales_ = theta.lengthscales
        self.signal_variance_ = theta.signal_variance
        self.noise_variance_ = theta.noise_variance
        for name in SHAPE_NAMES.values():  # those of another kernel, from an earlier fit, go
            self.__dict__.pop(name + "_", None)
        if self.kernel in SHAPE_NAMES:
            setattr(self, SHAPE_NAMES[self.kernel] + "_", theta.shape)
        return self

    def _check_parameters(self) -> None:
        if self.points_per_expert is not None:
            check_number("points_per_expert", self.points_per_expert, 1, integer=True)
        partition.check(self.partition)
        choose("kernel", self.kernel, tuple(KERNELS))
        check_bool("ard", self.ard)
        check_bool("standardize", self.standardize)
        self._setting({})
        for name in ("signal_variance", "noise_variance"):
            check_number(name, getattr(self, name), 0, positive=True)
        check_number("max_iter", self.max_iter, 0, integer=True)
        effective_n_jobs(self.n_jobs)

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
            float(self.noise_variance),
        )

    def _progress(self, what: str, total: int, unit: str) -> tqdm:
        return tqdm(total=total, desc=what, unit=unit, disable=not self.verbose)

    # ---- prediction ------------------------------------------------------------------------

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of y at the rows of X [n, D], and its standard deviation with the noise included."""
        mean, std = self.predict_many(X, [{}])[0]
        return (mean, std) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """Bounds (lower, upper) of the central interval that holds y with the given probability."""
        check_number("coverage", coverage, 0, positive=True)
        if coverage >= 1:
            raise ValueError(f"coverage={coverage!r} must be below 1; for 95 % it is 0.95.")
        mean, std = self.predict_many(X, [{}])[0]
        half = ndtri((1.0 + coverage) / 2.0) * std
        return mean - half, mean + half

    def predict_many(
        self, X: Any, settings: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Array, Array]]:
        """`predict(X, return_std=True)` under several settings, asking every expert only once.

        Each setting is a dict over aggregation, weighting, temperature, normalize_weights and
        space; what it leaves out is as in the estimator. Returns one (mean, std) per setting.
        """
        results = []
        for setting, (mean, var) in zip(*self._latent(X, settings), strict=True):
            noise = self._committee.theta.noise_variance if setting.space == "f" else 0.0
            results.append((self._scaling.mean(mean), self._scaling.std(var + noise)))
        return results

    def predict_f(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the latent function, in the units of y (and their square)."""
        check_is_fitted(self)
        if self.space == "y":
            raise ValueError(
                "With space='y' the experts' noisy predictions are combined, and there is no "
                "prediction of the latent function. Use space='f'."
            )
        mean, var = self._latent(X, [{}])[1][0]
        return self._scaling.mean(mean), self._scaling.var(var)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """log p(y_i | x_i) of each row, of y in its own units."""
        mean, std = self.predict_many(X, [{}])[0]
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        return metrics.log_density(y, mean, std)

    def expert_moments(self, X: Any) -> tuple[Array, Array]:
        """Latent mean and variance [J, n] of each expert, in the units of y: for a look at a modest
        number of rows."""
        new = self._new_rows(X)
        mean, var = self._moments(self._committee, new)
        return self._scaling.mean(mean), self._scaling.var(var)

    def expert_weights(self, X: Any) -> Array:
        """Weight [J, n] of each expert at each row under the estimator's setting: for a look at a
        modest number of rows."""
        new, setting = self._new_rows(X), self._setting({})
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

    @property
    def temperature_(self) -> float:
        """The temperature that `predict` uses."""
        check_is_fitted(self)
        return float(self.temperature)

    def _setting(self, changes: Mapping[str, Any]) -> Setting:
        unknown = set(changes) - set(_SETTING_NAMES)
        if unknown:
            raise ValueError(
                f"A setting has {', '.join(sorted(map(repr, unknown)))}; it may have: "
                f"{', '.join(_SETTING_NAMES)}."
            )
        return Setting(**({name: getattr(self, name) for name in _SETTING_NAMES} | dict(changes)))

    def _new_rows(self, X: Any) -> Array:
        check_is_fitted(self)
        return self._scaling.inputs(
            validate_data(self, X, reset=False, dtype=np.float64, order="C")
        )

    def _latent(
        self, X: Any, settings: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Setting], list[tuple[Array, Array]]]:
        """The settings in full, and mean and variance for each, in standardised units."""
        new = self._new_rows(X)
        if isinstance(settings, Mapping):
            raise ValueError("settings must be a list of dicts; for one setting, a list of one.")
        chosen = [self._setting(changes) for changes in settings]
        results: list[Any] = [None] * len(chosen)
        for is_grbcm in (False, True):
            here = [i for i, s in enumerate(chosen) if (s.aggregation == "grbcm") == is_grbcm]
            if not here:
                continue
            committee, prior = self._committee_and_prior("grbcm" if is_grbcm else "", new)
            for i, result in zip(
                here, self._stream(committee, new, [chosen[i] for i in here], prior), strict=True
            ):
                results[i] = result
        return chosen, results

    def _stream(
        self, committee: Committee, new: Array, settings: list[Setting], prior: Prior
    ) -> list[tuple[Array, Array]]:
        with (
            LocalEngine(self.n_jobs, committee.sizes) as engine,
            self._progress("predicting", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            return stream(committee, new, settings, prior, engine, bar.update)

    def _moments(self, committee: Committee, new: Array) -> tuple[Array, Array]:
        with LocalEngine(self.n_jobs, committee.sizes) as engine:
            committee.prepare_once(engine)
            blocks = engine.map(
                lambda j: committee.moments(new, j, j + 1, engine), range(committee.n_experts)
            )
            means, variances = zip(*blocks, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    def _committee_and_prior(self, aggregation: str, new: Array) -> tuple[Committee, Prior]:
        """The experts to ask and what they fall back to: for grBCM, experts that know the
        communication set as well, and the communication expert."""
        if aggregation != "grbcm":
            return self._committee, Prior(0.0, self._committee.theta.signal_variance)
        if self._grbcm is None:
            self._grbcm = self._committee.with_communication(self._communication)
        augmented, communication, _ = self._grbcm
        setting = Setting("poe", "ones", 0.0, None, "f")  # one expert's product is the expert
        mean, var = self._stream(communication, new, [setting], Prior(0.0, 1.0))[0]
        return augmented, Prior(mean, var)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_committee")

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state | {"_grbcm": None} if "_grbcm" in state else state
