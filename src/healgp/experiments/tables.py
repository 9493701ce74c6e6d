"""The paper's tables: which result belongs into which cell, and how near it came to the printed
one."""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from healgp.experiments import protocol
from healgp.experiments.cells import Cell

#: Measures of a table of regression, and of the one of classification.
NLPD_RMSE = ("NLPD", "RMSE")
TOP_K = ("top-1", "top-2", "top-3", "NLPD")


@dataclass(frozen=True)
class Table:
    """Columns are (title, fit, setting), with the titles of paper.toml."""

    name: str
    caption: str
    columns: Sequence[tuple[str, str, str]]

    @property
    def printed(self) -> dict[str, list[list[float]]]:
        """What the paper prints, of each data set."""
        rows = dict(paper()[self.name])
        assert rows.pop("columns") == [title for title, _, _ in self.columns]
        return rows

    def fits(self, data: str) -> list[str]:
        """The fits that a row needs."""
        return [
            fit
            for (_, fit, _), printed in zip(self.columns, self.printed[data], strict=True)
            if printed
        ]


@cache
def paper() -> dict[str, Any]:
    """The printed values and the promised tolerances."""
    return tomllib.loads(
        resources.files("healgp.experiments").joinpath("paper.toml").read_text(encoding="utf-8")
    )


def _sweep(rule: str) -> list[tuple[str, str, str]]:
    return [(f"T = {t}", "kmeans-100", f"{rule} {t}") for t in protocol.TEMPERATURES]


_EXPERTS = [
    ("gPoE uniform", "gpoe uniform"),
    ("gPoE softmax-variance", "gpoe 100"),
    ("rBCM entropy", "rbcm entropy"),
    ("barycenter softmax-variance", "barycenter 100"),
]
_SVGP, _LINEAR = ("SVGP 500", "svgp", "svgp"), ("linear", "linear", "linear")

CLUSTERING = Table(
    "clustering",
    "NLPD (RMSE) with k-means partitions, 100 points per expert, T = 100. The columns of gPoE with "
    "normalised weights are those of rBCM too.",
    [
        *((title, "kmeans-100", setting) for title, setting in _EXPERTS),
        ("grBCM", "grbcm", "f"),
        _SVGP,
        _LINEAR,
        ("full GP", "full", "full"),
    ],
)
RANDOM = Table(
    "random",
    "NLPD (RMSE) with random partitions, 100 points per expert, T = 50.",
    [
        *((title, "random-100", setting.replace("100", "50")) for title, setting in _EXPERTS),
        _LINEAR,
        _SVGP,
    ],
)
TEMPERATURE = [
    Table(
        "temperature-barycenter",
        "NLPD (RMSE) of the barycenter with softmax-variance weights.",
        _sweep("barycenter"),
    ),
    Table("temperature-gpoe", "NLPD (RMSE) of gPoE with softmax-variance weights.", _sweep("gpoe")),
    Table(
        "temperature-rbcm",
        "NLPD (RMSE) of rBCM with softmax-variance weights that are not normalised.",
        _sweep("rbcm"),
    ),
]
POINTS = Table(
    "points",
    "NLPD (RMSE) with softmax-variance weights (of rBCM not normalised) at T = 50, over the points "
    "per expert.",
    [
        (f"{title}, {m}", f"kmeans-{m}", f"{rule} 50")
        for title, rule in (("barycenter", "barycenter"), ("gPoE", "gpoe"), ("rBCM", "rbcm"))
        for m in (100, 200, 500)
    ],
)
GRBCM_Y = Table(
    "grbcm-y", "NLPD (RMSE) of grBCM with y-averaging.", [("grBCM, y-averaging", "grbcm", "y")]
)
MNIST = [
    ("gPoE uniform", "mnist-experts", "gpoe uniform"),
    ("gPoE softmax-variance", "mnist-experts", "gpoe"),
    ("barycenter softmax-variance", "mnist-experts", "barycenter"),
    ("rBCM entropy", "mnist-experts", "rbcm entropy"),
    ("SVGP 500", "mnist-svgp", "svgp"),
]


@dataclass(frozen=True)
class Entry:
    """One cell of a table: printed values and ours (means over splits), measure by measure."""

    table: str
    data: str
    column: str
    measures: Sequence[str]
    printed: Sequence[float]
    ours: Sequence[float]
    error: Sequence[float]  # standard error over the splits; NaN for one
    splits: int
    allowed: Sequence[float]  # the largest difference
    one_sided: Sequence[int]  # 0: both ways; 1: only more is a miss; −1: only less is

    @property
    def difference(self) -> list[float]:
        return [a - b for a, b in zip(self.ours, self.printed, strict=True)]

    @property
    def missed(self) -> list[bool]:
        return [
            not (abs(d) if side == 0 else side * d) <= limit + 1e-9
            for d, side, limit in zip(self.difference, self.one_sided, self.allowed, strict=True)
        ]

    @property
    def miss(self) -> bool:
        return any(self.missed)

    def __str__(self) -> str:
        return (
            f"{self.table}, {self.data}, {self.column}: ours {values_text(self.ours)}, "
            f"the paper {values_text(self.printed)}"
        )


