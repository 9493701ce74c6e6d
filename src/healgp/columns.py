"""A table's columns as numbers: what each column is, and what is done to it.

Numbers, dates (as days since 1970) and booleans become one number each, text and categories one
column of zeros and ones for each value. Where values are missing the median stands for them and a
further column says so; text that is missing is a value of its own. The target has no part in it.

A `Column` says all of that in plain words, so that a saved model needs nothing else: scikit-learn's
transformers are made from it anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

try:
    import pandas as pd
except ImportError:  # pragma: no cover
    raise ImportError("Tables need a few more packages: pip install 'healgp[cli]'") from None

Array = np.ndarray

#: Different values that a text column may have, for each becomes a column of its own.
MOST_CATEGORIES = 50

KINDS = ("number", "date", "duration", "boolean", "category")

_ISO_DATE = re.compile(r"\d{4}-\d{2}")

#: What pandas calls the values of a column that has no type of its own.
_INFERRED = {
    "boolean": "boolean", "date": "date", "datetime": "date", "datetime64": "date",
    "timedelta": "duration", "timedelta64": "duration", "decimal": "number", "integer": "number",
    "floating": "number", "mixed-integer-float": "number", "string": "category",
    "mixed-integer": "category", "categorical": "category",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column of the table: its kind, and what was seen in training."""

    name: str
    kind: str
    has_missing: bool
    fill: float = 0.0  # what stands for missing numbers
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.kind == "category" and not self.categories):
            raise ValueError(f"the column {self.name!r} is of no known kind")
        if len(set(self.categories)) != len(self.categories) or not np.isfinite(self.fill):
            raise ValueError(f"the column {self.name!r} is not as a model has it")

    @property
    def outputs(self) -> list[str]:
        """Names of the inputs of the model that it becomes."""
        if self.kind == "category":
            names = [f"{self.name}={value}" for value in self.categories]
        else:
            names = [self.name]
        return names + ([f"{self.name} is missing"] if self.has_missing else [])


def kind_of(values: pd.Series) -> str | None:
    """The kind of a column, None if it holds no value at all; a ValueError if it is none."""
    types = pd.api.types
    if values.isna().all():
        return None
    if isinstance(values.dtype, pd.CategoricalDtype):
        return "category"
    if types.is_bool_dtype(values.dtype):
        return "boolean"
    if types.is_numeric_dtype(values.dtype) and not types.is_complex_dtype(values.dtype):
        return "number"
    if types.is_datetime64_any_dtype(values.dtype):
        return "date"
    if types.is_timedelta64_dtype(values.dtype):
        return "duration"
    kind = _INFERRED.get(types.infer_dtype(values, skipna=True))
    if kind is None:
        raise ValueError(
            f"The column {values.name!r} holds neither numbers, text, dates nor booleans. Leave it "
            "out (--drop), or make one of these of it."
        )
    if kind == "category" and _dates(values).notna().sum() == values.notna().sum():
        return "date"
    return kind


def describe(values: pd.Series) -> tuple[Column | None, str]:
    """What becomes of a column, None if nothing; and that in words."""
    name, missing = str(values.name), int(values.isna().sum())
    kind, rows = kind_of(values), len(values)
    if kind is None:
        return None, f"{name}: left out, it has no values"
    lacking = f", {missing:,} of {rows:,} missing" if missing else ""
    if kind == "category":
        found = sorted(set(texts(values).dropna()))
        if len(found) > MOST_CATEGORIES:
            raise ValueError(
                f"The column {name!r} has {len(found):,} different texts, and {MOST_CATEGORIES} "
                f"are the most that can become columns. Leave it out with --drop {name!r}, or make "
                "numbers or fewer categories of it. (Dates are understood if written 2024-01-31.)"
            )
        if len(found) == 1 and not missing:
            return None, f"{name}: left out, it is the same in every row"
        said = f"{name}: text, {len(found)} values, a column of 0 and 1 for each"
        if missing:
            said += f"{lacking}: one more column says where"
        return Column(name, kind, missing > 0, categories=tuple(found)), said
    numbers = as_numbers(values, kind)
    some = numbers[np.isfinite(numbers)]
    if not missing and (some == some[0]).all():
        return None, f"{name}: left out, it is the same in every row"
    unit = {"date": ", as days since 1970", "duration": ", in days"}.get(kind, "")
    said = f"{name}: {kind}{unit}"
    if missing:
        said += f"{lacking}: the median stands there, and one more column says where"
    return Column(name, kind, missing > 0, fill=float(np.median(some))), said


