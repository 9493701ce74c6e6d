"""The command `healgp`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import typer
except ImportError:  # pragma: no cover
    sys.exit("The command line needs a few more packages: pip install 'healgp[cli,plots]'")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Gaussian processes on large data: committees of experts whose error bars can be trusted.",
    epilog="Ends with 0 if all is well, 1 if the data or the model will not do, 2 if the command "
    "is not understood, 130 if it was interrupted.",
)


class Task(StrEnum):
    auto = "auto"
    regression = "regression"
    classification = "classification"
    counts = "counts"


Kernel = StrEnum(
    "Kernel", ["auto", "rbf", "matern12", "matern32", "matern52", "rational_quadratic"]
)
Model = Annotated[Path, typer.Argument(help="A folder that `healgp fit` has written.")]
Data = Annotated[
    Path,
    typer.Argument(help="A table: .csv, .tsv, .parquet, .feather, or a folder of .parquet files."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]


@app.callback()
def _main() -> None:
    """Needed for Typer to keep the names of the commands."""


@app.command()
def fit(
    data: Data,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The folder to save the model as; a model there is replaced."
        ),
    ],
    task: Annotated[
        Task, typer.Option(help="What the target is; 'auto' tells it from its values.")
    ] = Task.auto,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out; may be given again.")
    ] = None,
    points_per_expert: Annotated[
        int, typer.Option(min=1, help="Rows of each expert; more are slower and often better.")
    ] = 500,
    kernel: Annotated[
        Kernel | None,
        typer.Option(help="How smooth the response is; 'auto' takes the most likely."),
    ] = None,
    n_jobs: Annotated[
        int | None, typer.Option(help="Threads; all cores if it is not given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    as_json: Json = False,
) -> None:
    """Fits a model of one column of a table from all others, and saves it.

    Text becomes columns of 0 and 1, dates become numbers, missing values are filled in and marked;
    what was done is said for each column. Ctrl-C ends training with the best so far, and saves the
    model; a second one ends at once and saves nothing.

    Example: healgp fit houses.csv --target price -o houses.model
    """

    def run() -> dict[str, Any]:
        from healgp import commands

        parameters: dict[str, Any] = {
            "points_per_expert": points_per_expert, "n_jobs": n_jobs, "random_state": seed,
            "verbose": int(_at_a_terminal()),
        }  # fmt: skip
        if kernel is not None:
            parameters["kernel"] = kernel.value
        return commands.fit(data, target, out, task.value, drop or [], parameters)

    def say(found: dict[str, Any]) -> None:
        for line in found["notes"]:
            typer.echo(line)
        typer.echo(
            f"{found['rows']:,} rows, {found['experts']:,} experts, kernel {found['kernel']}, "
            f"rule {found['aggregation']}: fitted in {found['seconds']:.1f} s, saved as {out}"
        )

    _run(run, say, as_json)


@app.command()
def predict(
    model: Model,
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write: .csv, .tsv, .parquet, .feather.")
    ],
    coverage: Annotated[
        float, typer.Option(min=0.01, max=0.9999, help="What the intervals are to hold.")
    ] = 0.95,
    keep: Annotated[
        bool, typer.Option("--keep", help="Write the table's own columns too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predicts every row of a table: mean, std, lower and upper; or the class and the probability
    of each class.

    Example: healgp predict houses.model new.csv -o predicted.csv --coverage 0.9
    """

    def run() -> dict[str, Any]:
        from healgp import commands
        from healgp.tables import extension

        try:
            extension(out)
        except ValueError as error:
            _refuse(str(error))
        return commands.predict(model, data, out, coverage, keep, _at_a_terminal())

    def say(found: dict[str, Any]) -> None:
        typer.echo(f"{found['rows']:,} rows written to {out}: {', '.join(found['columns'])}")

    _run(run, say, as_json)


@app.command()
def evaluate(model: Model, data: Data, as_json: Json = False) -> None:
    """How good a model's predictions and error bars are on rows that it was not fitted to.

    Example: healgp evaluate houses.model held_out.csv
    """

    def run() -> dict[str, Any]:
        from healgp import commands

        return commands.evaluate(model, data, _at_a_terminal())

    def say(found: dict[str, Any]) -> None:
        names = {"nlpd": "NLPD", "rmse": "RMSE", "crps": "CRPS", "r2": "R²", "accuracy": "accuracy",
                 "most_frequent": "always the most frequent class"}  # fmt: skip
        scores = [f"{n} {found[key]:.4g}" for key, n in names.items() if found.get(key) is not None]
        typer.echo(f"{found['rows']:,} rows: {', '.join(scores)}")
        if found["dropped"]:
            typer.echo(f"{found['dropped']:,} rows without a target were left out")
        if "coverage" in found:
            shares = (f"{float(level):.0%} {v:.1%}" for level, v in found["coverage"].items())
            typer.echo(f"within the interval of: {', '.join(shares)}")
        if found.get("voters") is not None:
            typer.echo(f"experts that effectively vote per row: {found['voters']:.1f}")
        for line in found["words"]:
            typer.echo(line)

    _run(run, say, as_json)


