"""ExpertGPClassifier: validates, wires the parts together, stores what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from healgp import persistence, selection
from healgp.checks import choose
from healgp.estimators.base import ExpertGP
from healgp.estimators.scaling import Scaling, blockwise
from healgp.likelihoods import TINY, Bernoulli, Classification, RobustMax, Softmax

Array = np.ndarray


@persistence.estimator
class ExpertGPClassifier(ClassifierMixin, ExpertGP):
    """Gaussian process classification by a committee of small sparse variational experts.

    The rows are divided among experts of about `points_per_expert` rows that share one kernel. Each
    has a latent function per class (one in all for two classes) and a Gaussian approximation of its
    posterior. The latent functions are combined with weights that follow each expert's confidence
    at the row, and turned into probabilities last.

    Parameters
    ----------
    points_per_expert : int or None, default=500
        There are int(N / points_per_expert) experts, at least one. None is one expert for all rows:
        a sparse variational GP, whose inducing inputs are trained on a sample of the rows and whose
        posterior is found from all of them.
    n_inducing : int, default=100
        Inducing inputs of each expert, at most its number of rows; chosen greedily, then trained.
    partition : {"kmeans", "random", "balanced"}, array of labels or callable, default="kmeans"
        Which rows go together. An array has one label per row; a callable gets
        (X, n_experts, rng) and returns labels.
    kernel : {"auto", "rbf", "matern12", "matern32", "matern52", "rational_quadratic"}, \
            default="rbf"
        "auto" trains every one of them briefly on a few experts and takes the one with the largest
        marginal likelihood.
    ard : bool, default=True
        A lengthscale of its own for every column; otherwise one for all.
    aggregation : {"poe", "gpoe", "bcm", "rbcm", "barycenter", "wasserstein"}, default="gpoe"
        The rule that combines the experts (see `healgp.aggregation`), for each latent function.
    weighting : {"ones", "uniform", "entropy", "softmax_variance", "softmax_entropy", \
            "softmax_wasserstein"}, default="softmax_variance"
        The experts' weights (see `healgp.weights`); "poe" and "bcm" always use ones.
    temperature : float or "auto", default="auto"
        Multiplies the score in the softmax: larger is sparser. In units of the prior deviation of
        the latent functions. "auto" takes what predicts a sample of training rows best, each
        without what it says to its own expert (the cavity; see `healgp.calibration`); with 32
        experts or more the largest that is within 0.002 of it, for it is cheaper (beyond 200 in
        proportion to them more).
    normalize_weights : bool or None, default=None
        Whether weights add up to one. None: always for "gpoe" and the barycenters and for every
        softmax, never for "ones" and "entropy" in the other rules.
    likelihood : {"auto", "bernoulli", "softmax", "robustmax"}, default="auto"
        "auto" is "bernoulli" (probit) for two classes and "softmax" for more. "robustmax" takes
        the class with the largest latent function, but for one label in a thousand.
    standardize : bool, default=True
        Scale X to mean 0 and deviation 1 inside.
    lengthscale, signal_variance : float, default=1.0, 1.0
        Where training starts, in standardised units. lengthscale may be an array of one per column.
    max_iter : int, default=100
        Most iterations of L-BFGS-B for the kernel, and again for the inducing inputs. 0 keeps the
        starting values.
    routing : {"auto", None}, default="auto"
        "auto" has near experts say in brief what they think of a row, and asks the most confident
        of them in full, where weights are a softmax and there are 32
        experts or more; training rows have shown before that it agrees with asking everyone. None
        asks everyone.
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
        Decides the partition, and the rows that the kernel is found on.
    verbose : int, default=0
        1 shows progress bars.

    Attributes
    ----------
    classes_ : array [C]
        The labels, sorted.
    n_experts_ : int
        The number of experts.
    labels_ : array [N]
        The expert of each training row.
    lengthscales_ : array [D]
        In standardised units.
    signal_variance_ : float
        The prior variance of the latent functions.
    alpha_ : float
        The shape of kernel="rational_quadratic".
    kernel_ : str
        The kernel that is used.
    kernel_scores_ : dict
        The marginal likelihood per row of each kernel that was compared; empty if one was given.
    aggregation_ : str
        The rule that `predict_proba` uses.
    temperature_ : float
        The temperature that `predict_proba` uses.
    temperature_curve_ : tuple of arrays
        The temperatures that were compared, and their NLPD.
    elbo_ : float
        The sum over experts of the lower bound of log p(y).
    n_iter_ : int
        Iterations of training.
    training_curve_ : array [n_iter_]
        The ELBO per row after each of them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from healgp import ExpertGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ExpertGPClassifier(random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.93
    True
    """

    def __init__(
        self,
        points_per_expert: int | None = 500,
        n_inducing: int = 100,
        partition: Any = "kmeans",
        kernel: str = "rbf",
        ard: bool = True,
        aggregation: str = "gpoe",
        weighting: str = "softmax_variance",
        temperature: float | str = "auto",
        normalize_weights: bool | None = None,
        likelihood: str = "auto",
        standardize: bool = True,
        lengthscale: Any = 1.0,
        signal_variance: float = 1.0,
        max_iter: int = 100,
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
        self.n_inducing = n_inducing
        self.partition = partition
        self.kernel = kernel
        self.ard = ard
        self.aggregation = aggregation
        self.weighting = weighting
        self.temperature = temperature
        self.normalize_weights = normalize_weights
        self.likelihood = likelihood
        self.standardize = standardize
        self.lengthscale = lengthscale
        self.signal_variance = signal_variance
        self.max_iter = max_iter
        self.routing = routing
        self.routing_tol = routing_tol
        self.memory_budget = memory_budget
        self.engine = engine
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Divides the rows, finds kernel, inducing inputs and every expert's posterior.

        X is [N, D] and finite, y is [N] with labels of any type. Ctrl-C ends training with the best
        so far.
        """
        self._check_parameters()
        with self._all_or_nothing():
            return self._fit(X, y)

    def _fit(self, X: Any, y: Any) -> Self:
        X, y = self._training_rows(X, y)
        if isinstance(y, np.ndarray):
            y = column_or_1d(y, warn=True)
            check_classification_targets(y)
            classes, y = np.unique(y, return_inverse=True)
        else:
            classes = np.unique(np.concatenate(y.each(np.unique)))
            check_classification_targets(classes)
            y = y.map(partial(np.searchsorted, classes), np.intp)
        likelihood = self._likelihood(len(classes), classes)
        theta = self._starting_theta(X.shape[1])
        scaling = Scaling.of(X, None, self.standardize)
        Z, rng = scaling.inputs(X), self._rng()
        labels, rows, _ = self._partition(X, Z, rng)

        kernel, scores, max_iter = self._kernels()[0], dict[str, float](), self.max_iter
        if max_iter > 0:
            counts = blockwise(y, partial(np.bincount, minlength=len(classes)))
            means = np.sum(counts, axis=0) / len(y)

            def indicators(r: Array) -> list[Array]:
                present = np.unique(y[r]) if len(classes) > 2 else [0]
                return [(y[r] == c) - means[c] for c in present]

            # of random rows: an expert's own may all be of one class, which any function explains
            size = max(len(y) // len(rows), min(len(y), 200))
            order = rng.permutation(len(y))
            groups = [order[i : i + size] for i in range(0, len(y) - size + 1, size)]
            found = selection.train_on_targets(
                Z, groups, indicators, self._kernels(), theta, self.ard, self.max_iter,
                scaling.x_left, rng, self.n_jobs,
            )  # fmt: skip
            self._say_kernel(found)
            kernel, scores = found.kernel, found.scores
            max_iter = 0 if found.interrupted else max_iter
            theta = replace(found.theta, signal_variance=theta.signal_variance)
        committee, curve, elbo = self._fit_sparse(
            Z,
            y / 1.0,
            rows,
            kernel,
            theta,
            likelihood,
            self.n_inducing,
            False,
            max_iter,
            scaling,
            rng,
        )
        self._store(committee, scaling, rng)
        self.classes_, self.elbo_, self.kernel_scores_ = classes, elbo, scores
        self.labels_, self.training_curve_, self.n_iter_ = labels, curve, len(curve)
        self._choose_now()
        return self

    def _check_parameters(self) -> None:
        choose("likelihood", self.likelihood, ("auto", "bernoulli", "softmax", "robustmax"))
        if self.n_inducing is None:
            raise ValueError("n_inducing=None: classes need sparse experts; give a number.")
        self._check_shared()

    def _likelihood(self, n_classes: int, classes: Array) -> Classification:
        if n_classes < 2:
            raise ValueError(
                f"y has one class only ({classes.tolist()[0]!r}); a classifier needs at least two "
                "classes."
            )
        name = self.likelihood
        if name == "auto":
            name = "bernoulli" if n_classes == 2 else "softmax"
        if name == "bernoulli" and n_classes > 2:
            raise ValueError(
                f"likelihood='bernoulli' is for two classes, and y has {n_classes}. Use 'auto', "
                "'softmax' or 'robustmax'."
            )
        kind = {"bernoulli": Bernoulli, "softmax": Softmax, "robustmax": RobustMax}[name]
        return kind(n_classes=n_classes)

    def _is_sparse(self) -> bool:
        return True

    def predict(self, X: Any) -> Array:
        """The most probable class of each row of X [n, D]."""
        check_is_fitted(self)
        lazy = self._lazily(X, _classes, 1, self.classes_.dtype)
        if lazy is not None:
            return lazy[:, 0]
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [n, n_classes], in the order of `classes_`. With engine="dask", Dask arrays
        and DataFrames are answered with lazy Dask arrays, here and in `predict`."""
        check_is_fitted(self)
        lazy = self._lazily(X, ExpertGPClassifier.predict_proba, len(self.classes_))
        return self.predict_many(X, [{}])[0] if lazy is None else lazy

    def predict_many(self, X: Any, settings: Sequence[Mapping[str, Any]]) -> list[Array]:
        """`predict_proba(X)` under several settings, asking every expert only once.

        Each setting is a dict over aggregation, weighting, temperature and normalize_weights; what
        it leaves out is as in the estimator.
        """
        return [self._probabilities(*latent) for latent in self._latent(X, settings)[1]]

    def predict_f(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the latent functions, [n, n_classes]; with two classes and the
        bernoulli likelihood [n], of the one that speaks for the second class."""
        return self._latent(X, [{}])[1][0]

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """log p(y_i | x_i) of each row, y being labels."""
        p = self.predict_many(X, [{}])[0]  # here, also of a Dask collection
        where = self._new_targets(y, len(p)).astype(np.intp)
        return np.log(np.maximum(p[np.arange(len(p)), where], TINY))

    def _new_targets(self, y: Any, n: int) -> Array:
        y = column_or_1d(y)
        if len(y) != n:
            raise ValueError(f"y has {len(y)} labels, but X has {n} rows.")
        numbers = {label: number for number, label in enumerate(self.classes_.tolist())}
        unknown = [label for label in y.tolist() if label not in numbers]
        if unknown:
            raise ValueError(
                f"y has the label {unknown[0]!r}, which is not among those that the model was "
                f"fitted with."
            )
        return np.array([numbers[label] for label in y.tolist()], dtype=float)

    def _probabilities(self, mean: Array, var: Array) -> Array:
        check_is_fitted(self)
        likelihood = getattr(self._committee, "likelihood", None)
        assert isinstance(likelihood, Classification)
        shape = (len(mean), likelihood.n_latent)
        p = likelihood.probabilities(mean.reshape(shape), var.reshape(shape))
        return p / p.sum(axis=1, keepdims=True)


def _classes(model: ExpertGPClassifier, X: Array) -> Array:
    return model.predict(X)[:, None]
