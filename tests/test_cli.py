"""The command line from end to end: files in, files out, and what it says and ends with."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import healgp
from healgp import ExpertGPRegressor, diagnose, load, tables
from healgp.cli import app
from test_tables import houses

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

COMMAND = [sys.executable, "-m", "healgp.cli"]
QUICK = ["--kernel", "rbf", "--points-per-expert", "60"]
TARGETS = {"price": "regression", "dear": "classification", "visits": "counts"}


def run(*arguments, code=0):
    """What the command printed, on both ways; it must end with the code."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, and a model of each task."""
    folder = tmp_path_factory.mktemp("cli")
    houses(240).to_csv(folder / "train.csv", index=False)
    houses(120, seed=1).to_csv(folder / "test.csv", index=False)
    for target in TARGETS:
        others = [f"--drop={name}" for name in TARGETS if name != target]
        run("fit", folder / "train.csv", "--target", target, "-o", folder / target, *others, *QUICK)
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_from_table_to_table(folder, target, tmp_path):
    out, err = run("predict", folder / target, folder / "test.csv", "-o", tmp_path / "out.csv")
    assert "120 rows written" in out
    assert err == ""
    found, test = pd.read_csv(tmp_path / "out.csv"), pd.read_csv(folder / "test.csv")
    model = load(folder / target)
    assert model.task == TARGETS[target]
    expected = model.predict(test)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-12)
    if target == "dear":
        assert list(found.columns) == ["class", "probability_cheap", "probability_dear"]
        assert (found["class"] == test["dear"]).mean() > 0.85
    else:
        assert list(found.columns) == ["mean", "std", "lower", "upper"]
        assert np.corrcoef(found["mean"], test[target])[0, 1] > (0.95 if target == "price" else 0.2)

    # with the table's own columns, other intervals and another format
    run("predict", folder / target, folder / "test.csv", "-o", tmp_path / "out.parquet", "--keep",
        "--coverage", "0.5")  # fmt: skip
    kept = pd.read_parquet(tmp_path / "out.parquet")
    assert list(kept.columns) == [*test.columns, *found.columns]
    own = kept[test.columns].astype(object)
    pd.testing.assert_frame_equal(own.where(own.notna(), np.nan), test.astype(object))
    if target == "price":
        half = model.estimator._half_width(kept["std"], 0.5)
        np.testing.assert_allclose(kept["upper"] - kept["mean"], half)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.csv", "out.parquet"]


def test_fit_says_what_it_did(folder, tmp_path):
    drop = ["--drop", "dear", "--drop", "visits"]
    out, err = run("fit", folder / "train.csv", "--target", "price", "-o", tmp_path / "m", *QUICK,
                   *drop, "--seed", "3", "--n-jobs", "1")  # fmt: skip
    lines = out.splitlines()
    assert lines[0].startswith("price: the target, for regression")
    assert "town: text, 3 values" in out
    assert lines[-1].startswith("240 rows, 4 experts, kernel rbf, rule ")
    assert err == ""
    parameters = load(tmp_path / "m").estimator.get_params()
    assert parameters["random_state"] == 3
    assert parameters["n_jobs"] == 1
    assert parameters["verbose"] == 0
    # the same model again, and the same as in Python
    table = tables.read(folder / "train.csv")
    same = tables.TableModel.fit(table, "price", drop=["dear", "visits"], kernel="rbf",
                                 points_per_expert=60, random_state=3)  # fmt: skip
    pd.testing.assert_frame_equal(same.predict(table), load(tmp_path / "m").predict(table))
    run("fit", folder / "train.csv", "--target", "visits", "-o", tmp_path / "m", *QUICK,
        "--task", "regression", "--drop", "dear")  # fmt: skip
    assert load(tmp_path / "m").task == "regression"


@pytest.mark.parametrize("target", TARGETS)
def test_evaluate(folder, target):
    out, _ = run("evaluate", folder / target, folder / "test.csv")
    found = json.loads(run("evaluate", folder / target, folder / "test.csv", "--json")[0])
    assert found["rows"] == 120
    assert f"NLPD {found['nlpd']:.4g}" in out
    test, model = tables.read(folder / "test.csv"), load(folder / target)
    X, y = model.inputs(test), model.targets(test)
    density = model.estimator.log_predictive_density(X, y)
    np.testing.assert_allclose(found["nlpd"], -density.mean())
    if target == "dear":
        assert found["accuracy"] == model.estimator.score(X, y)
        assert found["most_frequent"] == 0.5
        assert "accuracy" in out
        assert found["words"][0].startswith("The probabilities are ")
        return
    np.testing.assert_allclose(found["r2"], model.estimator.score(X, y))
    assert "within the interval of: 50%" in out
    expected = diagnose(model.estimator, X, y)
    assert found["words"] == [*(expected.warnings or ["The intervals are as wide as they say."])]
    assert found["coverage"]["0.9"] == expected.coverage[0.9]
    if target == "price":
        lower, upper = model.estimator.predict_interval(X, coverage=0.9)
        assert found["coverage"]["0.9"] == ((lower <= y) & (y <= upper)).mean()


