"""Saved models: what of an estimator is kept, how it comes back, and what is checked then.

Rows, θ, inducing inputs and sites are kept, and what was chosen from the data: kernel, curves of
temperatures, rules, routes. What follows from them bit for bit is made again when it is needed:
Cholesky factors, posteriors, the experts of grBCM, centres. `healgp.storage` has the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

import healgp
from healgp import likelihoods, storage
from healgp.calibration import Comparison, Curve
from healgp.deviations import Deviations
from healgp.encoding import Decoder, Encoder, checked
from healgp.estimators.scaling import Scaling
from healgp.experts.committee import Committee
from healgp.experts.sparse import SparseCommittee
from healgp.experts.variational import Sites
from healgp.kernels import KERNELS, Hyperparameters
from healgp.prediction import Setting
from healgp.routing import Net
from healgp.streaming import Arrivals

Array = np.ndarray

#: Objects that may be in a saved model, and their fields that are made again.
CLASSES = (
    Committee, SparseCommittee, Sites, Hyperparameters, Scaling, Setting, Deviations, Curve,
    Comparison, Net, Arrivals, likelihoods.Gaussian, likelihoods.Poisson, likelihoods.Bernoulli,
    likelihoods.Softmax, likelihoods.RobustMax,
)  # fmt: skip
MADE_AGAIN = {
    Committee: ("alpha", "factor_bytes", "log_likelihoods", "_factors"),
    SparseCommittee: ("factor_bytes", "_states"),
}

#: What an estimator keeps of a fit and what each must be; a new attribute needs a line here.
FITTED: dict[str, Any] = {
    "_committee": Committee | SparseCommittee,
    "_scaling": Scaling,
    "_communication": np.ndarray | None,
    "_calibration_rows": np.ndarray,
    "_trained": bool,
    "_curves": dict[Setting, Curve],
    "_rules": dict[Setting, Comparison],
    "_routes": dict[tuple[Setting, float], Net],
    "_arrivals": Arrivals | None,
    "labels_": np.ndarray,
    "classes_": np.ndarray,
    "n_experts_": int,
    "n_iter_": int,
    "training_curve_": np.ndarray,
    "kernel_": str,
    "kernel_scores_": dict[str, float],
    "lengthscales_": np.ndarray,
    "signal_variance_": float,
    "noise_variance_": float,
    "alpha_": float,
    "log_marginal_likelihood_": float,
    "elbo_": float,
}

_NOT_ALWAYS = {"classes_", "noise_variance_", "alpha_", "log_marginal_likelihood_", "elbo_"}


@dataclass(frozen=True)
class Kind:
    """A class of models: how one becomes JSON, with its arrays left in an encoder, and back."""

    cls: type
    to_plain: Callable[[Any, Encoder], dict[str, Any]]
    from_plain: Callable[[dict[str, Any], Decoder], Any]


#: The classes whose models can be saved, by name; those in the second table are imported first.
KINDS: dict[str, Kind] = {}
_ELSEWHERE = {"TableModel": "healgp.tables"}


def made_again() -> dict[str, Any]:
    """Attributes that are made again, and what stands for them until then."""
    return {"_grbcm": None, "_guide": None, "_centres": None, "_left_out": {}, "_confident": {}}


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Saves a fitted model as a folder: `model.json` and `arrays-….safetensors`.

    A model that is there already is replaced, and stays whole until the new one is: a process that
    is killed meanwhile leaves the old model or the new one, never a mixture.
    """
    encoder = Encoder(CLASSES, MADE_AGAIN)
    plain = to_plain(model, encoder)
    storage.write(path, {"library_version": healgp.__version__} | plain, encoder.arrays)


def load(path: str | os.PathLike[str]) -> Any:
    """The model that was saved as the folder `path`; it predicts bit for bit what that one did
    (after `partial_fit` to rounding and routing's tolerance, for what grew is made in one go).

    Nothing in the files is run. Files that are missing, damaged or from a newer healgp are a
    ValueError that names the file.

    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from healgp import ExpertGPClassifier, load
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ExpertGPClassifier(random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder)
    ...     again = load(folder)
    >>> bool((again.predict_proba(X) == model.predict_proba(X)).all())
    True
    """
    with storage.opened(path) as (record, arrays):
        try:
            return from_plain(record, Decoder(arrays, CLASSES, MADE_AGAIN))
        except storage.BrokenError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            where = os.path.join(path, storage.RECORD)
            raise ValueError(f"{where} does not describe a model: {error}.") from error


def to_plain(model: Any, encoder: Encoder) -> dict[str, Any]:
    """A model of any kind as JSON, with its arrays left in the encoder."""
    kind = KINDS.get(type(model).__name__)
    if kind is None or kind.cls is not type(model):
        raise ValueError(
            f"A {type(model).__name__} cannot be saved, only: {', '.join(KINDS)}. (Models of other "
            "classes can be pickled.)"
        )
    return {"class": type(model).__name__} | kind.to_plain(model, encoder)


