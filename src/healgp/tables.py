"""Tables as people have them: read from files, fitted, predicted, written.

A `TableModel` is an estimator together with what becomes of a table's columns on their way to it;
it is saved and loaded as one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import typing
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from healgp import persistence
from healgp.checks import check_number
from healgp.columns import Column, TableEncoder, as_numbers, describe, kind_of, pd, texts
from healgp.encoding import Decoder, Encoder, checked
from healgp.estimators.classifier import ExpertGPClassifier
from healgp.estimators.regressor import ExpertGPRegressor

Array = np.ndarray

TASKS = ("regression", "classification", "counts")

#: Different values of a target that can be classes.
_MOST_CLASSES = 500

#: Rows from which inputs beyond some hundred columns make distances mean little.
_MANY_INPUTS = 200


# ---- files ---------------------------------------------------------------------------------------


def _parquet(path: Path) -> pd.DataFrame:
    from pyarrow import parquet

    return _frame(parquet.read_table(path))


def _feather(path: Path) -> pd.DataFrame:
    from pyarrow import feather

    return _frame(feather.read_table(path))


def _frame(table: Any) -> pd.DataFrame:
    """The columns alone. What pandas wrote beside them would be parsed as Python; of that only the
    names of the index are used, which is left out."""
    table.validate(full=True)  # the places of texts must lie within the file
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    names = [name for name in table.column_names if name in index]
    return table.drop_columns(names).to_pandas(ignore_metadata=True)


def _text(path: Path, separator: str) -> pd.DataFrame:
    table = pd.read_csv(path, sep=separator, low_memory=False)
    for name, column in table.items():  # pandas before 3 takes numbers such as 1e999 for words
        if pd.api.types.infer_dtype(column) == "string":
            with contextlib.suppress(ValueError):
                table[name] = column.astype(float)
    return table


_READERS: dict[str, Any] = {
    ".csv": lambda path: _text(path, ","),
    ".tsv": lambda path: _text(path, "\t"),
    ".parquet": _parquet,
    ".pq": _parquet,
    ".feather": _feather,
    ".arrow": _feather,
}
_WRITERS: dict[str, Any] = {
    ".csv": lambda table, path: table.to_csv(path, index=False),
    ".tsv": lambda table, path: table.to_csv(path, sep="\t", index=False),
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
    ".pq": lambda table, path: table.to_parquet(path, index=False),
    ".feather": lambda table, path: table.to_feather(path),
    ".arrow": lambda table, path: table.to_feather(path),
}
FORMATS = tuple(_WRITERS)


def extension(path: str | os.PathLike[str]) -> str:
    """The extension that says how to read or write a table; a ValueError if it is not known."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    found = suffixes[-1] if suffixes else ""
    if found not in FORMATS or (found not in (".csv", ".tsv") and Path(path).suffix == ".gz"):
        raise ValueError(f"{path}: tables are files that end in {', '.join(FORMATS)}.")
    return found