def test_rows_without_a_target_are_left_out_of_an_evaluation(folder, tmp_path):
    test = pd.read_csv(folder / "test.csv")
    test.loc[:69, "price"] = np.nan
    test.to_csv(tmp_path / "some.csv", index=False)
    out, _ = run("evaluate", folder / "price", tmp_path / "some.csv")
    assert out.startswith("50 rows: ")
    assert "70 rows without a target were left out" in out
    assert "these numbers are rough" in out


def test_report(folder, tmp_path):
    out, _ = run("report", folder / "dear", "-o", tmp_path / "without.html")
    assert out == f"Written to {tmp_path / 'without.html'}\n"
    test = pd.read_csv(folder / "test.csv")
    test.loc[:9, "price"] = np.nan
    test.to_csv(tmp_path / "test.csv", index=False)
    run("report", folder / "price", tmp_path / "test.csv", "-o", tmp_path / "with.html")
    test.drop(columns="visits").to_csv(tmp_path / "new.csv", index=False)
    run("report", folder / "visits", tmp_path / "new.csv", "-o", tmp_path / "new.html")
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("without", "with", "new")]
    assert all("<html" in page and "town=Köln" in page for page in pages)


def test_info(folder, tmp_path):
    out, _ = run("info", folder / "dear")
    found = json.loads(run("info", folder / "dear", "--json")[0])
    assert found["task"] == "classification"
    assert found["classes"] == ["cheap", "dear"]
    assert found["rows"] == 240
    assert len(found["lengthscales"]) == len(found["inputs"])
    assert "town=Köln" in out
    X = houses()[["size", "sold"]].assign(sold=1.0)
    ExpertGPRegressor(max_iter=2, random_state=0).fit(X.to_numpy(), X["size"]).save(tmp_path / "m")
    assert json.loads(run("info", tmp_path / "m", "--json")[0])["inputs"] == 2
    _, err = run("predict", tmp_path / "m", folder / "test.csv", "-o", tmp_path / "o.csv", code=1)
    assert "saved by an estimator in Python" in err


def test_json_is_one_object(folder, tmp_path):
    arguments = ["fit", folder / "train.csv", "--target", "price", "-o", tmp_path / "m", *QUICK]
    found = json.loads(run(*arguments, "--json")[0])
    assert found["rows"] == 240
    assert found["task"] == "regression"
    assert len(found["notes"]) == 9
    assert found["warnings"] == []
    new = pd.read_csv(folder / "test.csv").assign(town="Rome")
    new.to_csv(tmp_path / "new.csv", index=False)
    out, err = run(
        "predict", tmp_path / "m", tmp_path / "new.csv", "-o", tmp_path / "o.feather", "--json"
    )
    assert json.loads(out)["columns"] == ["mean", "std", "lower", "upper"]
    assert "'town' has 1 value" in json.loads(out)["warnings"][0]
    assert err.count("Warning: The column 'town'") == 1
    found = json.loads(run("info", tmp_path / "none", "--json", code=1)[0])
    assert "none" in found["error"]


ERRORS = [
    (["fit", "none.csv", "--target", "a", "-o", "m"], 1, "none.csv does not exist"),
    (["fit", "train.csv", "--target", "none", "-o", "m"], 1, "no column 'none'"),
    (["fit", "train.csv", "--target", "sold", "-o", "m"], 1, "'sold' is a date"),
    (["fit", "wide.csv", "--target", "y", "-o", "m"], 1, "--drop 'note'"),
    (["fit", "train.csv", "--target", "price", "-o", "train.csv"], 1, "is a file"),
    (["fit", "train.csv", "--target", "price", "-o", "."], 1, "other files"),
    (["predict", "train.csv", "test.csv", "-o", "o.csv"], 1, "not a saved model"),
    (["predict", "price", "wide.csv", "-o", "o.csv"], 1, "lacks columns"),
    (["predict", "price", "test.csv", "-o", "test.csv"], 1, "is the data itself"),
    (["predict", "price", "mean.csv", "-o", "o.csv", "--keep"], 1, "has a column 'mean'"),
    (["predict", "price", "test.csv", "-o", "none/o.csv"], 1, "none"),
    (["evaluate", "price", "wide.csv"], 1, "no column 'price'"),
    (["info", "none"], 1, "none/model.json does not exist"),
    (["predict", "price", "test.csv", "-o", "o.xlsx"], 2, "end in .csv"),
    (["predict", "price", "test.csv", "-o", "o.csv", "--coverage", "1"], 2, "coverage"),
    (["fit", "train.csv", "-o", "m"], 2, "target"),
    (["fit", "train.csv", "--target", "price", "-o", "m", "--kernel", "cubic"], 2, "matern52"),
    (["fit", "train.csv", "--target", "price", "-o", "m", "--task", "rank"], 2, "counts"),
    (["fit", "train.csv", "--target", "price", "-o", "m", "--points-per-expert", "0"], 2, "expert"),
    (["dance"], 2, "dance"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), ERRORS)
