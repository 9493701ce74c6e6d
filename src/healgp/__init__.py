"""healgp: Gaussian processes on large data, by committees of small experts with healed weights."""

from healgp import aggregation, datasets, metrics, weights
from healgp.estimators.regressor import ExpertGPRegressor

__version__ = "0.1.0"

__all__ = ["ExpertGPRegressor", "aggregation", "datasets", "metrics", "weights"]
