"""The README's examples run as written, one after another."""

import re
from pathlib import Path

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