def test_errors_are_one_message(folder, arguments, code, message, monkeypatch):
    monkeypatch.chdir(folder)
    if not (folder / "wide.csv").exists():
        wide = pd.DataFrame({"note": [f"secret {i}" for i in range(99)], "y": np.arange(99)})
        wide.to_csv("wide.csv", index=False)
        houses(20).assign(mean=1).to_csv("mean.csv", index=False)
    before = sorted(os.listdir())
    out, err = run(*arguments, code=code)
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert "secret" not in err
    if code == 1:
        assert len(err.splitlines()) == 1
    assert sorted(os.listdir()) == before


def test_help_has_an_example():
    assert "130 if it was interrupted" in " ".join(run("--help")[0].split())
    for name in ("fit", "predict", "evaluate", "report", "info", "demo", "reproduce"):
        assert f"Example: healgp {name}" in run(name, "--help")[0]


# ---- in a process of its own -------------------------------------------------------------------


class AtTerminal:
    """The command with its second output at a terminal of 120 columns."""

    def __init__(self, *arguments):
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 120))
        command = [*COMMAND, *(str(a) for a in arguments)]
        self.process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, text=True)
        os.close(theirs)
        self.said = ""

    def until(self, text):
        while text not in self.said:
            try:
                self.said += os.read(self._ours, 1 << 16).decode(errors="ignore")
            except OSError as error:  # the terminal closes with the process
                raise EOFError(f"{text!r} was not said, but: {self.said[-2000:]}") from error
        return self

    def press(self):
        self.process.send_signal(signal.SIGINT)
        return self

    def end(self):
        with contextlib.suppress(EOFError):
            self.until("no such text")
        os.close(self._ours)
        self.out = self.process.communicate(timeout=60)[0]
        assert "Traceback" not in self.said
        return self.process.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals of its own")
@pytest.mark.parametrize("presses", [1, 2])
def test_bars_at_a_terminal_and_interrupts(presses, tmp_path):
    """Ctrl-C while training saves the best so far; twice, it leaves nothing."""
    X, y = healgp.datasets.robot_arm(6000)
    table = pd.DataFrame(X).rename(columns=str).assign(y=y)
    table.to_parquet(tmp_path / "arm.parquet")
    fit = AtTerminal("fit", tmp_path / "arm.parquet", "--target", "y", "-o", tmp_path / "model",
                     "--kernel", "rbf", "--points-per-expert", "1000", "--json")  # fmt: skip
    fit.until("log p per row").press().until("Ctrl-C again to end at once")
    if presses == 2:
        assert fit.press().end() == 130
        assert [file.name for file in tmp_path.iterdir()] == ["arm.parquet"]
        return
    assert fit.end() == 0
    assert "partitioning: 100%" in fit.said
    assert "calibrating:" in fit.said
    assert "row/s" in fit.said
    found = json.loads(fit.out)
    assert "interrupted" in found["warnings"][0]
    assert found["iterations"] < 30
    assert load(tmp_path / "model").estimator.n_experts_ == found["experts"]


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals of its own")
def test_interrupted_while_it_predicts(folder, tmp_path):
    table = pd.concat([pd.read_csv(folder / "test.csv")] * 500)
    table.to_csv(tmp_path / "many.csv", index=False)
    model, many, out = folder / "price", tmp_path / "many.csv", tmp_path / "o.csv"
    predict = AtTerminal("predict", model, many, "-o", out)
    assert predict.until("predicting:").press().end() == 130
    # after it, colorama (which Numba uses where it is installed) may reset the terminal's colours,
    # and a bar that was being made at that moment is closed
    assert "Interrupted; nothing was written." in predict.said.splitlines()
    assert [file.name for file in tmp_path.iterdir()] == ["many.csv"]


def test_importing_stays_light():
    """Neither tables nor the command line come with the library. (Of pandas scikit-learn itself
    takes a look, where it is installed.)"""
    code = """if True:
        import sys, healgp
        heavy = ("typer", "dask", "matplotlib", "sklearn.compose", "healgp.tables", "healgp.cli")
        print([name for name in heavy if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
