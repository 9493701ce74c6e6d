"""healgp: Gaussian processes on large data, by committees of small experts with healed weights."""

from healgp import aggregation, datasets, metrics, weights
from healgp.diagnosis import diagnose
from healgp.estimators.classifier import ExpertGPClassifier
from healgp.estimators.regressor import ExpertGPRegressor
from healgp.persistence import load

__version__ = "0.1.0"

__all__ = [
    "ExpertGPClassifier",
    "ExpertGPRegressor",
    "aggregation",
    "datasets",
    "diagnose",
    "load",
    "metrics",
    "weights",
]