def read(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A table from CSV, Parquet (one file or a folder of them) or Feather."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if path.is_dir():
        if not any(path.rglob("*.parquet")):
            raise ValueError(f"{path} is a folder without .parquet files.")
        reader = _parquet
    else:
        reader = _READERS[extension(path)]
    try:
        table = reader(path)
    except ImportError:
        raise
    except MemoryError as error:
        raise MemoryError(f"{path} cannot be read, for want of memory: {error}") from None
    except Exception as error:  # what readers of a damaged file may raise has no end
        lines = str(error).strip("'\" \n").splitlines() or [type(error).__name__]
        raise ValueError(f"{path} cannot be read: {lines[0]}") from None
    table.columns = [str(name) for name in table.columns]
    repeated = table.columns[table.columns.duplicated()]
    if len(repeated):
        raise ValueError(f"{path} has more than one column called {repeated[0]!r}.")
    if not len(table) or not len(table.columns):
        raise ValueError(f"{path} has no rows.")
    return table.reset_index(drop=True)


def write(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Writes a table in the format that the name asks for: under another name, and renamed when it
    is complete."""
    path, kind = Path(path), extension(path)
    unfinished = path.with_name(f".{secrets.token_hex(8)}-{path.name}")
    try:
        _WRITERS[kind](table, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


# ---- targets -------------------------------------------------------------------------------------


def task_of(target: pd.Series) -> tuple[str, str]:
    """What a target is predicted by, and why in words."""
    kind = kind_of(target)
    if kind in ("date", "duration"):
        raise ValueError(
            f"The target {target.name!r} is a {kind}. Make a number of it, such as days since an "
            "event."
        )
    n = target.nunique()
    if kind in ("boolean", "category"):
        return (
            "classification",
            f"the target is {'text' if kind == 'category' else 'true or false'}",
        )
    values = as_numbers(target.dropna(), "number")
    if n == 2:
        return "classification", "the target has two values"
    if (values == np.floor(values)).all() and values.min() == 0:
        return "counts", "the target is whole numbers from 0 on"
    return "regression", "the target is numbers"


def targets(values: pd.Series, task: str, classes: Array | None = None) -> Array:
    """A target without missing values as the estimators want it: numbers, or labels (of the type
    of `classes`, if these are known)."""
    if task != "classification":
        if kind_of(values) in ("category", "date", "duration"):
            raise ValueError(f"The target {values.name!r} is not numbers, which {task} needs.")
        numbers = as_numbers(values, "number")
        wrong = np.flatnonzero((numbers < 0) | (numbers != np.floor(numbers)))
        if task == "counts" and len(wrong):
            raise ValueError(
                f"The target {values.name!r} has {len(wrong):,} values that are no counts (the "
                f"first in row {values.index[wrong[0]] + 1:,}): counts are 0, 1, 2, … Use --task "
                "regression."
            )
        return numbers
    kind = kind_of(values) if classes is None else {"b": "boolean", "i": "number"}.get(
        classes.dtype.kind, "category"
    )  # fmt: skip
    if kind == "boolean":
        return as_numbers(values, "boolean").astype(bool)
    if kind == "number":
        numbers = as_numbers(values, "number")
        if (numbers == np.floor(numbers)).all():
            return numbers.astype(np.int64)
    return texts(values).to_numpy(dtype=str)


# ---- models --------------------------------------------------------------------------------------


class TableModel:
    """An estimator, and how a table becomes its inputs. Made by `TableModel.fit`.

    >>> import pandas as pd
    >>> from healgp.tables import TableModel
    >>> table = pd.DataFrame({"size": range(60), "kind": ["a", "b"] * 30})
    >>> table["price"] = 0.5 * table["size"] + 3.0 * (table["kind"] == "a")
    >>> model = TableModel.fit(table, "price", random_state=0)
    >>> list(model.predict(table[:2]).columns)
    ['mean', 'std', 'lower', 'upper']
    """

    def __init__(
        self, encoder: TableEncoder, estimator: Any, target: str, task: str, notes: Sequence[str]
    ) -> None:
        self.encoder, self.estimator = encoder, estimator
        self.target, self.task, self.notes = target, task, list(notes)

    @classmethod
    def fit(
        cls, table: pd.DataFrame, target: str, task: str = "auto", drop: Sequence[str] = (),
        **parameters: Any,
    ) -> TableModel:  # fmt: skip
        """A model of the column `target` from all others but those to `drop`; `parameters` are the
        estimator's. `notes` says, in one line per column, what was done."""
        for name in (target, *drop):
            if name not in table.columns:
                raise ValueError(
                    f"The table has no column {name!r}. It has: "
                    f"{', '.join(map(str, table.columns[:30]))}"
                    + (", …" if len(table.columns) > 30 else ".")
                )
        notes, there = [], table[target].notna()
        if not there.any():
            raise ValueError(f"The target {target!r} is missing in every row.")
        if not there.all():
            notes.append(f"{int((~there).sum()):,} rows without a target are left out")
            table = table[there]
        if task == "auto":
            task, why = task_of(table[target])
            others = " or ".join(name for name in TASKS if name != task)
            notes.append(f"{target}: the target, for {task}: {why} (--task for {others})")
        else:
            notes.append(f"{target}: the target, for {task}")
        y = targets(table[target], task)
        if task == "classification" and len(np.unique(y)) > _MOST_CLASSES:
            raise ValueError(
                f"The target {target!r} has {len(np.unique(y)):,} different values, and "
                f"{_MOST_CLASSES} classes are the most. Use --task regression if they are numbers."
            )
        columns = []
        for name in table.columns:
            if name != target and name not in drop:
                column, said = describe(table[name])
                notes.append(said)
                columns += [] if column is None else [column]
        if not columns:
            raise ValueError(f"Beside the target {target!r} the table has no column to learn from.")
        encoder = TableEncoder(columns)
        if len(encoder.outputs) > _MANY_INPUTS:
            notes.append(
                f"{len(encoder.outputs):,} inputs are many for a Gaussian process: with fewer "
                "columns it may predict better"
            )
        X = encoder.transform(table)[0]
        estimator: Any
        if task == "classification":
            estimator = ExpertGPClassifier(**parameters)
        else:
            likelihood = "poisson" if task == "counts" else "gaussian"
            estimator = ExpertGPRegressor(likelihood=likelihood, **parameters)
        return cls(encoder, estimator.fit(X, y), target, task, notes)

    def inputs(self, table: pd.DataFrame) -> pd.DataFrame:
        """The estimator's inputs; warns of values that training did not have."""
        X, said = self.encoder.transform(table)
        for line in said:
            warnings.warn(line, UserWarning, stacklevel=3)
        return X

    def targets(self, table: pd.DataFrame) -> Array:
        """The target of rows that have one."""
        classes = self.estimator.classes_ if self.task == "classification" else None
        return targets(table[self.target], self.task, classes)

    @property
    def predicted(self) -> list[str]:
        """Names of the columns that `predict` gives."""
        if self.task == "classification":
            return ["class", *(f"probability_{name}" for name in self.estimator.classes_)]
        return ["mean", "std", "lower", "upper"]

    def predict(self, table: pd.DataFrame, coverage: float = 0.95) -> pd.DataFrame:
        """mean, std, lower and upper of each row; of classes, the class and the probability of
        each. Columns may come in any order, and others may be there."""
        check_number("coverage", coverage, 0, positive=True)
        if coverage >= 1:
            raise ValueError(f"coverage={coverage!r} must be below 1; for 95 % it is 0.95.")
        X = self.inputs(table)
        if self.task == "classification":
            p = self.estimator.predict_proba(X)
            found = [self.estimator.classes_[p.argmax(axis=1)], *p.T]
        else:
            mean, std = self.estimator.predict(X, return_std=True)
            if self.task == "regression":
                half = self.estimator._half_width(std, coverage)
                lower, upper = mean - half, mean + half
            else:
                lower, upper = self.estimator.predict_interval(X, coverage=coverage)
            found = [mean, std, lower, upper]
        return pd.DataFrame(dict(zip(self.predicted, found, strict=True)), index=table.index)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves estimator and columns together, for `healgp.load`."""
        persistence.save(self, path)

    def _to_plain(self, encoder: Encoder) -> dict[str, Any]:
        columns = [asdict(c) | {"categories": list(c.categories)} for c in self.encoder.columns]
        return {
            "target": self.target,
            "task": self.task,
            "columns": columns,
            "notes": self.notes,
            "estimator": persistence.to_plain(self.estimator, encoder),
        }

    @classmethod
    def _from_plain(cls, plain: dict[str, Any], decoder: Decoder) -> TableModel:
        hints = typing.get_type_hints(Column) | {"categories": list[str]}
        columns = []
        for given in checked("columns", plain.get("columns"), list[dict[str, Any]]):
            values = {name: checked(name, given.get(name), hint) for name, hint in hints.items()}
            columns.append(Column(**values | {"categories": tuple(values["categories"])}))
        target = checked("target", plain.get("target"), str)
        task = checked("task", plain.get("task"), str)
        notes = checked("notes", plain.get("notes"), list[str])
        estimator = persistence.from_plain(plain.get("estimator"), decoder)
        kind = ExpertGPClassifier if task == "classification" else ExpertGPRegressor
        encoder = TableEncoder(columns)
        names = getattr(estimator, "feature_names_in_", np.array([])).tolist()
        if task not in TASKS or not isinstance(estimator, kind) or names != encoder.outputs:
            raise ValueError("its columns and its estimator do not belong together")
        return cls(encoder, estimator, target, task, notes)


persistence.KINDS["TableModel"] = persistence.Kind(
    TableModel, TableModel._to_plain, TableModel._from_plain
)
