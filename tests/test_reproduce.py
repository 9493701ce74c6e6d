"""The command that reproduces the paper: on simulated rows under the names of its data sets, for
what is tested here is the machinery. The figures themselves are in docs/reproduction.md."""

import csv
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from healgp import cli, datasets
from healgp.experiments import protocol, reproduce, tables
from healgp.experiments.cells import Cell, fill
from healgp.experiments.tables import Entry


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """A folder of data sets, and one for results."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, n in (("concrete", 500), ("airfoil", 600)):
        X, y = datasets.robot_arm(n, seed=n)
        np.savez(folder / f"{name}.npz", X=X, y=y)
    monkeypatch.setenv("HEALGP_DATA", str(folder))
    return tmp_path / "results"


def healgp(*arguments):
    return CliRunner().invoke(cli.app, arguments)


def test_printed_values_fit_the_tables():
    every = [tables.CLUSTERING, tables.RANDOM, *tables.TEMPERATURE, tables.POINTS, tables.GRBCM_Y]
    for table in every:
        for data, cells in table.printed.items():
            assert data in protocol.SETS
            assert len(cells) == len(table.columns)
            assert all(len(cell) in (0, 2) for cell in cells)
        for title, fit, setting in table.columns:
            assert setting in protocol.FITS[fit].settings
            assert tables._limits(table.name, "concrete", title, [0.5, 0.5])[0][0] > 0
    assert tables.CLUSTERING.printed["kin40k"][1] == [-0.329, 0.186]
    # what the paper prints twice is the same: the 100-point columns are those of T = 50
    points, sweeps = tables.POINTS.printed, [t.printed for t in tables.TEMPERATURE]
    at_50 = protocol.TEMPERATURES.index(50)
    for data in points:
        for i, sweep in enumerate(sweeps):
            assert points[data][3 * i] == sweep[data][at_50]


def entry(ours, printed=(0.5, 0.3), allowed=(0.02, 0.01), sides=(0, 0)):
    return Entry("t", "d", "c", tables.NLPD_RMSE, printed, ours, (0, 0), 10, allowed, sides)


def test_what_a_miss_is():
    assert not entry((0.52, 0.29)).miss
    assert entry((0.521, 0.3)).missed == [True, False]
    assert entry((0.479, 0.3)).miss
    assert not entry((0.1, 0.1), sides=(1, 1)).miss
    assert entry((0.53, 0.3), sides=(1, 1)).miss
    assert entry((np.nan, 0.3)).miss
    limits, _ = tables._limits("random", "kin40k", "rBCM entropy", [3.947, 0.47])
    assert limits == (pytest.approx(0.03 + 0.03 * 3.947), 0.015)


def test_a_cell_is_kept_and_made_again_when_it_no_longer_fits(simulated):
    cell = Cell("kmeans-100", "concrete", 0)
    assert cell.read(simulated) is None
    fill([cell, cell], simulated)
    scores = cell.read(simulated)
    assert set(scores) == set(protocol.settings_of("kmeans-100", "concrete"))
    assert np.isfinite([v for s in scores.values() for v in s]).all()
    path = cell.path(simulated)
    before = path.stat().st_mtime_ns
    fill([cell], simulated)
    assert path.stat().st_mtime_ns == before
    fill([cell], simulated, force=True)
    assert path.stat().st_mtime_ns > before
    assert cell.read(simulated) == scores  # seeded
    path.write_text(path.read_text()[:-20])  # as no crash of ours would leave it
    assert cell.read(simulated) is None
    kept = json.dumps(
        {"parameters": {"fit": {"kernel": "old"}, "settings": {}}, "scores": scores, "seconds": 1}
    )
    path.write_text(kept)
    assert cell.read(simulated) is None
    fill([cell], simulated)
    assert cell.read(simulated) == scores


def test_scores_are_those_of_the_estimator(simulated):
    from healgp import ExpertGPRegressor, metrics

    cell = Cell("random-100", "airfoil", 3)
    cell.run(simulated)
    X, new, y, target = datasets.load("airfoil", 3, standardize=True)
    scores = []
    for seed in range(3):
        model = ExpertGPRegressor(
            points_per_expert=100, partition="random", kernel="rbf", ard=False, standardize=False,
            random_state=seed, aggregation="rbcm", weighting="entropy", space="y",
        ).fit(X, y)  # fmt: skip
        mean, std = model.predict(new, return_std=True)
        scores.append([metrics.nlpd(target, mean, std), metrics.rmse(target, mean)])
    expected = np.mean(scores, axis=0)
    assert cell.read(simulated)["rbcm entropy, y"] == pytest.approx(expected, rel=1e-9)


def test_an_experiment_from_end_to_end(simulated):
    run = healgp(
        "reproduce", "clustering", "temperature", "--datasets", "concrete,airfoil",
        "--splits", "0,1", "--without", "full,svgp", "--results", str(simulated),
    )  # fmt: skip
    # simulated rows are not the paper's, so there are misses; all is written before that is said
    assert run.exit_code == 1, run.stderr
    assert "Further from the paper than we promise" in run.stdout
    text = (simulated / "clustering" / "clustering.md").read_text(encoding="utf-8")
    assert "**concrete**, paper" in text
    assert "0.506 (0.370)" in text
    assert "✗" in text
    assert "ours (2 splits)" in text
    assert "full GP" not in text
    lines = list(csv.DictReader((simulated / "clustering" / "clustering.csv").open()))
    assert {line["measure"] for line in lines} == {"NLPD", "RMSE"}
    ours = {(e["data"], e["column"], e["measure"]): float(e["ours"]) for e in lines}
    cells = [Cell("linear", "concrete", split).read(simulated)["linear"][0] for split in (0, 1)]
    assert ours["concrete", "linear", "NLPD"] == pytest.approx(np.mean(cells), rel=1e-4)
    assert (simulated / "temperature" / "temperature.png").stat().st_size > 10_000
    # again: nothing to fit, the same answer
    before = {p: p.stat().st_mtime_ns for p in (simulated / "cells").rglob("*.json")}
    again = healgp(
        "reproduce", "clustering", "--datasets", "concrete,airfoil", "--splits", "0-1",
        "--without", "full,svgp", "--results", str(simulated),
    )  # fmt: skip
    assert again.exit_code == 1
    assert {p: p.stat().st_mtime_ns for p in (simulated / "cells").rglob("*.json")} == before


def test_pictures(tmp_path):
    choice = reproduce.Choice(folder=tmp_path)
    for name in ("fig-pathologies", "fig-points-per-expert", "fig-barycenter"):
        assert reproduce.run([name], choice) == []
        assert (tmp_path / name / f"{name}.png").stat().st_size > 20_000
        assert f"({name}.png)" in (tmp_path / name / f"{name}.md").read_text(encoding="utf-8")


def test_what_the_command_says(monkeypatch):
    listed = healgp("reproduce", "--list")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(reproduce.EXPERIMENTS)
    for arguments, message in [
        ((), "Name one or more"),
        (("nothing",), "No experiment is called 'nothing'"),
        (("random", "--datasets", "iris"), "No data set is called 'iris'"),
        (("random", "--splits", "a-b"), "Write 0-9"),
        (("random", "--without", "all"), "No fit is called 'all'"),
    ]:
        run = healgp("reproduce", *arguments)
        assert run.exit_code == 2
        assert message in run.stderr
    monkeypatch.setenv("HEALGP_DATA", "/nowhere")
    run = healgp("reproduce", "random")  # before any work
    assert run.exit_code == 2
    assert "UCI Machine Learning Repository" in run.stderr


def test_every_experiment_is_read_on_the_page():
    said = reproduce.reading()
    assert set(said) == {"preface", *reproduce.EXPERIMENTS}
    assert all(len(text) > 60 for text in said.values())
    assert not re.search(r"\bTODO\b", "".join(said.values()))
