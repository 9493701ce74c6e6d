"""What `healgp fit`, `predict`, `evaluate` and `info` do, and what they say: functions that return
what `--json` prints."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from healgp import diagnose, load
from healgp.tables import TableModel, extension, pd, read, write

#: Rows of an evaluation that count as few.
_FEW = 100


def fit(
    data: Path, target: str, out: Path, task: str, drop: list[str], parameters: dict[str, Any]
) -> dict[str, Any]:
    """Fits a model of a table's column and saves it."""
    table = read(data)
    start = time.monotonic()
    with two_interrupts():
        model = TableModel.fit(table, target, task, drop, **parameters)
        seconds = time.monotonic() - start
        model.estimator.set_params(verbose=0)
        model.save(out)  # before what an interrupt has left to be chosen is chosen
        said = describe(model)
    return {"model": str(out), "seconds": round(seconds, 3)} | said


def predict(
    model_path: Path, data: Path, out: Path, coverage: float, keep: bool, verbose: bool
) -> dict[str, Any]:
    """Predicts every row of a table and writes the predictions."""
    extension(out)
    if out.resolve() == data.resolve():
        raise ValueError(f"{out} is the data itself. Give the predictions another name.")
    model, table = table_model(model_path), read(data)
    model.estimator.set_params(verbose=int(verbose))
    both = [name for name in model.predicted if name in table.columns]
    if keep and both:
        raise ValueError(
            f"{data} has a column {both[0]!r}, as the predictions do. Rename it, or leave --keep "
            "out."
        )
    found = model.predict(table, coverage)
    write(pd.concat([table, found], axis=1) if keep else found, out)
    return {"output": str(out), "rows": len(found), "columns": model.predicted}


def evaluate(model_path: Path, data: Path, verbose: bool) -> dict[str, Any]:
    """How well a model predicts rows that it has not seen."""
    model, table = table_model(model_path), read(data)
    if model.target not in table.columns:
        raise ValueError(
            f"{data} has no column {model.target!r}, which the model predicts: without it there "
            "is nothing to compare with."
        )
    estimator, rows = model.estimator.set_params(verbose=int(verbose)), len(table)
    table = _with_target(table, model, data)
    y, X = model.targets(table), model.inputs(table)
    result: dict[str, Any] = {"task": model.task, "rows": len(y), "dropped": rows - len(y)}
    if model.task != "classification":
        found = diagnose(estimator, X, y)
        result |= {
            "nlpd": found.nlpd,
            "rmse": found.rmse,
            "crps": found.crps,
            "r2": _r2(y, found.rmse),
            "coverage": {f"{level:g}": share for level, share in found.coverage.items()},
            "pit": found.pit.tolist(),
            "voters": found.voters,
            "words": [*(found.warnings or ["The intervals are as wide as they say."])],
        }
    else:
        result["nlpd"] = float(-estimator.log_predictive_density(X, y).mean())
        result |= _of_classes(estimator, X, y)
    if len(y) < _FEW:
        result["words"].append(f"With {len(y)} rows these numbers are rough.")
    return result


def _with_target(table: pd.DataFrame, model: TableModel, data: Path) -> pd.DataFrame:
    there = table[model.target].notna()
    if not there.any():
        raise ValueError(f"{data}: the target {model.target!r} is missing in every row.")
    return table[there]


def report(model_path: Path, data: Path | None, out: Path, verbose: bool) -> dict[str, Any]:
    """Writes a page about a model, judged by a table's rows if they are given."""
    from healgp.report import write_report

    model = load(model_path) if data is None else table_model(model_path)
    estimator = model.estimator if isinstance(model, TableModel) else model
    estimator.set_params(verbose=int(verbose))
    X = y = None
    if data is not None:
        table = read(data)
        if model.target in table.columns:
            table = _with_target(table, model, data)
            y = model.targets(table)
        X = model.inputs(table)
    return {"report": str(write_report(estimator, out, X, y))}


def _of_classes(estimator: Any, X: pd.DataFrame, y: np.ndarray) -> dict[str, Any]:
    p = estimator.predict_proba(X)
    right = estimator.classes_[p.argmax(axis=1)] == y
    sure = float(p.max(axis=1).mean())
    accuracy = float(right.mean())
    margin = 3.0 * np.sqrt(np.mean(p.max(axis=1) * (1.0 - p.max(axis=1))) / len(y)) + 0.01
    words = "The probabilities are as sure as they are right."
    if abs(sure - accuracy) > margin:
        words = (
            f"The probabilities are too {'sure' if sure > accuracy else 'cautious'}: the most "
            f"likely class has {sure:.1%} on average, and is right for {accuracy:.1%} of the rows."
        )
    most = float(pd.Series(y).value_counts(normalize=True).iloc[0])
    return {"accuracy": accuracy, "most_frequent": most, "confidence": sure, "words": [words]}


def _r2(y: np.ndarray, rmse: float) -> float | None:
    """The share of the target's variance that is explained, if it has any."""
    return 1.0 - rmse**2 / float(y.var()) if y.var() > 0 else None


def describe(model: Any) -> dict[str, Any]:
    """What a model is and what was chosen for it."""
    table = isinstance(model, TableModel)
    estimator = model.estimator if table else model
    said: dict[str, Any] = {"class": type(estimator).__name__}
    if table:
        said |= {"task": model.task, "target": model.target, "notes": model.notes}
    said |= {
        "rows": len(estimator.labels_),
        "inputs": list(getattr(estimator, "feature_names_in_", [])) or estimator.n_features_in_,
        "experts": estimator.n_experts_,
        "kernel": estimator.kernel_,
        "aggregation": estimator.aggregation_,
        "lengthscales": estimator.lengthscales_.tolist(),
        "signal_variance": float(estimator.signal_variance_),
        "iterations": estimator.n_iter_,
    }
    if hasattr(estimator, "noise_variance_"):
        said["noise_variance"] = float(estimator.noise_variance_)
        if np.isfinite(estimator.degrees_of_freedom_):  # JSON has no infinity
            said["degrees_of_freedom"] = estimator.degrees_of_freedom_
    if estimator.aggregation_ != "nested":
        said["temperature"] = estimator.temperature_
    if hasattr(estimator, "classes_"):
        said["classes"] = estimator.classes_.tolist()
    return said


def table_model(path: Path) -> TableModel:
    """A saved model that knows its table's columns."""
    model = load(path)
    if not isinstance(model, TableModel):
        raise ValueError(
            f"{path} was saved by an estimator in Python, which knows arrays and no tables. "
            "Predict with it in Python, by healgp.load; or fit the table with `healgp fit`."
        )
    return model


@contextlib.contextmanager
def two_interrupts() -> Iterator[None]:
    """The first Ctrl-C is a KeyboardInterrupt, which ends training with the best so far; the second
    ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    pressed = False

    def handle(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise SystemExit(130)
        pressed = True
        with contextlib.suppress(OSError):
            # not print(): what was interrupted may be in the middle of one, of a bar say
            os.write(2, b"\nInterrupted; Ctrl-C again to end at once.\n")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def warnings_in_words() -> Iterator[list[str]]:
    """Gathers warnings, and says each of them once, in one line."""
    said: list[str] = []

    def show(message: Any, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in said:
            said.append(text)
            print(f"Warning: {text}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = show
        yield said
