"""Rows as arrays: scikit-learn's checks, in words that show nothing of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

Array = np.ndarray

#: What scikit-learn and NumPy say with values of the data in it, and what is said instead.
_WITHOUT_VALUES = (
    (
        r"could not convert string to float.*",
        "could not convert string to float: there is text where numbers are needed. Encode it "
        "first, for instance with sklearn.preprocessing.OneHotEncoder, or leave it to "
        "healgp.tables, which does.",
    ),
    (r":\s*array=.*\.\s*(Reshape your data)", r". \1"),
    (r"(Complex data not supported).*", r"\1: give the real part, or parts as columns."),
)


def validated(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """X [N, D] of floats, finite, and y if it is given, as scikit-learn's validate_data gives
    them."""
    with _without_values():
        for name, values in zip("Xy", (X, *y), strict=False):
            _check_unmasked(name, values)
        return validate_data(estimator, X, *y, dtype=np.float64, order="C", **options)


def validated_target(y: Any) -> Array:
    """Finite floats."""
    with _without_values():
        _check_unmasked("y", y)
        return check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")


def _check_unmasked(name: str, values: Any) -> None:
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} has masked values, which are missing ones. Fill them in, or leave their rows "
            "out."
        )


@contextmanager
def _without_values() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        said = str(error)
        for pattern, words in _WITHOUT_VALUES:
            said = re.sub(pattern, words, said, flags=re.DOTALL)
        if said == str(error):
            raise
        raise type(error)(said) from None
