"""partial_fit: further rows for a model of exact experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from healgp import calibration, streaming
from healgp.estimators.base import ExpertGP
from healgp.estimators.choosing import is_auto
from healgp.experts.committee import Committee

#: Scaled values must be below this, so that their squares do not overflow.
_LARGEST = 1e100


class PartialFit(ExpertGP):
    """An estimator that learns further rows; `healgp.streaming` says how."""

    labels_: np.ndarray

    @property
    def partial_fit(self) -> Callable[[Any, Any], Self]:
        """partial_fit(X, y) learns further rows, X [n, D] and y [n], without fitting again; of a
        model that is not fitted it is `fit`. Sparse experts and those on a cluster do not have it.

        A row goes to the expert whose centre is nearest in inputs divided by the lengthscales (with
        partition="random", to one drawn at random). Rows that are further from every centre than
        twice what any row was from its own found an expert together, and an expert of more than
        twice `points_per_expert` rows is divided into equal parts; with points_per_expert=None
        neither happens. Hyperparameters and scaling stay, and predictions are those of a model with
        these labels that got all rows at once.

        A rule, a temperature and tails that were chosen stay as well, until set_params(temperature=
        "auto"), set_params(aggregation="auto") or `calibrate` asks for them again; routing is
        checked anew whenever the rows have doubled. If it fails, the model is as it was. Not to be
        called while another thread uses the model.
        """
        fitted = self.__sklearn_is_fitted__()
        if not self._committee.is_exact if fitted else self._is_sparse():
            raise AttributeError(
                "partial_fit is for exact experts, and these are sparse: their inducing inputs "
                "are trained on all rows. Fit again with all rows, or for a Gaussian likelihood "
                "use n_inducing=None."
            )
        if self.engine != "local" or (fitted and not isinstance(self._committee, Committee)):
            raise AttributeError(
                "partial_fit is for engine='local', and these experts are on the workers of a Dask "
                "cluster. Fit again with all rows, or take a pickled copy of the model, which has "
                "its experts here, and set_params(engine='local') on that."
            )
        return self._partial_fit if fitted else self.fit

    def _partial_fit(self, X: Any, y: Any) -> Self:
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=False)
        with np.errstate(over="ignore"):
            new, targets = self._scaling.inputs(X), self._scaling.targets(y)
            scaled = new / self.lengthscales_
        for name, values in (("X", scaled), ("y", targets)):
            if not (np.abs(values) < _LARGEST).all():
                raise ValueError(
                    f"{name} has values that are too large beside the rows of the fit: scaled as "
                    f"those were, they are beyond {_LARGEST:g}."
                )
        self._learn(new, targets)
        return self

    def _learn(self, new: np.ndarray, targets: np.ndarray) -> None:
        committee: Any = self._committee
        with committee.engine(self.n_jobs) as engine:
            committee.prepare_once(engine)
            arrivals = self._arrivals
            if arrivals is None:
                at_random = isinstance(self.partition, str) and self.partition == "random"
                seed = int(self._rng().integers(2**31))
                arrivals = streaming.Arrivals.of(
                    committee, self.labels_, self.points_per_expert, at_random, seed
                )
            if self._centres is None:
                self._centres = streaming.Centres(committee)
            change = streaming.learn(committee, self._centres, arrivals, new, targets, engine)
            if self._guide is not None:
                self._guide.changed.update(int(part.expert) for part in change.parts)
        self._arrivals, self._grbcm = arrivals, None
        self._left_out.clear()
        self._confident.clear()
        self._calibration_rows = change.follow(self._calibration_rows)
        if self._communication is not None:
            self._communication = change.follow(self._communication)
        self.labels_ = arrivals.labels[: arrivals.n_rows]
        if self.n_experts_ == 1 < committee.n_experts:  # to one expert all temperatures were alike
            self._curves.clear()
        self.n_experts_ = committee.n_experts
        self.log_marginal_likelihood_ = float(committee.log_likelihoods.sum())
        if arrivals.n_rows >= 2 * arrivals.checked_at:
            self._draw_again(arrivals)

    def set_params(self, **params: Any) -> Self:
        super().set_params(**params)
        arrivals = getattr(self, "_arrivals", None)
        asks = any(is_auto(params.get(name)) for name in ("temperature", "aggregation"))
        if asks and arrivals is not None:
            self._curves.clear()
            self._rules.clear()
            self._draw_again(arrivals)
        return self

    def _draw_again(self, arrivals: streaming.Arrivals) -> None:
        """What is found on training rows is found, when it is next asked for, on a sample of all
        that there are; routes always."""
        committee = self._committee
        rows = calibration.sample_rows(arrivals.n_rows, committee.n_experts, arrivals.rng())
        self._calibration_rows = committee.places(rows)
        self._left_out.clear()  # of the rows before
        self._confident.clear()
        self._routes.clear()
        arrivals.checked_at = arrivals.n_rows
