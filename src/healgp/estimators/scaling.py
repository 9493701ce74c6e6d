"""The scale of columns."""

from __future__ import annotations

import numpy as np


def center_and_scale(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation along the rows; a deviation of 1 where a column is constant.

    Deviations are divided by the largest before squaring, so that no scale overflows.
    """
    center = A.mean(axis=0)
    deviation = A - center
    largest = np.abs(deviation).max(axis=0)
    # The mean of equal numbers can differ from them by rounding.
    constant = largest <= 8.0 * np.finfo(float).eps * np.abs(center)
    safe = np.where(constant, 1.0, largest)
    scale = safe * np.sqrt(np.mean((deviation / safe) ** 2, axis=0))
    return center, np.where(constant, 1.0, scale)
