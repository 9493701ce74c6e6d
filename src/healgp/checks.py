"""Checks of parameters: an error names the parameter, what it was, and what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

#: No number that a user sets needs to be larger.
LARGEST = 1e100


def choose(name: str, value: Any, known: Sequence[str]) -> str:
    """`value`, or a ValueError that lists the known ones."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r} is not known. Choose one of: {', '.join(known)}.")
    return value


def check_number(
    name: str, value: Any, least: float, *, integer: bool = False, positive: bool = False
) -> None:
    """A ValueError unless it is a finite number of at least `least` (above it if `positive`)."""
    ok = isinstance(value, Integral if integer else Real) and not isinstance(value, bool)
    number: Any = value
    ok = ok and least <= number <= LARGEST
    if not ok or (positive and value == least):
        wanted = "a whole number" if integer else "a number"
        bound = f"above {least:g}" if positive else f"from {least:g}"
        raise ValueError(f"{name}={value!r} must be {wanted} {bound} to {LARGEST:g}.")


def check_bool(name: str, value: Any) -> None:
    """A ValueError unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={value!r} must be True or False.")