def from_plain(plain: Any, decoder: Decoder) -> Any:
    """A model of any kind from what `to_plain` made of it."""
    checked("the model", plain, dict[str, Any])
    name = plain.get("class")
    if isinstance(name, str) and name in _ELSEWHERE and name not in KINDS:
        __import__(_ELSEWHERE[name])
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"{name!r:.60} is not a class of models; known are {', '.join(KINDS)}")
    return KINDS[name].from_plain(plain, decoder)


# ---- the estimators ------------------------------------------------------------------------------


def estimator(cls: Any) -> Any:
    """Decorates an estimator whose models can be saved."""
    KINDS[cls.__name__] = Kind(
        cls, _to_plain, lambda plain, decoder: _from_plain(cls, plain, decoder)
    )
    return cls


def _to_plain(model: Any, encoder: Encoder) -> dict[str, Any]:
    check_is_fitted(model)
    model._check_parameters()  # what could not be loaded is not saved
    state = vars(model)
    parameters, notes = model.get_params(deep=False), []
    if callable(parameters["partition"]):
        parameters["partition"] = model.labels_
        notes.append("partition was a callable; the labels that it gave stand for it")
    elif not isinstance(parameters["partition"], str):
        parameters["partition"] = np.asarray(parameters["partition"])
    if parameters["random_state"] is np.random:
        parameters["random_state"] = None  # the same generator
    if parameters["checkpoint"] is not None:
        parameters["checkpoint"] = None  # a file must not say where later fits write
        notes.append("checkpoint was of the fit, and is not kept")
    fitted = {
        name: value
        for name, value in state.items()
        if name not in parameters
        and name not in made_again()
        and name not in ("n_features_in_", "feature_names_in_", "_sklearn_version")
    }
    if hasattr(model._committee, "local"):  # experts on a cluster come together here
        fitted["_committee"] = model._committee.local()
    unknown = set(fitted) - set(FITTED)
    if unknown:
        raise ValueError(
            f"The model has {', '.join(sorted(unknown))}, which healgp does not know how to save."
        )
    return {
        "schema": {
            "n_features": model.n_features_in_,
            "feature_names": encoder.encode(
                [str(name) for name in names]
                if (names := state.get("feature_names_in_")) is not None
                else None,
                "feature_names",
            ),
        },
        "parameters": {n: encoder.encode(v, f"parameters.{n}") for n, v in parameters.items()},
        "fitted": {n: encoder.encode(v, n.strip("_")) for n, v in sorted(fitted.items())},
        "notes": notes,
    }


def _from_plain(cls: Any, plain: dict[str, Any], decoder: Decoder) -> BaseEstimator:
    for name in ("schema", "parameters", "fitted"):
        checked(name, plain.get(name), dict[str, Any])
    parameters = {name: decoder.decode(value) for name, value in plain["parameters"].items()}
    unknown = set(parameters) - set(cls._get_param_names())
    if unknown:
        raise ValueError(f"{cls.__name__} has no parameter {', '.join(sorted(unknown))[:80]}")
    if parameters.get("checkpoint") is not None:
        raise ValueError("a saved model has no checkpoint")
    model = cls(**parameters)
    model._check_parameters()

    fitted = {name: decoder.decode(value) for name, value in plain["fitted"].items()}
    for name, value in fitted.items():
        if name not in FITTED:
            raise ValueError(f"a model has no {name[:40]!r}")
        fitted[name] = checked(name, value, FITTED[name])
    lacking = set(FITTED) - _NOT_ALWAYS - set(fitted)
    if lacking:
        raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
    schema = plain["schema"]
    checked("n_features", schema.get("n_features"), int)
    names = schema.get("feature_names")
    checked("feature_names", names, list[str] | None)
    _check_fitted(fitted, schema["n_features"], names, cls.__name__)
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    model.n_features_in_ = schema["n_features"]
    model.__dict__.update(made_again() | fitted)
    model._committee.factor_bytes = model._factor_bytes()  # of this machine
    return model


# ---- checks: jitted code reads without looking, so nothing may be out of place -------------------


