"""ExpertGPRegressor: validates, wires the parts together, stores what they found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from scipy.special import ndtr
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d

from healgp import joint, persistence, selection, training
from healgp.checks import check_number, choose
from healgp.estimators.base import ExpertGP, _reporter
from healgp.estimators.partial import PartialFit
from healgp.estimators.scaling import Scaling, blockwise
from healgp.estimators.validation import validated_target
from healgp.experts.committee import Committee
from healgp.likelihoods import Gaussian, Likelihood, Poisson
from healgp.prediction import Setting

Array = np.ndarray

#: Inducing inputs of an expert for counts, where experts cannot be exact.
_N_INDUCING = 100


@persistence.estimator
class ExpertGPRegressor(RegressorMixin, PartialFit):
    """Gaussian process regression by a committee of small experts: of measurements, and of counts.

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
    partition_metric : {"auto", "plain"}, default="auto"
        "auto" divides the rows a second time, in inputs divided by the lengthscales found so far,
        and keeps what explains the data better: columns that do not matter then do not decide which
        rows belong together. For "kmeans" and "balanced" with ard=True. "plain" divides them once.
    kernel : {"auto", "rbf", "matern12", "matern32", "matern52", "rational_quadratic"}, \
            default="auto"
        "auto" trains every one of them briefly on a few experts and takes the one with the largest
        marginal likelihood.
    ard : bool, default=True
        A lengthscale of its own for every column; otherwise one for all.
    aggregation : {"auto", "poe", "gpoe", "bcm", "rbcm", "grbcm", "barycenter", "wasserstein", \
            "nested"}, default="auto"
        The rule that combines the experts (see `healgp.aggregation`). "nested" is the best linear
        combination of the `n_nearest` most confident experts at each row, given how they vary
        together (see `healgp.nested`); it costs more. "auto" is "nested" where it predicts training
        rows clearly better, each left out of its own expert (by 0.002 in NLPD, beyond 200 experts
        in proportion to them more), else "gpoe".
    weighting : {"ones", "uniform", "entropy", "softmax_variance", "softmax_entropy", \
            "softmax_wasserstein"}, default="softmax_variance"
        The experts' weights (see `healgp.weights`); "poe" and "bcm" always use ones.
    temperature : float or "auto", default="auto"
        Multiplies the score in the softmax: larger is sparser. "auto" takes what predicts a sample
        of training rows best, each left out of its own expert (see `healgp.calibration`); with 32
        experts or more the largest that is within 0.002 of it, for it is cheaper (beyond 200 in
        proportion to them more). In units of standardised y, so that 100 means the same on every
        data set (with standardize=False, in units of y itself; for counts, in units of the prior
        deviation of f).
    normalize_weights : bool or None, default=None
        Whether weights add up to one. None: always for "gpoe" and the barycenters and for every
        softmax, never for "ones" and "entropy" in the other rules. False leaves weights as they
        are; in "grbcm" with "entropy" the first expert's too, for which Liu et al. have one.
    space : {"f", "y"}, default="f"
        Combine predictions of the latent function, or of noisy observations.
    n_nearest : int, default=8
        Experts that "nested" combines at each row.
    likelihood : {"gaussian", "poisson"}, default="gaussian"
        "poisson" is for counts: y ~ Poisson(exp f), and predictions are rates.
    n_inducing : int or None, default=None
        None is exact experts. A number makes them sparse: each sums its rows up in that many
        inducing inputs, which are trained (with points_per_expert=None it is one sparse
        variational GP). For counts experts are always sparse, and None is 100.
    standardize : bool, default=True
        Scale X and y (counts: X only) to mean 0 and deviation 1 inside; predictions come back in
        the units of y.
    lengthscale, signal_variance, noise_variance : float, default=1.0, 1.0, 0.1
        Where training starts, in standardised units. lengthscale may be an array of one per column.
    max_iter : int, default=100
        Most iterations of L-BFGS-B: with training="progressive" at every stage, with sparse experts
        twice, for a start on exact ones and for the ELBO; and again from longer lengthscales where
        nothing but noise was found. 0 keeps the starting values. θ stays within lengthscale [0.02,
        200], signal variance [1e-4, 1e4], noise variance [1e-5, 100] and, for
        "rational_quadratic", alpha [0.01, 1000], in units of the deviations of X and y. A
        lengthscale at 200 means that its column does not matter.
    training : {"progressive", "full"}, default="progressive"
        "progressive" finds θ on 32 experts drawn at random, then on four times as many, and so on,
        until more of them would gain nothing; up to 63 experts, and where it goes on gaining, it
        ends with all. "full" trains on all from the start. For exact experts; sparse ones are
        always trained in full.
    routing : {"auto", None}, default="auto"
        "auto" has near experts say in brief what they think of a row, and asks the most confident
        of them in full, where weights are a softmax and there are 32 experts or more, or the rule
        is "nested" and there are 128; and where training rows have shown before that it agrees with
        asking everyone. None asks everyone.
    routing_tol : float, default=1e-3
        How closely it must agree, in predictive standard deviations.
    memory_budget : float or None, default=None
        Bytes that what is kept for predictions may take beside the rows themselves; None is a
        quarter of the machine's memory. Experts' factors are kept whole, else as triangles, and
        what does not fit is made again at each prediction, which is slower. Predictions are the
        same.
    engine : {"local", "dask"}, default="local"
        "local" is the threads of this machine. "dask" has the experts on the workers of the current
        `dask.distributed` client; X and y may then be Dask arrays or DataFrames too, whose rows
        never come together in one place.
    checkpoint : path or None, default=None
        A file for what training has found so far, as it goes. A fit that was killed and is begun
        again, on the same rows with the same parameters (random_state a number), goes on from
        there, to the same model; the file is gone when it has ended.
    n_jobs : int or None, default=None
        Threads. None is all cores, one inside a worker of joblib or Dask. The result does not
        depend on it, but for rounding where there are fewer experts than threads.
    random_state : int, RandomState or None, default=None
        Decides the partition, the communication set of "grbcm", and the rows that sparse experts
        are first trained on.
    verbose : int, default=0
        1 shows progress bars.

    Attributes
    ----------
    n_experts_ : int
        The number of experts.
    labels_ : array [N]
        The expert of each training row.
    lengthscales_ : array [D]
        In standardised units, as the next two.
    signal_variance_ : float
        The prior variance of f.
    noise_variance_ : float
        The variance of the noise; not of counts.
    alpha_ : float
        The shape of kernel="rational_quadratic".
    kernel_ : str
        The kernel that is used.
    kernel_scores_ : dict
        The marginal likelihood per row of each kernel that was compared; empty if one was given.
    aggregation_ : str
        The rule that `predict` uses.
    aggregation_scores_ : dict
        The NLPD by leave-one-out of the rules that were compared, tails included.
    deviation_scale_ : float
        What predictive deviations are multiplied by: with aggregation="auto" the root mean square
        of (y − mean) / deviation at training rows, each left out of its own expert, where that
        gains 0.01 or more in their NLPD and is beyond chance; otherwise 1. Far from all training
        rows a scale below 1 is not used, for there y varies as the prior does.
    degrees_of_freedom_ : float
        The shape of y's distribution about its mean. With aggregation="auto" it is Student's t
        where the same rows show tails that are heavier than Gaussian (a gain of 0.01 or more in
        their NLPD); intervals and densities follow it, and go over to the Gaussian far from all
        training rows (see `healgp.deviations`). Otherwise infinity, the Gaussian.
    temperature_ : float
        The temperature that `predict` uses.
    temperature_curve_ : tuple of arrays
        The temperatures that were compared, and their NLPD.
    log_marginal_likelihood_ : float
        The sum over experts, of standardised y; with exact experts.
    elbo_ : float
        A lower bound of the same, with sparse experts.
    n_iter_ : int
        Iterations of training.
    training_curve_ : array [n_iter_]
        The objective per row after each of them (with training="progressive", of the experts of its
        stage; where training began again, of both beginnings).

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

    _setting_names = (*ExpertGP._setting_names, "space", "n_nearest")

    def __init__(
        self,
        points_per_expert: int | None = 500,
        partition: Any = "kmeans",
        partition_metric: str = "auto",
        kernel: str = "auto",
        ard: bool = True,
        aggregation: str = "auto",
        weighting: str = "softmax_variance",
        temperature: float | str = "auto",
        normalize_weights: bool | None = None,
        space: str = "f",
        n_nearest: int = 8,
        likelihood: str = "gaussian",
        n_inducing: int | None = None,
        standardize: bool = True,
        lengthscale: Any = 1.0,
        signal_variance: float = 1.0,
        noise_variance: float = 0.1,
        max_iter: int = 100,
        training: str = "progressive",
        routing: str | None = "auto",
        routing_tol: float = 1e-3,
        memory_budget: float | None = None,
        engine: str = "local",
        checkpoint: Any = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.points_per_expert = points_per_expert
        self.partition = partition
        self.partition_metric = partition_metric
        self.kernel = kernel
        self.ard = ard
        self.aggregation = aggregation
        self.weighting = weighting
        self.temperature = temperature
        self.normalize_weights = normalize_weights
        self.space = space
        self.n_nearest = n_nearest
        self.likelihood = likelihood
        self.n_inducing = n_inducing
        self.standardize = standardize
        self.lengthscale = lengthscale
        self.signal_variance = signal_variance
        self.noise_variance = noise_variance
        self.max_iter = max_iter
        self.training = training
        self.routing = routing
        self.routing_tol = routing_tol
        self.memory_budget = memory_budget
        self.engine = engine
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    # ---- fitting ---------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Divides the rows, finds the shared hyperparameters, prepares the experts.

        X is [N, D], y is [N], both finite. Ctrl-C ends training with the best θ so far.
        """
        self._check_parameters()
        with self._all_or_nothing():
            return self._fit(X, y)

    def _validated(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        X, y = self._training_rows(X, y, y_numeric=True, multi_output=True, **options)
        if y.ndim == 2 and y.shape[1] > 1:
            raise ValueError(
                f"y has {y.shape[1]} columns, and ExpertGPRegressor predicts one output. Fit one "
                "model per column, for instance with sklearn.multioutput.MultiOutputRegressor."
            )
        if isinstance(y, np.ndarray):
            y = column_or_1d(y, dtype=np.float64, warn=True)
        return X, y

    def _fit(self, X: Any, y: Any) -> Self:
        X, y = self._validated(X, y)
        N, D = X.shape
        counts = self.likelihood == "poisson"
        if counts:
            blockwise(y, _check_counts)
        theta = self._starting_theta(D)
        scaling = Scaling.of(X, None if counts else y, self.standardize)
        Z, t = scaling.inputs(X), scaling.targets(y)
        rng = self._rng()
        labels, rows, m = self._partition(X, Z, rng)

        # All is stored at the end, so that a fit that fails leaves an earlier one as it was.
        if self._is_sparse():
            likelihood: Likelihood
            # log(½ + y) is finite, and near the log of the rate
            mean = sum(blockwise(y, np.sum)) / N or 0.5 / N
            level = sum(blockwise(y, lambda part: np.log(0.5 + part).sum())) / N if counts else 0.0

            def first(rows: Array) -> list[Array]:
                return [np.log(0.5 + y[rows]) - level if counts else t[rows]]

            chosen = selection.train_on_targets(
                Z, rows, first, self._kernels(), theta, self.ard, self.max_iter,
                scaling.x_left, rng, self.n_jobs,
            )  # fmt: skip
            self._say_kernel(chosen)
            theta, max_iter = chosen.theta, 0 if chosen.interrupted else self.max_iter
            likelihood = Poisson(np.log(mean)) if counts else Gaussian(np.log(theta.noise_variance))
            n_inducing = _N_INDUCING if self.n_inducing is None else self.n_inducing
            sparse, trained, elbo = self._fit_sparse(
                Z, t, rows, chosen.kernel, theta, likelihood, n_inducing, True, max_iter, scaling,
                rng,
            )  # fmt: skip
            if isinstance(sparse.likelihood, Poisson):  # f varies about the log of a mean
                scaling = replace(scaling, y_center=sparse.likelihood.parameter)
            self._store(sparse, scaling, rng)
            self.elbo_, self.kernel_scores_ = elbo, chosen.scores
            self.labels_, self.training_curve_, self.n_iter_ = labels, trained, len(trained)
            if not counts:
                self.noise_variance_ = sparse.theta.noise_variance
            self._choose_now()
            return self

        chosen = selection.Selection(self.kernel, theta, {})
        divide_again = self._may_divide_again() and len(rows) > 1
        if self.kernel == "auto" or divide_again:
            chosen = selection.choose_kernel(
                Z, t, rows, self._kernels(), theta, self.ard, self.max_iter, scaling.x_left,
                scaling.y_left, rng, self.n_jobs,
            )  # fmt: skip
            self._say_kernel(chosen)
        kind, max_iter = self._kinds()[0], self.max_iter
        if chosen.interrupted:
            max_iter = 0
        elif divide_again:
            try:
                again, rows_again, _ = self._partition(X, Z / chosen.theta.lengthscales, rng)
                # rows that are here are compared here, and those of a collection where they are
                here = Committee if isinstance(Z, np.ndarray) else kind
                old, new = (
                    here.from_groups(Z, t, some, chosen.kernel, chosen.theta)
                    for some in (rows, rows_again)
                )
                if selection.explains_better(old, new, self.n_jobs):
                    labels, rows = again, rows_again
                del old, new
            except KeyboardInterrupt:
                training.say_interrupted()
                max_iter = 0
        committee = kind.from_groups(Z, t, rows, chosen.kernel, chosen.theta)
        # The communication set of grBCM, as positions in the committee's order of rows.
        communication = np.sort(rng.choice(N, m, replace=False))
        with (
            committee.engine(self.n_jobs) as engine,
            self._journal(committee, rows, scaling, max_iter) as journal,
            self._progress("training", max_iter, "it") as bar,
        ):
            limits = self.ard, max_iter, scaling.x_left, scaling.y_left
            curve: list[float] = []
            report = _reporter(bar, "log p per row", curve)
            if self.training == "full":
                found = training.train(committee, *limits, engine, report, journal=journal)
            else:
                found = training.train_progressively(
                    committee, *limits, rng, engine, report, journal
                )
            bar.total = bar.n  # converged: the bar is full
            committee.theta, committee.factor_bytes = found.theta, self._factor_bytes()
            log_likelihood = training.prepared(committee, engine)
            if not found.stopped:
                journal.done()
        self._store(committee, scaling, rng, communication)
        self.kernel_scores_ = chosen.scores
        self.labels_, self.training_curve_, self.n_iter_ = labels, np.array(curve), len(curve)
        self.log_marginal_likelihood_ = log_likelihood
        self.noise_variance_ = found.theta.noise_variance
        self._choose_now()
        return self

    def _may_divide_again(self) -> bool:
        """Whether the partition may follow the lengthscales: they must differ, and be found."""
        named = isinstance(self.partition, str) and self.partition in ("kmeans", "balanced")
        return self.partition_metric == "auto" and named and self.ard and self.max_iter > 0

    def _check_parameters(self) -> None:
        choose("partition_metric", self.partition_metric, ("auto", "plain"))
        choose("likelihood", self.likelihood, ("gaussian", "poisson"))
        choose("training", self.training, ("progressive", "full"))
        self._check_shared()
        check_number("noise_variance", self.noise_variance, 0, positive=True)

    def _setting(self, changes: Mapping[str, Any], fitting: bool = False) -> Setting:
        setting = super()._setting(changes, fitting)
        counts = self.likelihood == "poisson" if fitting else self._poisson() is not None
        if setting.space == "y" and counts:
            raise ValueError(
                "space='y' combines predictions of noisy y, which are Gaussian; with likelihood="
                "'poisson' they are not. Use space='f'."
            )
        return setting

    def _is_sparse(self) -> bool:
        return self.n_inducing is not None or self.likelihood != "gaussian"

    # ---- prediction ------------------------------------------------------------------------

    @property
    def deviation_scale_(self) -> float:
        """What predictive deviations are multiplied by."""
        check_is_fitted(self)
        return self._setting({}).deviations.scale

    @property
    def degrees_of_freedom_(self) -> float:
        """Degrees of freedom of y's distribution about its mean; infinity is the Gaussian."""
        check_is_fitted(self)
        return self._setting({}).deviations.freedom

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False
    ) -> Array | tuple[Array, Array]:
        """Mean of y at the rows of X [n, D] (of counts, the rate).

        With return_std also its standard deviation, noise included; with return_cov the covariance
        of y between the rows [n, n], noise on the diagonal, for up to 5,000 rows. The marginal
        variances are exactly those of return_std. What lies between rows is exact for one expert
        and for "nested"; for the other rules it is what `healgp.joint` says, a choice where weights
        vary from row to row.

        With engine="dask", Dask arrays and DataFrames are answered with lazy Dask arrays.
        """
        if return_std and return_cov:
            raise ValueError("Ask for return_std or for return_cov, not for both.")
        if return_cov:
            return self._joint(X)
        lazy = self._lazily(X, _mean_and_std, 2)
        mean, std = self.predict_many(X, [{}])[0] if lazy is None else (lazy[:, 0], lazy[:, 1])
        return (mean, std) if return_std else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draws of y at the rows of X together, [n, n_samples]: noise included, and as correlated
        as `predict(X, return_cov=True)` says. Where the tails are heavier than Gaussian, each row
        has them, and the rows' ranks are as correlated as those of a Gaussian (a copula)."""
        check_number("n_samples", n_samples, 1, integer=True)
        mean, cov = self._joint(X)
        values, vectors = np.linalg.eigh(cov)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        draws = root @ check_random_state(random_state).standard_normal((len(mean), n_samples))
        said = self._setting({}).deviations
        if not said.gaussian:
            std = np.sqrt(np.diag(cov))[:, None]
            tail = ndtr(-np.abs(draws) / std)  # the lower one, which has all its digits
            draws = np.sign(draws) * -said.quantile(tail, std) * std
        return mean[:, None] + draws

    def _joint(self, X: Any) -> tuple[Array, Array]:
        """Mean and covariance of y between the rows."""
        if self._poisson() is not None:
            raise ValueError(
                "return_cov and sample_y are for likelihood='gaussian'; counts have rates and "
                "intervals for each row, predict(X) and predict_interval(X)."
            )
        new, setting = self._new_rows(X), self._setting({})
        if len(new) > joint.LARGEST:
            raise ValueError(
                f"X has {len(new)} rows, and covariances between rows are for {joint.LARGEST} at "
                "most. Ask for return_std, or for fewer rows."
            )
        noise = self._committee.theta.noise_variance
        if setting.aggregation == "nested":
            with self._committee.engine(self.n_jobs) as engine:
                self._committee.prepare_once(engine)
                mean, cov = joint.nested_covariance(self._committee, new, setting.n_nearest, engine)
            _, var = self._nested(new, replace(setting, space="f"))
            cov = joint.scaled(cov, var) + noise * np.eye(len(new))
        else:
            (_, ((mean, var),)) = self._latent(X, [{}])
            in_y = setting.space == "y"
            committee, prior = self._committee_and_prior(setting.aggregation, new)
            means, variances = self._moments(committee, new)
            extra = noise if in_y else 0.0
            weights = setting.weights(means, variances + extra, prior.mean, prior.var + extra)
            more = extra * np.eye(len(new))
            with committee.engine(self.n_jobs) as engine:
                committee.prepare_once(engine)
                base = committee.prior_covariance(new)
                if setting.aggregation == "grbcm" and self._grbcm is not None:
                    communication = self._grbcm[1]
                    communication.prepare_once(engine)
                    base = communication.covariance(new, 0, engine)

                def covariances(experts: Array) -> Iterator[Array]:
                    for j in experts.tolist():
                        yield committee.covariance(new, j, engine) + more

                signal = committee.theta.signal_variance
                cov = joint.covariance(
                    setting.aggregation, covariances, weights, base + more, signal, var
                )
            cov = cov if in_y else cov + noise * np.eye(len(new))
        cov = self._scaling.var(cov)
        std = np.sqrt(np.diag(cov))
        factor = setting.deviations.reported(std) / std
        return self._scaling.mean(mean), factor[:, None] * cov * factor

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """Bounds (lower, upper) of the central interval that holds y with the given probability (of
        counts, at least that): mean ± Φ⁻¹((1 + coverage)/2) std, or the quantiles of Student's t
        where `degrees_of_freedom_` is finite."""
        check_number("coverage", coverage, 0, positive=True)
        if coverage >= 1:
            raise ValueError(f"coverage={coverage!r} must be below 1; for 95 % it is 0.95.")
        lazy = self._lazily(X, partial(_interval, coverage=coverage), 2)
        if lazy is not None:
            return lazy[:, 0], lazy[:, 1]
        poisson = self._poisson()
        if poisson is not None:
            latent = self._latent(X, [{}])[1][0]
            tail = 0.5 * (1.0 - coverage)
            return poisson.quantile(tail, *latent), poisson.quantile(1.0 - tail, *latent)
        mean, std = self.predict_many(X, [{}])[0]
        half = self._half_width(std, coverage)
        return mean - half, mean + half

    def _half_width(self, std: Array, coverage: float) -> Array:
        """Half the width of the interval that holds y with the given probability."""
        return self._setting({}).deviations.quantile(0.5 + 0.5 * coverage, std) * std

    def predict_many(
        self, X: Any, settings: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Array, Array]]:
        """`predict(X, return_std=True)` under several settings, asking every expert only once.

        Each setting is a dict over aggregation, weighting, temperature, normalize_weights, space
        and n_nearest; what it leaves out is as in the estimator. Returns one (mean, std) per
        setting.
        """
        return [
            self._observed(setting, *latent)
            for setting, latent in zip(*self._latent(X, settings), strict=True)
        ]

    def _observed(self, setting: Setting, mean: Array, var: Array) -> tuple[Array, Array]:
        """Mean and deviation of y from the moments of the latent function."""
        poisson = self._poisson()
        if poisson is not None:
            return poisson.rate(mean, var), np.sqrt(poisson.variance(mean, var))
        noise = self._committee.theta.noise_variance if setting.space == "f" else 0.0
        std = self._scaling.std(var + noise)
        return self._scaling.mean(mean), setting.deviations.reported(std)

    def predict_f(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the latent function, in the units of y (and their square); of
        counts, of the logarithm of the rate."""
        check_is_fitted(self)
        if self.space == "y":
            raise ValueError(
                "With space='y' the experts' noisy predictions are combined, and there is no "
                "prediction of the latent function. Use space='f'."
            )
        mean, var = self._latent(X, [{}])[1][0]
        return self._scaling.mean(mean), self._scaling.var(var)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """log p(y_i | x_i) of each row, of y in its own units (of counts, a probability)."""
        poisson = self._poisson()
        if poisson is not None:
            latent = self._latent(X, [{}])[1][0]
            y = validated_target(y)
            if y.shape != latent[0].shape:
                raise ValueError(f"y has shape {y.shape}, but its predictions {latent[0].shape}.")
            _check_counts(y)
            return poisson.log_density(y, *latent)
        mean, std = self.predict_many(X, [{}])[0]
        return self._setting({}).deviations.log_density(validated_target(y), mean, std)

    def _new_targets(self, y: Any, n: int) -> Array:
        y = validated_target(y)
        if y.shape != (n,):
            raise ValueError(f"y has shape {y.shape}, but X has {n} rows.")
        if self._poisson() is not None:
            _check_counts(y)
            return y
        return self._scaling.targets(y)

    def _poisson(self) -> Poisson | None:
        """The likelihood of a model of counts."""
        check_is_fitted(self)
        likelihood = getattr(self._committee, "likelihood", None)
        return likelihood if isinstance(likelihood, Poisson) else None


def _mean_and_std(model: ExpertGPRegressor, X: Array) -> Array:
    return np.column_stack(model.predict_many(X, [{}])[0])


def _interval(model: ExpertGPRegressor, X: Array, coverage: float) -> Array:
    return np.column_stack(model.predict_interval(X, coverage))


def _check_counts(y: Array) -> None:
    if (y < 0).any():
        raise ValueError(
            f"y has negative values (the first in row {np.flatnonzero(y < 0)[0]}), and "
            "likelihood='poisson' is for counts: 0, 1, 2, …"
        )
    wrong = np.flatnonzero(y != np.floor(y))
    if len(wrong):
        raise ValueError(
            f"y has fractional values (the first in row {wrong[0]}), and likelihood='poisson' is "
            "for counts: 0, 1, 2, … For rates, use likelihood='gaussian'."
        )