def as_numbers(values: pd.Series, kind: str) -> Array:
    """A column of any kind but text as float64, NaN where it is missing; a ValueError where it is
    not of that kind or is infinite."""
    types = pd.api.types
    is_time = types.is_datetime64_any_dtype(values.dtype), types.is_timedelta64_dtype(values.dtype)
    is_number = types.is_numeric_dtype(values.dtype)
    if any(is_time) if kind in ("number", "boolean") else is_number:
        numbers = np.full(len(values), np.nan)  # pandas would count nanoseconds
    elif kind == "date":
        days = (_dates(values) - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        numbers = days.to_numpy(dtype=float, na_value=np.nan)
    elif kind == "duration":
        lengths = pd.to_timedelta(values, errors="coerce")
        numbers = (lengths / pd.Timedelta(days=1)).to_numpy(dtype=float, na_value=np.nan)
    else:
        if kind == "boolean":
            values = _truth(values)
        found = pd.to_numeric(values, errors="coerce")
        numbers = found.to_numpy(dtype=float, na_value=np.nan)
    wrong = np.flatnonzero(np.isnan(numbers) & values.notna().to_numpy(dtype=bool))
    if len(wrong):
        raise ValueError(
            f"The column {values.name!r} is of the kind {kind}, and {len(wrong):,} of its values "
            f"are not (the first in row {wrong[0] + 1:,})."
        )
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        raise ValueError(
            f"The column {values.name!r} has {len(infinite):,} infinite values (the first in row "
            f"{infinite[0] + 1:,}). Make them missing, or leave those rows out."
        )
    return numbers


def texts(values: pd.Series) -> pd.Series:
    """A column as text, None where it is missing; numbers that are whole have no fraction, however
    they were stored."""

    def text(value: Any) -> str:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)
        return str(value)

    plain = values.astype(object)
    return plain.map(text, na_action="ignore").where(plain.notna(), None)


def _truth(values: pd.Series) -> pd.Series:
    """Booleans, also where they were read as text."""
    known = {"true": 1.0, "false": 0.0}
    return values.astype(object).map(
        lambda v: known.get(v.lower(), v) if isinstance(v, str) else v, na_action="ignore"
    )


def _dates(values: pd.Series) -> pd.Series:
    """Dates and times in UTC, NaT where there is none; text is a date if written as ISO 8601."""
    if not pd.api.types.is_datetime64_any_dtype(values.dtype):
        plain = values.astype(object)
        is_text = plain.map(lambda v: isinstance(v, str), na_action="ignore").eq(True)
        iso = plain.map(lambda v: bool(_ISO_DATE.match(v)) if isinstance(v, str) else False)
        values = plain.where(~is_text | iso, None)
        return pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True)
    return pd.to_datetime(values, utc=True)


class TableEncoder:
    """From the columns of a table to the inputs of a model, the same way every time."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = list(columns)
        steps: list[tuple[str, Any, list[str]]] = []
        for number, column in enumerate(self.columns):
            if column.kind == "category":
                values = [*column.categories] + [None] * column.has_missing
                step: Any = OneHotEncoder(
                    categories=[np.array(values, dtype=object)], handle_unknown="ignore",
                    sparse_output=False,
                )  # fmt: skip
            else:
                step = SimpleImputer(
                    strategy="constant", fill_value=column.fill, add_indicator=column.has_missing,
                    keep_empty_features=True,
                )  # fmt: skip
            steps.append((str(number), step, [column.name]))
        repeated = {name for name in self.outputs if self.outputs.count(name) > 1}
        if repeated:
            raise ValueError(f"Two columns would become {min(repeated)!r}. Give one another name.")
        # Nothing is left to learn: two rows show each step its type and what may be missing.
        examples = {column.name: _example(column) for column in self.columns}
        self._transformer = ColumnTransformer(steps).fit(pd.DataFrame(examples))

    @property
    def outputs(self) -> list[str]:
        return [name for column in self.columns for name in column.outputs]

    def transform(self, table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """Inputs of the model [n, D], and what had to be said about them."""
        lacking = [c.name for c in self.columns if c.name not in table.columns]
        if lacking:
            raise ValueError(
                f"The table lacks {'a column' if len(lacking) == 1 else 'columns'} that the model "
                f"was fitted with: {', '.join(map(repr, lacking))}."
            )
        typed, said = {}, []
        for column in self.columns:
            values = table[column.name]
            missing = int(values.isna().sum())
            if column.kind == "category":
                values = texts(values)
                known = values.isin(column.categories) | values.isna()
                if not known.all():
                    n = values[~known].nunique()
                    said.append(
                        f"The column {column.name!r} has {n:,} {'value' if n == 1 else 'values'} "
                        f"that training did not have, in {int((~known).sum()):,} of its rows: they "
                        "count as none of those it had."
                    )
                typed[column.name] = values.astype(object).where(values.notna(), None)
            else:
                typed[column.name] = pd.Series(as_numbers(values, column.kind), index=table.index)
            if missing and not column.has_missing:
                said.append(
                    f"The column {column.name!r} is missing in {missing:,} rows, and never was in "
                    "training: " + ("they count as none of its values."
                                    if column.kind == "category" else "the median stands there.")
                )  # fmt: skip
        found = self._transformer.transform(pd.DataFrame(typed, index=table.index))
        return pd.DataFrame(found, columns=self.outputs, index=table.index), said


def _example(column: Column) -> pd.Series:
    value = column.categories[0] if column.categories else 0.0
    return pd.Series(
        [value, None if column.has_missing else value], dtype=object if column.categories else float
    )