def _check_fitted(fitted: dict[str, Any], D: int, names: list[str] | None, cls: str) -> None:
    committee = fitted["_committee"]
    J, N = _check_committee(committee, D)
    _check(fitted["n_experts_"] == J, "n_experts_")
    _check(names is None or len(names) == D, "feature_names")
    _check(fitted["lengthscales_"].shape == (D,), "lengthscales_")
    _check_labels(fitted["labels_"], committee)
    arrivals = fitted["_arrivals"]
    if arrivals is not None:
        _check_labels(arrivals.labels[: arrivals.n_rows], committee)
        _check(arrivals.points is None or arrivals.points > 0, "_arrivals")
        _check(0 < arrivals.far < np.inf and arrivals.seed >= 0, "_arrivals")
        _check(arrivals.checked_at > 0, "_arrivals")
    for name in ("_calibration_rows", "_communication"):
        rows = fitted[name]
        if rows is not None:
            _check(rows.ndim == 1 and rows.dtype.kind == "i" and len(rows) > 0, name)
            _check((rows >= 0).all() and (rows < N).all(), name)
            _check(len(np.unique(rows)) == len(rows), name)
    scaling = fitted["_scaling"]
    for name in ("x_center", "x_scale", "x_left"):
        _floats(getattr(scaling, name), (D,), name, finite=name != "x_left")
    _check((scaling.x_scale > 0).all() and 0 < scaling.y_scale < np.inf, "_scaling")
    _check(np.isfinite(scaling.y_center), "_scaling")
    for curve in fitted["_curves"].values():
        _floats(curve.temperatures, curve.nlpd.shape, "_curves")
        _check(curve.nlpd.ndim == 1 and curve.nlpd.size > 0, "_curves")
    for net in fitted["_routes"].values():
        _check(0 <= net.experts < J and net.margin >= 0 and net.near > net.experts, "_routes")
    likelihood = getattr(committee, "likelihood", None)
    has_classes = cls == "ExpertGPClassifier"
    _check(has_classes == isinstance(likelihood, likelihoods.Classification), "likelihood")
    _check(has_classes == ("classes_" in fitted), "classes_")
    if isinstance(likelihood, likelihoods.Classification):
        _check(fitted["classes_"].shape == (likelihood.n_classes,), "classes_")


def _check_committee(committee: Committee | SparseCommittee, D: int) -> tuple[int, int]:
    """Numbers of experts and of rows."""
    _check(committee.kernel in KERNELS, "kernel")
    theta, N = committee.theta, committee.y.size
    _floats(theta.lengthscales, (D,), "lengthscales")
    values = [*theta.lengthscales, theta.signal_variance, theta.shape]
    _check(all(0 < v < np.inf for v in values) and 0 <= theta.noise_variance < np.inf, "theta")
    _floats(committee.y, (N,), "y")
    if isinstance(committee, Committee):
        _floats(committee.XT, (D, N), "XT")
        filled = committee.filled
        end = N if filled is None else int(committee.offsets[-1:].sum())  # room may be left behind
        _check(end <= N, "offsets")
        _check_offsets(committee.offsets, end, "offsets")
        if filled is not None:
            widths = np.diff(committee.offsets)
            _check(filled.dtype == np.int64 and filled.shape == widths.shape, "filled")
            _check((filled > 0).all() and (filled <= widths).all(), "filled")
        return len(committee.offsets) - 1, N
    _check_offsets(committee.offsets, N, "offsets")
    J = len(committee.offsets) - 1
    _floats(committee.X, (N, D), "X")
    _floats(committee.Z, (len(committee.Z), D), "Z")
    _check_offsets(committee.z_offsets, len(committee.Z), "z_offsets")
    _check(len(committee.z_offsets) == J + 1, "z_offsets")
    likelihood, y = committee.likelihood, committee.y
    if isinstance(likelihood, likelihoods.Classification):
        n = likelihood.n_classes
        _check(n >= 2 and (n == 2 or likelihood.n_latent == n), "n_classes")
        _check((y >= 0).all() and (y < n).all() and (y == np.floor(y)).all(), "y")
    else:
        _check(likelihood.parameter is not None and np.isfinite(likelihood.parameter), "likelihood")
    for name in ("weight", "shift"):
        _floats(getattr(committee.sites, name), (N, likelihood.n_latent), f"sites.{name}")
    _check((committee.sites.weight >= 0).all(), "sites.weight")
    return J, N


def _check_labels(labels: Array, committee: Committee | SparseCommittee) -> None:
    _check(labels.dtype.kind == "i" and labels.shape == (committee.n_rows,), "labels")
    _check((labels >= 0).all() and (labels < committee.n_experts).all(), "labels")


def _check_offsets(offsets: Array, end: int, name: str) -> None:
    _check(offsets.ndim == 1 and offsets.dtype == np.int64 and len(offsets) > 1, name)
    _check(offsets[0] == 0 and offsets[-1] == end and (np.diff(offsets) > 0).all(), name)


def _floats(values: Array, shape: tuple[int, ...], name: str, finite: bool = True) -> None:
    _check(values.dtype == np.float64 and values.shape == shape, name)
    _check(not finite or bool(np.isfinite(values).all()), name)


def _check(holds: Any, name: str) -> None:
    if not holds:
        raise ValueError(f"{name} is not as a model has it")
