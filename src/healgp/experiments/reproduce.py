"""One experiment of the paper by its name: fits what is missing, and writes a Markdown table, a CSV
and pictures into a folder of that name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from healgp import datasets
from healgp.experiments import figures, protocol, tables
from healgp.experiments.cells import Cell, fill, write
from healgp.experiments.tables import Entry, Table, as_csv, as_markdown, markdown


@dataclass(frozen=True)
class Choice:
    """What part of an experiment is wanted."""

    folder: Path = Path("results")
    data: Sequence[str] = protocol.SETS
    splits: Sequence[int] | None = None  # None: as many as a complete run has
    without: Sequence[str] = ()  # fits to leave out

    def cells(self, fit: str, data: str) -> list[Cell]:
        if fit in self.without or (data not in self.data and data != "mnist"):
            return []
        splits = protocol.splits_of(fit, data) if self.splits is None else self.splits
        return [Cell(fit, data, split) for split in splits]


@dataclass(frozen=True)
class Experiment:
    title: str
    cells: Callable[[Choice], list[Cell]]
    write: Callable[[Choice, Path], tuple[str, list[Entry]]]  # its page, and the cells compared


def _beside(
    choice: Choice,
    table: Table,
    fit: str,
    wanted: Mapping[int, tuple[str, Sequence[tuple[str, str]]]],
) -> str:
    """Columns of a table as printed, by their number, beside settings of a fit, each with the word
    for it."""
    rows = []
    for data in (d for d in choice.data if d in table.printed):
        kept = [cell.read(choice.folder) for cell in choice.cells(fit, data)]
        there = [k for k in kept if k is not None]
        if there:
            cells = [data]
            for column, (_, settings) in wanted.items():
                cells.append(tables.values_text(table.printed[data][column]))
                for key, _ in settings:
                    cells.append(tables.values_text(np.mean([k[key] for k in there], axis=0)))
            rows.append(cells)
    head = [f"{name}, {what}" for name, settings in wanted.values()
            for what in ("paper", *(word for _, word in settings))]  # fmt: skip
    return markdown(rows, ["", *head])


def _at_50(choice: Choice) -> str:
    """The softmax columns of the table for random partitions at two temperatures."""
    both = {
        number: (title, [(f"{rule} {t}", f"T = {t}") for t in (50, 100)])
        for number, title, rule in ((1, "gPoE", "gpoe"), (3, "barycenter", "barycenter"))
    }
    table = _beside(choice, tables.RANDOM, "random-100", both)
    return f"The two softmax columns at either temperature:\n\n{table}"


def _of_liu(choice: Choice) -> str:
    """grBCM with either weight of the first expert, in both spaces."""
    parts = ["With either weight of the first expert:\n"]
    column = [title for title, _, _ in tables.CLUSTERING.columns].index("grBCM")
    for table, number, space in ((tables.GRBCM_Y, 0, "y"), (tables.CLUSTERING, column, "f")):
        words = ((space, "entropy"), (f"{space}, Liu", "one"))
        here = replace(choice, data=[d for d in choice.data if d != "airline"])  # has one only
        parts.append(_beside(here, table, "grbcm", {number: (f"{space}-averaging", words)}))
    return "\n".join(parts)


def _of_tables(
    *wanted: Table, picture: bool = False, more: Callable[[Choice], str] | None = None
) -> Experiment:
    def cells(choice: Choice) -> list[Cell]:
        return [
            cell
            for table in wanted
            for data in table.printed
            for fit in table.fits(data)
            for cell in choice.cells(fit, data)
        ]

    def write(choice: Choice, folder: Path) -> tuple[str, list[Entry]]:
        parts, found = [], []
        for table in wanted:
            here = [
                e
                for e in tables.entries(table, choice.folder, choice.data, choice.splits)
                if _fit_of(table, e.column) not in choice.without
            ]
            if here:
                parts += [f"{table.caption}\n", as_markdown(here)]
            found += here
        if picture and found:
            names = {"barycenter": "barycenter", "gPoE": "gpoe", "rBCM": "rbcm"}
            path = figures.temperature(
                folder,
                {
                    label: [e for e in found if e.table == f"temperature-{name}"]
                    for label, name in names.items()
                },
            )
            parts += [f"![NLPD against the temperature]({path.name})\n"]
        if more is not None and found:
            parts += [more(choice)]
        return "\n".join(parts), found

    return Experiment(_titles[wanted[0].name], cells, write)


def _fit_of(table: Table, column: str) -> str:
    return next(fit for title, fit, _ in table.columns if title == column)


def _mnist_write(choice: Choice, folder: Path) -> tuple[str, list[Entry]]:
    found = tables.mnist_entries(choice.folder)
    rows = []
    for e in found:
        for name, values, signed in (
            (f"**{e.column}**, paper", e.printed, False),
            ("ours", e.ours, False),
            ("difference", e.difference, True),
        ):
            cells = [tables.number(v, signed) for v in values]
            if signed:
                cells = [f"**{c} ✗**" if m else c for c, m in zip(cells, e.missed, strict=True)]
            rows.append([name, *cells])
    caption = (
        "MNIST, PCA to 20 dimensions, 60,000 images to train and 10,000 to test; 500 rows and 100 "
        "inducing inputs per expert, random partition, robustmax, T = 10.\n"
    )
    return caption + "\n" + markdown(rows, ["", *tables.TOP_K]), found


def _ours_cells(choice: Choice) -> list[Cell]:
    cells = [cell for data in protocol.SETS for cell in choice.cells("ours", data)]
    return cells + (
        choice.cells("mnist-ours", "mnist") if set(choice.data) >= {*protocol.SETS} else []
    )


def _ours_write(choice: Choice, folder: Path) -> tuple[str, list[Entry]]:
    """Our defaults beside the paper's proposal and the best column that it prints."""
    rows = []
    printed = tables.CLUSTERING.printed
    titles = [title for title, _, _ in tables.CLUSTERING.columns]
    for data in (d for d in choice.data if d in printed):
        kept = [cell.read(choice.folder) for cell in choice.cells("ours", data)]
        scores = np.array([scores["ours"] for scores in kept if scores is not None])
        if not len(scores):
            continue
        values = [(p, t) for p, t in zip(printed[data], titles, strict=True) if p]
        best, title = min(values)
        mean = scores.mean(axis=0)
        rows.append(
            [
                data,
                tables.values_text(printed[data][1]),
                f"{tables.values_text(best)}, {title}",
                f"**{tables.values_text(mean)}**",
                tables.values_text(mean - best, True),
                len(scores),
            ]
        )
    head = [
        "",
        "paper: gPoE softmax-variance",
        "paper: best column",
        "ours",
        "ours − best",
        "splits",
    ]
    text = (
        "NLPD (RMSE) with the defaults of `ExpertGPRegressor`, nothing tuned, beside the paper's "
        "Table 1.\n\n" + markdown(rows, head)
    )
    kept_mnist = Cell("mnist-ours", "mnist", 0).read(choice.folder)
    if kept_mnist is not None:
        best_column = min(tables.paper()["mnist"].items(), key=lambda item: item[1][-1])
        text += (
            "\nMNIST with the defaults of `ExpertGPClassifier` on the same 20 principal components:"
            "\n\n"
            + markdown(
                [
                    [f"paper: best column, {best_column[0]}", *map(tables.number, best_column[1])],
                    ["**ours**", *map(tables.number, kept_mnist["ours"])],
                ],
                ["", *tables.TOP_K],
            )
        )
    return text, []


