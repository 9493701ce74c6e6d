"""How good predictions are: pure functions of y [n] and of Gaussian predictions, mean [n], std [n],
or of probabilities [n, C].

`std` is that of y, noise included, in the units of y.

>>> import numpy as np
>>> from healgp import metrics
>>> y, mean, std = np.array([0.0, 2.0]), np.array([0.0, 0.0]), np.array([1.0, 1.0])
>>> round(metrics.nlpd(y, mean, std), 4), metrics.coverage(y, mean, std, 0.95)
(1.9189, 0.5)
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

Array = np.ndarray


def aligned(y: Array, *predictions: Array) -> list[Array]:
    """As floats; shapes must be equal (a number is allowed), for a column y would spread out."""
    arrays = [np.asarray(a, dtype=float) for a in (y, *predictions)]
    for a in arrays[1:]:
        if a.ndim and a.shape != arrays[0].shape:
            raise ValueError(f"y has shape {arrays[0].shape}, but its predictions {a.shape}.")
    return arrays


def log_density(y: Array, mean: Array, std: Array) -> Array:
    """log N(y | m, s²) of each row."""
    y, mean, std = aligned(y, mean, std)
    return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)


def nlpd(y: Array, mean: Array, std: Array) -> float:
    """Negative log predictive density, the mean over rows of −log N(y | m, s²)."""
    return float(-log_density(y, mean, std).mean())


def rmse(y: Array, mean: Array) -> float:
    """Root of the mean squared error."""
    y, mean = aligned(y, mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def coverage(y: Array, mean: Array, std: Array, level: float = 0.95) -> float:
    """Share of rows within the central interval of the given level, m ± s Φ⁻¹((1 + level)/2)."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r} must be between 0 and 1.")
    y, mean, std = aligned(y, mean, std)
    return float(np.mean(np.abs(y - mean) <= ndtri((1.0 + level) / 2.0) * std))


def crps(y: Array, mean: Array, std: Array) -> float:
    """Continuous ranked probability score, the mean over rows of
    s [z(2Φ(z) − 1) + 2φ(z) − 1/√π] with z = (y − m)/s; in the units of y, smaller is better."""
    y, mean, std = aligned(y, mean, std)
    z = (y - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return float(np.mean(std * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi))))


def top_k_accuracy(y: Array, probabilities: Array, k: int = 1) -> float:
    """Share of rows whose class y [n], a column's number, is among the k most probable of
    probabilities [n, C]; classes that are equally probable count by their order."""
    y, probabilities = np.asarray(y), np.asarray(probabilities, dtype=float)
    if probabilities.ndim != 2 or y.shape != probabilities.shape[:1]:
        raise ValueError(f"y has shape {y.shape}, but probabilities {probabilities.shape}.")
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
    return float(np.mean((order == y[:, None]).any(axis=1)))
