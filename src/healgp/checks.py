"""Checks of parameters: an error names the parameter, what it was, and what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np


def choose(name: str, value: Any, known: Sequence[str]) -> str:
    """`value`, or a ValueError that lists the known ones."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r} is not known. Choose one of: {', '.join(known)}.")
    return value


def check_number(
    name: str, value: Any, least: float, *, integer: bool = False, positive: bool = False
) -> None:
    """A ValueError unless it is a finite number of at least `least` (above it if `positive`)."""
    kind = Integral if integer else Real
    ok = isinstance(value, kind) and not isinstance(value, bool) and np.isfinite(float(value))
    if not ok or value < least or (positive and value == least):
        wanted = "a whole number" if integer else "a finite number"
        bound = f"above {least:g}" if positive else f"of at least {least:g}"
        raise ValueError(f"{name}={value!r} must be {wanted} {bound}.")