@app.command()
def info(model: Model, as_json: Json = False) -> None:
    """What a saved model is, what it was fitted to, and what was chosen for it.

    Example: healgp info houses.model
    """

    def run() -> dict[str, Any]:
        from healgp import commands, load

        return commands.describe(load(model))

    def say(found: dict[str, Any]) -> None:
        notes, names = found.pop("notes", []), found.pop("inputs")
        scales = found.pop("lengthscales")
        for key, value in found.items():
            text = f"{value:.4g}" if isinstance(value, float) else value
            typer.echo(f"{key.replace('_', ' '):16} {text}")
        names = names if isinstance(names, list) else [f"column {i}" for i in range(names)]
        typer.echo("inputs, and the lengthscale of each in deviations (small matters more):")
        for name, scale in sorted(zip(names, scales, strict=True), key=lambda pair: pair[1]):
            typer.echo(f"  {name:30} {scale:.3g}")
        for line in notes:
            typer.echo(line)

    _run(run, say, as_json)


@app.command()
def report(
    model: Model,
    data: Annotated[
        Path | None, typer.Argument(help="Rows that it was not fitted to, to judge it by.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    as_json: Json = False,
) -> None:
    """Writes a page about a model that opens in any browser, offline: how good it is, what was
    chosen and why. Without data it is judged by training rows that are left out.

    Example: healgp report houses.model held_out.csv -o report.html
    """

    def run() -> dict[str, Any]:
        from healgp import commands

        return commands.report(model, data, out, _at_a_terminal())

    _run(run, lambda found: typer.echo(f"Written to {found['report']}"), as_json)


def _at_a_terminal() -> bool:
    return sys.stderr.isatty()


def _run(
    run: Callable[[], dict[str, Any]], say: Callable[[dict[str, Any]], None], as_json: bool
) -> None:
    """Does the work, and says what came of it: to people, or as one JSON object. Errors are one
    message, with code 1, or 130 after Ctrl-C."""
    try:
        from healgp.commands import warnings_in_words

        # what a model prints while it works is not the command's answer
        with warnings_in_words() as warned, contextlib.redirect_stdout(sys.stderr):
            found = run()
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        if _at_a_terminal():
            typer.echo(err=True)  # a bar may be in this line
        _fail("Interrupted; nothing was written.", as_json, 130)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        _fail(str(error) or type(error).__name__, as_json, 1)
    except Exception as error:
        if os.environ.get("HEALGP_TRACEBACK"):
            raise
        # its message might show a row of the data
        where = traceback.extract_tb(error.__traceback__)[-1]
        _fail(
            f"Unexpected {type(error).__name__} in {Path(where.filename).name}, line "
            f"{where.lineno}. Set HEALGP_TRACEBACK=1 to see more, and please report it.",
            as_json,
            1,
        )
    if as_json:
        typer.echo(json.dumps(found | {"warnings": warned}, ensure_ascii=False))
    else:
        say(found)


def _fail(message: str, as_json: bool, code: int) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"error": message}, ensure_ascii=False))
    else:
        typer.echo(message, err=True)
    raise typer.Exit(code)


@app.command()
def demo() -> None:
    """The main job from end to end, on data that needs no download.

    Example: healgp demo
    """
    from healgp.demo import main

    main()


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments of the paper, or 'all'.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the experiments and stop.")] = False,
    datasets: Annotated[
        str | None, typer.Option(help="Only these data sets: concrete,airfoil,…")
    ] = None,
    splits: Annotated[str | None, typer.Option(help="Only these splits: 0-9, or 0,3,5.")] = None,
    without: Annotated[
        str | None, typer.Option(help="Leave these fits out: full,svgp,grbcm,…")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("results"),
    page: Annotated[
        Path | None, typer.Option(help="Also write one page of all experiments here.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Fit again what is there already.")] = False,
) -> None:
    """Runs experiments of the paper and compares with what it prints; results go into
    results/NAME/. Ends with code 1, and a list, if a cell is further off than we promise.

    Example: healgp reproduce clustering --datasets concrete,airfoil,power --without full
    """
    from healgp.experiments import protocol
    from healgp.experiments import reproduce as experiments

    if list_:
        for name, experiment in experiments.EXPERIMENTS.items():
            typer.echo(f"{name:22} {experiment.title}")
        return
    known = list(experiments.EXPERIMENTS)
    wanted = known if names == ["all"] else names or []
    if not wanted:
        _refuse(f"Name one or more experiments, or 'all': {', '.join(known)}.")
    _all_known("experiment", wanted, known)
    data = list(protocol.SETS) if datasets is None else _names(datasets)
    _all_known("data set", data, protocol.SETS)
    left_out = [] if without is None else _names(without)
    _all_known("fit", left_out, protocol.FITS)
    choice = experiments.Choice(
        results, data, None if splits is None else _numbers(splits), left_out
    )
    try:
        found = experiments.run(wanted, choice, force)
    except FileNotFoundError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; what is done is kept. The same command goes on.", err=True)
        raise typer.Exit(130) from None
    if page is not None:
        experiments.write_docs(page, choice)
    missed = [entry for entry in found if entry.miss]
    typer.echo(
        f"Written to {results}/: {', '.join(wanted)}."
        + (f" {len(found) - len(missed)} of {len(found)} cells within tolerance." if found else "")
    )
    if missed:
        typer.echo("\nFurther from the paper than we promise:")
        for entry in missed:
            typer.echo(f"  {entry}")
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[int]:
    """0-9 or 0,3,5 as numbers."""
    numbers: list[int] = []
    for part in _names(text):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            _refuse(f"--splits {text!r} is not understood. Write 0-9, or 0,3,5.")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _all_known(what: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            _refuse(f"No {what} is called {name!r}. Choose from: {', '.join(known)}.")


def _refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
