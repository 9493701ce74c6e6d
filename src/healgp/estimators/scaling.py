"""What X and y are shifted and divided by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Scaling:
    """Z = (X − x_center) / x_scale, t = (y − y_center) / y_scale; and the deviations that Z and t
    still have (NaN for a constant column), which bound the hyperparameters."""

    x_center: Array
    x_scale: Array
    y_center: float
    y_scale: float
    x_left: Array
    y_left: float

    @classmethod
    def of(cls, X: Any, y: Any, standardize: bool) -> Scaling:
        """Of X and y, arrays or rows that lie elsewhere; y=None stands for targets that are left as
        they are, counts or classes."""
        with np.errstate(over="ignore", invalid="ignore"):
            x_center, x_scale = center_and_scale(X)
            y_center, y_scale = 0.0, 1.0
            if y is not None:
                y_center, y_scale = (float(v) for v in center_and_scale(y))
        for name, center, scale in (("X", x_center, x_scale), ("y", y_center, y_scale)):
            if np.isinf(scale).any() or not np.isfinite(center).all():
                raise ValueError(f"The values of {name} are too large: their spread overflows.")
            outside = (scale < 1e-100) | (scale > 1e100)  # False for NaN, a constant
            if not standardize and np.any(outside):
                raise ValueError(
                    f"The deviation of {name} is outside 1e-100 to 1e100, which needs "
                    "standardize=True."
                )
        D = len(x_scale)
        if not standardize:
            y_left = y_scale if y_scale > 0 else 1.0
            return cls(np.zeros(D), np.ones(D), 0.0, 1.0, x_scale, y_left)
        constant = np.isnan(x_scale)
        return cls(
            x_center,
            np.where(constant, 1.0, x_scale),
            y_center,
            y_scale if y_scale > 0 else 1.0,
            np.where(constant, np.nan, 1.0),
            1.0,
        )

    def inputs(self, X: Array) -> Array:
        return (X - self.x_center) / self.x_scale

    def targets(self, y: Array) -> Array:
        return (y - self.y_center) / self.y_scale

    def mean(self, mean: Array) -> Array:
        """Back to the units of y."""
        return mean * self.y_scale + self.y_center

    def std(self, var: Array) -> Array:
        return np.sqrt(var) * self.y_scale

    def var(self, var: Array) -> Array:
        if not 1e-150 < self.y_scale < 1e150:
            raise ValueError(
                f"A variance in the unit of y² is beyond what a float holds: y deviates by "
                f"{self.y_scale:.3g}. Divide y by that first, or ask for deviations, "
                "predict(X, return_std=True)."
            )
        return var * self.y_scale**2


def center_and_scale(A: Any) -> tuple[Array, Array]:
    """Mean and standard deviation along the rows, to 26 bits: those of any blocks of the same rows
    are the same. The deviation of a constant column is NaN.

    Deviations are divided by the largest before squaring, so that no scale overflows. A is an
    array, or rows that give a function of their blocks.
    """
    center = np.sum(blockwise(A, lambda block: block.sum(axis=0)), axis=0) / len(A)
    largest = np.max(blockwise(A, lambda block: np.abs(block - center).max(axis=0)), axis=0)
    # The mean of equal numbers can differ from them by rounding.
    constant = largest <= 8.0 * np.finfo(float).eps * np.abs(center)
    safe = np.where(constant, 1.0, largest)
    squares = blockwise(A, lambda block: (((block - center) / safe) ** 2).sum(axis=0))
    scale = _rounded(safe * np.sqrt(np.sum(squares, axis=0) / len(A)))
    scale = np.where(constant, np.nan, scale)
    rounded = scale * _rounded(center / scale, relative=False)
    return np.where(constant, center, rounded), scale


def blockwise(A: Any, function: Callable[[Array], Any]) -> list[Any]:
    """function(block) of the blocks of A: of an array there is one."""
    return A.each(function) if hasattr(A, "each") else [function(A)]


def _rounded(values: Array, relative: bool = True) -> Array:
    """To 26 bits after the first, or after the point."""
    exponent = np.frexp(values)[1] if relative else 0
    return np.ldexp(np.round(np.ldexp(values, 26 - exponent)), exponent - 26)