def _figure(title: str, draw: Callable[[Path], list[Path]]) -> Experiment:
    def write(choice: Choice, folder: Path) -> tuple[str, list[Entry]]:
        return "\n".join(f"![{title}]({path.name})\n" for path in draw(folder)), []

    return Experiment(title, lambda choice: [], write)


def _f_vs_y_cells(choice: Choice) -> list[Cell]:
    return [c for data in tables.RANDOM.printed for c in choice.cells("random-100", data)]


def _f_vs_y_write(choice: Choice, folder: Path) -> tuple[str, list[Entry]]:
    paths, scores = [figures.f_against_y(folder)], {}
    for data in (d for d in choice.data if d in tables.RANDOM.printed):
        kept = [cell.read(choice.folder) for cell in choice.cells("random-100", data)]
        there = [k for k in kept if k is not None]
        if there:
            scores[data] = {
                key: float(np.mean([k[key][0] for k in there]))
                for key in protocol.FITS["random-100"].settings
            }
    text = f"![f- against y-averaging in one dimension]({paths[0].name})\n"
    if scores:
        bars = figures.bars(folder, scores)
        text += f"\n![NLPD under f- and y-averaging]({bars.name})\n"
        head = ["NLPD", "gPoE, f", "gPoE, y", "rBCM, f", "rBCM, y"]
        keys = ["gpoe 100", "gpoe 100, y", "rbcm entropy", "rbcm entropy, y"]
        rows = [[d, *(tables.number(here[k]) for k in keys)] for d, here in scores.items()]
        text += "\n" + markdown(rows, head)
    return text, []


_titles = {
    "clustering": "Table 1: seven data sets, k-means partitions",
    "random": "the same with random partitions",
    "temperature-barycenter": "three tables and a figure over the temperature",
    "points": "the table over points per expert",
    "grbcm-y": "grBCM with y-averaging",
}

