"""The README's examples run as written, one after another."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from healgp.cli import app
from test_tables import houses

README = Path(__file__).parent.parent / "README.md"


def test_examples(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a report is written
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert blocks
    assert text[: text.index("```python")].count("\n") < 40
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "report.html").stat().st_size > 50_000
    assert 0.93 < float(capsys.readouterr().out.split()[0]) < 0.97


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("houses", "new", "held_out")):
        houses(300, seed).to_csv(f"{name}.csv", index=False)
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
    lines = [shlex.split(line, comments=True) for line in "".join(blocks).splitlines()]
    commands = [words[1:] for words in lines if words[:1] == ["healgp"]]
    assert [words[0] for words in commands] == ["fit", "predict", "evaluate", "report", "info"]
    for words in commands:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    assert Path("predicted.csv").read_text().startswith("mean,std,lower,upper\n")
