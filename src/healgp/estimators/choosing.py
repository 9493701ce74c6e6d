"""What a fitted model chooses by itself, from training rows that are left out of their own expert:
the temperature, the rule, what y's deviations are, and how many experts are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from healgp import auditing, calibration, deviations, routing
from healgp.deviations import GAUSSIAN, Deviations
from healgp.engines.local import LocalEngine
from healgp.likelihoods import Classification, Gaussian, Poisson
from healgp.metrics import log_density
from healgp.nested import Chosen, Listener, nested
from healgp.prediction import Prior, Setting, stream
from healgp.progress import progress

Array = np.ndarray


class Choosing(BaseEstimator):
    """A committee, and the settings under which its experts are combined."""

    #: What a setting of `predict_many` may change.
    _setting_names: tuple[str, ...] = ("aggregation", "weighting", "temperature",
                                       "normalize_weights")  # fmt: skip

    _grbcm: tuple[Any, Any, Array, Array] | None
    _guide: routing.Guide | None
    _trained: bool
    _curves: dict[Setting, calibration.Curve]
    _rules: dict[Setting, calibration.Comparison]
    _routes: dict[tuple[Setting, float], routing.Net]
    _left_out: dict[Setting, tuple[Array, Array]]
    _confident: dict[int, Chosen]  # the most confident experts there, for each n_nearest

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
        if not is_auto(self.temperature):
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
            settings = calibration.settings(setting, committee)
            found = stream(committee, new, settings, prior, engine, bar.update)
        curve = calibration.Curve.of(settings, found, self._log_density(targets))
        self._curves[_key(setting)] = curve
        return self

    def _tempered(self) -> Setting:
        """The estimator's setting but for its temperature, which it must have."""
        rule = "gpoe" if is_auto(self.aggregation) else self.aggregation
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
        settings = calibration.settings(setting, base)
        found = self._without(rows, settings)
        if setting.aggregation != "grbcm":  # what else is chosen asks about the same rows
            self._left_out |= dict(zip(settings, found, strict=True))
        return calibration.Curve.of(settings, found, self._log_density(base.targets(rows)))

    def _without(self, rows: Array, settings: list[Setting]) -> list[tuple[Array, Array]]:
        """Latent moments at training rows, each left out of its own expert, under settings of one
        rule."""
        new = self._committee.inputs(rows)
        committee, prior = self._committee_and_prior(settings[0].aggregation, new)
        if settings[0].aggregation == "grbcm" and self._grbcm is not None:
            rows = self._grbcm[3][rows]
        with (
            committee.engine(self.n_jobs) as engine,
            self._progress("calibrating", len(new), "row") as bar,
        ):
            committee.prepare_once(engine)
            without: Any = calibration.LeaveOneOut(committee, rows, engine)
            if committee is not self._committee or not committee.is_exact:
                return stream(without, new, settings, prior, engine, bar.update)
            # the nested rule asks about the same rows who is most confident
            nearest = min(settings[0].n_nearest, committee.n_experts)
            listener: Any = Listener(without, len(new), nearest)
            found = stream(listener, new, settings, prior, engine, bar.update)
            self._confident[settings[0].n_nearest] = listener.found
            return found

    def _everyone(self, setting: Setting) -> tuple[Array, Array]:
        """Latent moments at the rows that everything is chosen on, under a setting."""
        rows, is_nested = self._calibration_rows, setting.aggregation == "nested"
        if is_nested:  # nothing else matters to it
            setting = Setting("nested", "ones", 0.0, None, setting.space, setting.n_nearest)
        if setting not in self._left_out:
            self._left_out[setting] = (
                self._nested_without(rows, setting) if is_nested
                else self._without(rows, [setting])[0]
            )  # fmt: skip
        return self._left_out[setting]

    def _nested_without(self, rows: Array, setting: Setting) -> tuple[Array, Array]:
        """The nested rule's, which may know already who is most confident there."""
        committee, known = self._committee, self._confident.get(setting.n_nearest)
        with committee.engine(self.n_jobs) as engine:
            committee.prepare_once(engine)
            without: Any = calibration.LeaveOneOut(committee, rows, engine)
            new = committee.inputs(rows)
            mean, var = nested(without, new, setting.n_nearest, engine, known=known)
        return mean, var + (self._noise() if setting.space == "y" else 0.0)

    @property
    def aggregation_scores_(self) -> dict[str, float]:
        """NLPD by leave-one-out of the rules that aggregation="auto" chose from, of y in
        standardised units; empty where nothing was compared."""
        check_is_fitted(self)
        if not is_auto(self.aggregation):
            return {}
        return dict(self._compared(self._setting({"aggregation": "gpoe"})).scores)

    def _compared(self, setting: Setting) -> calibration.Comparison:
        """The two rules at training rows, each left out of its own expert: "gpoe", or "nested"
        where it gains enough for its cost; and how far y falls from its mean there. It is worked
        out once."""
        committee, key = self._committee, replace(setting, aggregation="gpoe")
        likelihood = getattr(committee, "likelihood", Gaussian())
        several = committee.is_exact and committee.n_experts > 1
        trained = self._trained  # else θ was given, and so are the deviations
        if not isinstance(likelihood, Gaussian) or not (several or trained):
            return calibration.Comparison({}, "gpoe")
        known = self._rules.get(key)
        if known is None or (several and not known.scores):  # one expert has become several
            rows = self._calibration_rows
            noise, targets = self._noise(), committee.targets(rows)
            rules = ("gpoe", "nested") if several else ("gpoe",)
            moments = {rule: self._everyone(replace(key, aggregation=rule)) for rule in rules}

            def judged(mean: Array, var: Array) -> tuple[Array, Deviations]:
                std = np.sqrt(var + (noise if setting.space == "f" else 0.0))
                said = deviations.found((targets - mean) / std) if trained else GAUSSIAN
                said = said.within(std)
                density = said.log_density(targets, mean, said.reported(std))
                return density, said.times(self._scaling.y_scale)

            found = calibration.Comparison.of(
                {r: judged(*m) for r, m in moments.items()}, committee.n_experts
            )
            if self.verbose:
                if found.scores:
                    scores = ", ".join(f"{rule} {v:.4f}" for rule, v in found.scores.items())
                    print(f"aggregation: {found.chosen}; NLPD by leave-one-out: {scores}")
                said = found.deviations
                if said.scale != 1.0:
                    print(f"deviations are multiplied by {said.scale:.3g}")
                if not said.gaussian:
                    print(
                        f"tails are heavier than Gaussian: Student's t with {said.freedom:.3g} "
                        "degrees of freedom"
                    )
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
            nlpd = found.nlpd[found.temperatures == chosen][0]
            print(f"{what}: {chosen:.3g}, NLPD by leave-one-out {nlpd:.4f}")
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
        automatic, best_rule = is_auto(given["temperature"]), is_auto(given["aggregation"])
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
            setting = replace(setting, aggregation=found.chosen, deviations=found.deviations)
        return setting

    def _route(self, setting: Setting) -> routing.Net:
        """Which experts are asked under a setting (by the nested rule, to find the most confident).
        It is worked out once."""
        committee, key = self._committee, (setting, float(self.routing_tol))
        if self.routing is None or not routing.has_route(setting):
            return routing.Net()
        if committee.n_experts < auditing.LEAST_EXPERTS:
            return routing.Net()
        if key not in self._routes:
            audit: Callable[..., routing.Net]
            said: tuple[Any, ...]
            if setting.aggregation == "nested":
                audit, said = auditing.audit_nested, (self._confident.get(setting.n_nearest),)
            else:
                prior = self._committee_and_prior("", committee.inputs(self._calibration_rows))[1]
                everyone = self._everyone(replace(setting, deviations=GAUSSIAN))
                audit, said = auditing.audit, (prior, everyone)
            with committee.engine(self.n_jobs) as engine:
                committee.prepare_once(engine)
                self._routes[key] = audit(
                    committee, self._calibration_rows, setting, self._noise(),
                    self._guided(engine), self.routing_tol, engine, *said,
                )  # fmt: skip
        return self._routes[key]

    def _guided(self, engine: LocalEngine) -> routing.Guide:
        if self._guide is None:
            self._guide = routing.Guide(self._committee, engine)
        self._guide.update(self._committee, engine)
        return self._guide

    def _noise(self) -> float:
        """The noise variance of y, where it has one beside the latent function."""
        likelihood = getattr(self._committee, "likelihood", Gaussian())
        return self._committee.theta.noise_variance if isinstance(likelihood, Gaussian) else 0.0

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

    def _progress(self, what: str, total: int, unit: str) -> tqdm:
        return progress(total=total, desc=what, unit=unit, disable=not self.verbose)


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _key(setting: Setting) -> Setting:
    """A setting but for its temperature, and for what no rule with a temperature looks at."""
    return replace(setting, temperature=calibration.INDIFFERENT, n_nearest=Setting.n_nearest)
