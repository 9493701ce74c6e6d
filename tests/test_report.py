"""The report: its numbers are those of the model; it is whole, offline and escaped; in a browser
the slider moves what it should."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from browser import Browser, find
from healgp import ExpertGPClassifier, ExpertGPRegressor, diagnose
from healgp.datasets import robot_arm
from healgp.report import write_report
from healgp.report.facts import number

NASTY = "</script><script>alert('x')</script>"
NAMES = [NASTY, "$a_b$", "-->", "&amp;", "名前", "a" * 200, "#1f6fb4", "line\nbreak"]


@pytest.fixture(scope="module")
def arm():
    X, y = robot_arm(900)
    X = pd.DataFrame(X, columns=NAMES, index=[f"id<{i}>" for i in range(900)])
    model = ExpertGPRegressor(points_per_expert=100, random_state=0)
    return model.fit(X[:600], y[:600]), X[600:], y[600:]


@pytest.fixture(scope="module")
def page(arm, tmp_path_factory):
    model, X, y = arm
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert write_report(model, path, X, y) == path
    return path


def figures(text):
    """What the cards say."""
    found = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", text)
    return dict(found)


def data_of(text):
    return json.loads(re.search(r'id="slider-data">(.*?)</script>', text, re.S).group(1))


def test_numbers_are_those_of_diagnose(arm, page):
    model, X, y = arm
    said, want = figures(page.read_text("utf-8")), diagnose(model, X, y)
    assert said["RMSE"] == number(want.rmse)
    assert said["NLPD"] == number(want.nlpd)
    assert said["CRPS"] == number(want.crps)
    assert said["within the 95 % interval"] == f"{100 * want.coverage[0.95]:.1f} %"
    text = page.read_text("utf-8")
    assert "the 300 rows given" in text
    for kernel, score in model.kernel_scores_.items():
        assert kernel in text
        assert f"{score:.4f}".replace("-", "−") in text


def test_without_rows_it_is_judged_on_left_out_ones_and_says_so(arm, tmp_path):
    model, _, _ = arm
    text = write_report(model, tmp_path / "r.html").read_text("utf-8")
    assert "600 training rows, each left out of its own expert" in text
    want = diagnose(model)
    assert figures(text)["NLPD"] == number(want.nlpd)
    assert figures(text)["RMSE"] == number(want.rmse)


def test_the_slider_s_values_are_those_of_predict_many(arm, page):
    model, X, y = arm
    words = data_of(page.read_text("utf-8"))["words"]
    temperatures = model.temperature_curve_[0]
    settings = [{"aggregation": "gpoe", "temperature": float(t)} for t in temperatures]
    said = {text.split(":")[0].removeprefix("Temperature "): text for text in words}
    for t, (mean, std) in zip(temperatures, model.predict_many(X, settings), strict=True):
        nlpd = np.mean(0.5 * ((y - mean) / std) ** 2 + np.log(std) + 0.5 * np.log(2 * np.pi))
        inside = np.mean(np.abs(y - mean) <= 1.959964 * std)
        text = said[number(float(t), 3)]
        assert f"NLPD {number(nlpd)}" in text
        assert f"{100 * inside:.1f} % within" in text


def test_it_is_whole_offline_and_escaped(page):
    text = page.read_text("utf-8")
    assert "http:" not in text
    assert "https:" not in text
    assert not re.search(r"@import|<link(?! rel=\"icon\" href=\"data:,\")|<img|<iframe|src=", text)
    assert all(link.startswith("#") for link in re.findall(r"url\(([^)]*)\)", text))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#x27;x&#x27;)" in text
    assert "id&lt;" in text  # the names of the most uncertain rows
    assert "id<" not in text
    assert text.count("<script") == 2
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert "nan" not in re.sub(r"<style>.*?</style>|<script.*?</script>", "", text, flags=re.S)


def test_no_training_row_is_in_it(arm, page):
    text = page.read_text("utf-8")
    values = np.concatenate([robot_arm(900)[0][:600].ravel(), robot_arm(900)[1][:600]])
    for digits in (6, 10, 17):
        written = set(re.findall(r"(?<!\d)\d+\.\d{5,}", text))  # whole numbers, not their ends
        assert not written & {f"{abs(v):.{digits}g}" for v in values}


def test_the_most_uncertain_rows_are_those_with_the_widest_bars(arm, page, tmp_path):
    model, X, _ = arm
    std = model.predict(X, return_std=True)[1]

    def listed(path):
        text = path.read_text("utf-8")
        section = text[text.index('<section id="uncertain"') :]
        section = section[: section.index("</section>")]
        return [int(row) for row in re.findall(r'<th scope="row">(\d+)</th>', section)]

    want = list(np.argsort(-std, kind="stable")[:10])
    assert listed(page) == want
    alone = write_report(model, tmp_path / "r.html", X)
    assert listed(alone) == want
    assert "training rows, each left out" in alone.read_text("utf-8")


def test_counts_and_classes(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 2))
    y = rng.poisson(np.exp(1 + np.sin(2 * X[:, 0])))
    counts = ExpertGPRegressor(
        points_per_expert=100, likelihood="poisson", n_inducing=10, kernel="rbf", random_state=0
    ).fit(X, y)
    text = write_report(counts, tmp_path / "c.html", feature_names=["a", "b"]).read_text("utf-8")
    assert figures(text)["NLPD"] == number(diagnose(counts).nlpd)
    assert "deviation of the rate" in text
    assert "CRPS</dt>" not in text
    assert "<code>a</code>, <code>b</code>" in text

    labels = np.array(["<i>", "b"])[(X[:, 0] > 0).astype(int)]
    classes = ExpertGPClassifier(points_per_expert=100, n_inducing=10, random_state=0)
    classes.fit(X[:200], labels[:200])
    text = write_report(classes, tmp_path / "k.html", X[200:], labels[200:]).read_text("utf-8")
    assert figures(text)["right"] == f"{100 * classes.score(X[200:], labels[200:]):.1f} %"
    nlpd = -classes.log_predictive_density(X[200:], labels[200:]).mean()
    assert figures(text)["NLPD"] == number(nlpd)
    assert "<i>" not in text
    assert "PIT" not in text
    assert len(data_of(text)["paths"]) >= len(classes.temperature_curve_[0])


@pytest.mark.parametrize(
    "how",
    [
        dict(points_per_expert=None, max_iter=0, ard=False),
        dict(aggregation="grbcm", weighting="entropy"),
        dict(aggregation="rbcm", temperature=3.3, space="y"),
        dict(aggregation="poe", partition="random"),
        dict(n_inducing=10, standardize=False),
    ],
    ids=str,
)
def test_what_does_not_apply_is_left_out(how, tmp_path):
    X, y = robot_arm(200)
    how = dict(kernel="rbf", points_per_expert=50, random_state=0) | how
    model = ExpertGPRegressor(**how).fit(X[:, :1] if "n_inducing" in how else X, y)
    text = write_report(model, tmp_path / "r.html").read_text("utf-8")
    sections = re.findall(r'<section id="(\w+)"', text)
    one, sparse = how["points_per_expert"] is None, "n_inducing" in how
    slides = not one and how.get("aggregation") not in ("poe", "grbcm")
    assert ("slider" in sections) == slides
    assert ("columns" in sections) == (not one and not sparse)
    assert ("training" in sections) == (model.n_iter_ > 1)
    if how.get("temperature"):
        assert data_of(text)["words"][data_of(text)["chosen"]].startswith("Temperature 3.30")


def test_a_report_that_fails_leaves_an_earlier_one(arm, tmp_path):
    model, X, y = arm
    path = tmp_path / "r.html"
    path.write_text("earlier")
    with pytest.raises(ValueError, match="without X"):
        write_report(model, path, y=y)
    with pytest.raises(ValueError, match="has shape"):
        write_report(model, path, X, y[1:])
    with pytest.raises(ValueError, match="fitted ExpertGPRegressor or"):
        write_report("model", path)
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_report(model, tmp_path / "missing" / "r.html", X, y)


@pytest.mark.skipif(
    find() is None,
    reason="no Chromium: install one, or name it in the variable HEALGP_CHROMIUM",
)
def test_in_a_browser(page):
    state = """JSON.stringify(["#slider-dot use", "#slider-curve path", "#slider-line path"].map(
        (name) => document.querySelector(name).outerHTML))"""
    with Browser(find()) as browser:
        browser.open(page)
        assert browser.js("document.title") == "healgp report"
        assert browser.js("document.querySelectorAll('svg').length") >= 6
        assert browser.js("document.getElementById('control').hidden") is False
        said = "document.getElementById('said').textContent"
        start, words = browser.js(state), browser.js(said)
        assert "(chosen)" in words

        # by keyboard alone: Tab to the slider, then arrows
        for _ in range(40):
            browser.key("Tab", 9)
            if browser.js("document.activeElement.id") == "temperature":
                break
        assert browser.js("document.activeElement.id") == "temperature"
        browser.key("ArrowRight", 39)
        moved = browser.js(state)
        assert all(a != b for a, b in zip(json.loads(start), json.loads(moved), strict=True))
        assert browser.js(said) != words
        value = "document.getElementById('temperature').getAttribute('aria-valuetext')"
        assert browser.js(value) in browser.js(said)
        browser.key("Home", 36)
        assert browser.js(said).startswith("Temperature 0.300:")
        browser.js("document.getElementById('back').click()")
        assert browser.js(state) == start

        # the mark is on the curve that matplotlib drew, for every temperature
        data = data_of(page.read_text("utf-8"))
        on_it = f"""{json.dumps(data["dots"])}.every(([x, y]) =>
            document.querySelector("#slider-nlpd path").isPointInStroke(new DOMPoint(x, y)))"""
        assert browser.js(on_it)
        assert len(data["dots"]) == len(data["words"]) == len(data["paths"])
        assert browser.js("document.scripts.length") == 2

        browser.size(360, 800, mobile=True)
        assert browser.js("document.documentElement.scrollWidth") <= 360
        colour = "getComputedStyle(document.body).backgroundColor"
        light = browser.js(colour)
        browser.media("dark")
        assert browser.js(colour) != light
        ink = browser.js("getComputedStyle(document.querySelector('svg text')).fill")
        assert ink == browser.js("getComputedStyle(document.body).color")
        browser.media("dark", "print")
        assert browser.js(colour) == light
        assert browser.js("getComputedStyle(document.getElementById('control')).display") == "none"

        asked = [e["params"]["request"]["url"] for e in browser.events
                 if e["method"] == "Network.requestWillBeSent"]  # fmt: skip
        assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
        wrong = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        assert not [event for event in browser.events if event["method"] in wrong]
