"""Pictures, with matplotlib (the extra `plots`); every function takes an Axes and returns it."""

from healgp.plots.choices import relevance, temperature, training_curve
from healgp.plots.experts import experts_map, votes
from healgp.plots.fits import fit, fit_1d
from healgp.plots.pathologies import pathologies
from healgp.plots.quality import calibration, pit, predicted_observed, residuals
from healgp.plots.style import FIT, FULL, INK

__all__ = [
    "FIT",
    "FULL",
    "INK",
    "calibration",
    "experts_map",
    "fit",
    "fit_1d",
    "pathologies",
    "pit",
    "predicted_observed",
    "relevance",
    "residuals",
    "temperature",
    "training_curve",
    "votes",
]
