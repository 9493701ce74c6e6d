"""The command `healgp`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, NoReturn

try:
    import typer
except ImportError:  # pragma: no cover
    sys.exit("The command line needs a few more packages: pip install 'healgp[cli,plots]'")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Gaussian processes on large data: committees of experts whose error bars can be trusted.",
)


@app.callback()
def _main() -> None:
    """Needed for Typer to keep the names of the commands."""


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