def _limits(table: str, data: str, column: str, printed: Sequence[float]) -> tuple[Any, Any]:
    lines = paper()["tolerance"]
    for line in lines.get(f"{table}-{data}", lines[table]):
        if column in line["columns"] or "*" in line["columns"]:
            nlpd = line["nlpd"] + (line.get("relative", 0.0) * printed[0] if printed[0] > 1 else 0)
            return (nlpd, line["rmse"]), (1, 1) if line.get("worse") else (0, 0)
    raise KeyError(f"paper.toml has no tolerance for {table}, {column}")


def entries(
    table: Table, folder: Path, data: Sequence[str], splits: Sequence[int] | None = None
) -> list[Entry]:
    """What there is of a table in the results."""
    found = []
    for name in (d for d in data if d in table.printed):
        for (title, fit, setting), printed in zip(table.columns, table.printed[name], strict=True):
            chosen = protocol.splits_of(fit, name) if splits is None else splits
            kept = [Cell(fit, name, split).read(folder) for split in chosen]
            scores = np.array([scores[setting] for scores in kept if scores is not None])
            if not printed or not len(scores):
                continue
            limits, sides = _limits(table.name, name, title, printed)
            found.append(
                Entry(table.name, name, title, NLPD_RMSE, printed, *_mean(scores), limits, sides)
            )
    return found


def mnist_entries(folder: Path) -> list[Entry]:
    found = []
    for title, fit, setting in MNIST:
        kept = Cell(fit, "mnist", 0).read(folder)
        if kept is not None:
            scores, printed = np.array([kept[setting]]), paper()["mnist"][title]
            sides = (-1, -1, -1, 1)  # at least as good
            found.append(
                Entry("mnist", "mnist", title, TOP_K, printed, *_mean(scores), (0.0,) * 4, sides)
            )
    return found


def _mean(scores: np.ndarray) -> tuple[list[float], list[float], int]:
    n = len(scores)
    error = scores.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(scores.shape[1], np.nan)
    return scores.mean(axis=0).tolist(), error.tolist(), n


# ---- how they are written ---------------------------------------------------------------------


def number(value: float, signed: bool = False) -> str:
    text = f"{value:+.3f}" if signed else f"{value:.3f}"
    return text.replace("-", "−")


def values_text(values: Iterable[float], signed: bool = False) -> str:
    first, *rest = (number(v, signed) for v in values)
    return f"{first} ({', '.join(rest)})" if rest else first


def markdown(rows: Iterable[Sequence[Any]], head: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c) for c in line) + " |" for line in lines) + "\n"


def as_markdown(found: Sequence[Entry]) -> str:
    """Three lines for each data set: the paper, ours, and the difference, bold with ✗ where it is
    more than we promise."""
    columns = list(dict.fromkeys(e.column for e in found))
    rows = []
    for name in dict.fromkeys(e.data for e in found):
        here = {e.column: e for e in found if e.data == name}
        splits = sorted({e.splits for e in here.values()}, reverse=True)
        lines: list[list[str]] = [
            [f"**{name}**, paper"],
            [f"ours ({' or '.join(map(str, splits))} split{'s' * (splits[0] > 1)})"],
            ["difference"],
        ]
        for column in columns:
            e = here.get(column)
            if e is None:
                cells = ["–", "–", "–"]
            else:
                difference = values_text(e.difference, signed=True)
                mark = f"**{difference} ✗**" if e.miss else difference
                cells = [values_text(e.printed), values_text(e.ours), mark]
            for line, cell in zip(lines, cells, strict=True):
                line.append(cell)
        rows += lines
    return markdown(rows, ["", *columns])


def as_csv(found: Sequence[Entry]) -> str:
    """A line for each measure of each cell."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    names = "paper", "ours", "standard_error", "difference", "allowed", "miss"
    lines.writerow(["table", "data", "column", "measure", "splits", *names])
    for e in found:
        for i, measure in enumerate(e.measures):
            numbers = e.printed[i], e.ours[i], e.error[i], e.difference[i], e.allowed[i]
            lines.writerow(
                [e.table, e.data, e.column, measure, e.splits]
                + [f"{v:.5g}" for v in numbers]
                + [int(e.missed[i])]
            )
    return out.getvalue()
