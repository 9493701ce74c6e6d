"""The documentation: every block of code runs as written, prints what the page says it prints, and
the site builds without a warning and asks the network for nothing."""

from __future__ import annotations

import ast
import contextlib
import html
import importlib.util
import inspect
import io
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from healgp import ExpertGPClassifier, ExpertGPRegressor
from healgp.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

#: Pages that commands write.
WRITTEN = {"reproduction.md", "benchmarks.md", "scale.md", "choices.md"}

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.S | re.M)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")

#: How far printed numbers may be from the page's, for machines differ in the last digits; and after
#: the word "about", for a temperature is chosen from a grid.
NEAR, ABOUT = 0.02, 0.4


def pages():
    return {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}


def blocks(name):
    return BLOCK.findall(pages()[name].read_text(encoding="utf-8"))


RUNNABLE = [name for name in pages() if {"python", "console"} & {kind for kind, _ in blocks(name)}]


def run_python(code, where, names):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, where, "exec"), names)
    return out.getvalue()


def run_console(text):
    """Runs the lines that begin with `$ healgp`; the others are what those before them print."""
    commands = re.findall(r"^\$ healgp (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.M)
    assert commands, text
    for words, expected in commands:
        result = CliRunner().invoke(app, shlex.split(words))
        assert result.exit_code == 0, result.output
        if expected:
            check_printed(result.stdout, expected)


def check_printed(printed, expected):
    """The same words, and numbers that are near; … stands for anything."""
    lines, wanted = printed.rstrip().splitlines(), expected.rstrip().splitlines()
    assert len(lines) == len(wanted), f"printed:\n{printed}\nbut the page has:\n{expected}"
    for line, want in zip(lines, wanted, strict=True):
        parts = [NUMBER.sub("\0", part) for part in want.split("…")]
        pattern = ".*".join(re.escape(p).replace("\0", f"({NUMBER.pattern})") for p in parts)
        found = re.fullmatch(pattern.replace("\\ ", " +"), line)
        message = f"printed: {line}\nbut the page has: {want}"
        assert found, message
        for given, shown in zip(found.groups(), NUMBER.finditer(want), strict=True):
            a, b = (float(v.replace(",", "")) for v in (given, shown.group()))
            near = ABOUT if want[: shown.start()].endswith("about ") else NEAR
            digits = len(shown.group().partition(".")[2])
            assert abs(a - b) <= max(near * abs(b), 2.0 * 10.0**-digits * (digits > 0)), message


@pytest.mark.parametrize("name", RUNNABLE)
def test_blocks(name, tmp_path, monkeypatch):
    found = blocks(name)
    if any(kind == "python" and "distributed" in code for kind, code in found):
        pytest.importorskip("distributed", reason="needs the extra dask")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    printed = None
    for kind, text in found:
        if kind == "python":
            printed = run_python(text, f"docs/{name}", names)
        elif kind == "console":
            run_console(text)
            printed = None
        elif kind == "text" and printed is not None:
            check_printed(printed, text)
            printed = None
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].pyplot.close("all")


def test_pages():
    assert {name for name in WRITTEN if name in pages()} == WRITTEN
    assert not WRITTEN & set(RUNNABLE)
    assert len(RUNNABLE) > 10
    for name in pages():
        for kind, _ in blocks(name):
            assert kind in ("python", "console", "text", "sh"), f"{name}: {kind}"


def test_printed_is_compared():
    check_printed("a 1.001, b  30\n", "a 1.00, b 30\n")
    check_printed("T about 13\n", "T about 10\n")
    check_printed("saved in 3.2 s as m\n", "saved in … as m\n")
    for printed in ("a 1.2, b 30\n", "c 1.00, b 30\n", "a 1.00, b 33\n", "a 1.00, b 30\nmore\n"):
        with pytest.raises(AssertionError):
            check_printed(printed, "a 1.00, b 30\n")


# ---- the site ------------------------------------------------------------------------------------


class Requests(HTMLParser):
    """What a browser asks for by itself when it opens a page, and links to other pages."""

    def __init__(self):
        super().__init__()
        self.requests, self.policy = [], None

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag == "link" and given.get("rel") in ("next", "prev", "canonical"):
            return
        for name in ("src", "srcset", "data", "poster", *(["href"] if tag == "link" else [])):
            if given.get(name):
                self.requests.append(given[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(module) is not None:
                continue
        pytest.skip("the site is built by `make docs`, which installs what that needs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_asks_the_network_for_nothing(site):
    seen = list(site.rglob("*.html"))
    assert len(seen) > 20
    for path in seen:
        page = Requests()
        page.feed(path.read_text(encoding="utf-8"))
        assert page.requests
        outside = [r for r in page.requests if re.match(r"(\w+:)?//", r)]
        assert not outside, f"{path.name}: {outside}"
        assert page.policy is not None
        assert "http" not in page.policy
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text()), path


def test_formulas_keep_their_stars(site):
    for path in site.rglob("*.html"):
        for said in re.findall(r"<em>(.*?)</em>", path.read_text(encoding="utf-8"), flags=re.S):
            assert not re.search(r"[=⁻²()\[\]+]", said), f"{path.name}: {said}"


@pytest.mark.parametrize("cls", [ExpertGPRegressor, ExpertGPClassifier])
def test_the_reference_shows_the_defaults_that_are(cls, site):
    page = (site / "api" / f"{cls.__name__.removeprefix('ExpertGP').lower()}.html").read_text()
    shown = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page, flags=re.S):
        cells = re.findall(r"<td>(.*?)</td>", row, flags=re.S)
        if len(cells) == 4:
            name, _, _, default = (html.unescape(re.sub(r"<.*?>", "", c)).strip() for c in cells)
            shown[name] = default
    starts = {"lengthscale", "signal_variance", "noise_variance"}  # in one line, with one each
    for name, parameter in inspect.signature(cls).parameters.items():
        assert name in shown, name
        if name not in starts:
            written = shown[name]
            missing = written in ("", "required")  # where the text says it
            assert missing or ast.literal_eval(written) == parameter.default, name


def test_the_reference_has_every_public_name(site):
    import healgp
    from healgp import aggregation, datasets, metrics, plots, weights

    text = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    wanted = [f"healgp.{name}" for name in healgp.__all__]
    wanted += [f"healgp.plots.{name}" for name in plots.__all__ if name.islower()]
    wanted[wanted.index("healgp.plots.pathologies")] += ".pathologies"  # a module has its name
    for module in (aggregation, datasets, metrics, weights):
        functions = (
            n for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__
        )
        wanted += [f"{module.__name__}.{n}" for n in functions if n.islower() and n[0] != "_"]
    for cls in (healgp.ExpertGPRegressor, healgp.ExpertGPClassifier):
        wanted += [
            f"healgp.{cls.__name__}.{name}" for name in ("fit", "predict", "save", "calibrate")
        ]
    wanted += [
        "healgp.report.write_report",
        "healgp.tables.TableModel",
        "healgp.tables.TableModel.fit",
    ]
    for name in wanted:
        assert f'id="{name}"' in text, f"{name} is not in the reference"