EXPERIMENTS: dict[str, Experiment] = {
    "clustering": _of_tables(tables.CLUSTERING),
    "random": _of_tables(tables.RANDOM, more=_at_50),
    "temperature": _of_tables(*tables.TEMPERATURE, picture=True),
    "points": _of_tables(tables.POINTS),
    "grbcm-y": _of_tables(tables.GRBCM_Y, more=_of_liu),
    "mnist": Experiment(
        "the table of classification",
        lambda choice: [
            c
            for fit in dict.fromkeys(f for _, f, _ in tables.MNIST)
            for c in choice.cells(fit, "mnist")
        ],
        _mnist_write,
    ),
    "fig-pathologies": _figure("four pathologies, and the healed rules", figures.pathologies),
    "fig-points-per-expert": _figure(
        "ever weaker experts beside the full GP, T = 15", figures.points_per_expert
    ),
    "fig-barycenter": _figure("three experts and their barycenter as T grows", figures.barycenter),
    "fig-f-vs-y": Experiment("f- against y-averaging", _f_vs_y_cells, _f_vs_y_write),
    "ours": Experiment("our defaults beside the paper's table", _ours_cells, _ours_write),
}

#: Experiments of which we promise that 95 % of their cells taken together are within tolerance.
POOLED = ("random", "temperature", "points", "grbcm-y")


def check_data(names: Iterable[str], choice: Choice) -> None:
    """Raises FileNotFoundError before any work if a data set is not there."""
    wanted = {cell.data for name in names for cell in EXPERIMENTS[name].cells(choice)}
    for data in sorted(wanted):
        path = Path(os.environ.get("HEALGP_DATA", ".")) / f"{data}.npz"
        if "HEALGP_DATA" not in os.environ or not path.is_file():
            datasets.load(data)  # it says what is missing and where it can be had


def run(names: Sequence[str], choice: Choice, force: bool = False) -> list[Entry]:
    """Fits what is missing, writes every page, and returns the cells that were compared."""
    check_data(names, choice)
    fill((c for name in names for c in EXPERIMENTS[name].cells(choice)), choice.folder, force)
    found: list[Entry] = []
    for name in names:
        found += write_page(name, choice)[1]
    return found


def write_page(name: str, choice: Choice) -> tuple[str, list[Entry]]:
    """results/NAME/NAME.md, NAME.csv and its pictures, from what is there."""
    folder = choice.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    text, found = EXPERIMENTS[name].write(choice, folder)
    missed = [e for e in found if e.miss]
    if found:
        write(folder / f"{name}.csv", as_csv(found))
        inside = len(found) - len(missed)
        text += f"\n{inside} of {len(found)} cells are within the tolerance that we promise.\n"
    write(folder / f"{name}.md", f"# {name}: {EXPERIMENTS[name].title}\n\n{text}")
    return text, found


def reading() -> Mapping[str, str]:
    """What docs/reproduction.md says about each experiment, by its name."""
    text = resources.files("healgp.experiments").joinpath("reading.md").read_text(encoding="utf-8")
    parts = text.split("\n## ")[1:]
    return {part.split("\n", 1)[0].strip(): part.split("\n", 1)[1].strip() for part in parts}


def write_docs(page: Path, choice: Choice) -> None:
    """All experiments on one page, with their pictures beside it in a folder of the same name."""
    said, pictures = reading(), page.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    parts, pooled = [], []
    for name, experiment in EXPERIMENTS.items():
        text, found = write_page(name, choice)
        for picture in (choice.folder / name).glob("*.png"):
            (pictures / picture.name).write_bytes(picture.read_bytes())
            text = text.replace(f"({picture.name})", f"({pictures.name}/{picture.name})")
        pooled += found if name in POOLED else []
        parts += [f"## `{name}`: {experiment.title}\n", said.get(name, ""), "", text]
        missed = [e for e in found if e.miss]
        if missed:
            parts += ["Misses: " + "; ".join(str(e) for e in missed) + ".\n"]
    cells = dict.fromkeys(c for e in EXPERIMENTS.values() for c in e.cells(choice))
    when = [c.when(choice.folder) for c in cells if c.read(choice.folder) is not None]
    there = len(when)
    minutes = (max(w[1] for w in when) - min(w[0] for w in when)) / 60 if when else 0.0
    inside = sum(not e.miss for e in pooled)
    share = inside / len(pooled) if pooled else float("nan")
    summary = (
        f"Made from {there} of {len(cells)} fits; from the start of the first to the end of the "
        f"last it was {minutes:.0f} minutes on {os.cpu_count()} cores"
        + ("" if there == len(cells) else "; `make reproduce` goes on with the others")
        + ". Of the cells of "
        f"{', '.join(f'`{n}`' for n in POOLED)}, {inside} of {len(pooled)} ({share:.1%}) are "
        "within 0.03 NLPD (plus 3 % of a printed value above 1) and 0.015 RMSE of the paper.\n"
    )
    write(page, "\n".join(["# The paper, reproduced\n", said["preface"], "", summary, *parts]))
