"""The page: sections of HTML around the facts and the pictures. Every word that comes from the data
is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from healgp.deviations import GAUSSIAN
from healgp.evidence import Classes
from healgp.plots.choices import relevance, relevances, training_curve
from healgp.plots.experts import experts_map
from healgp.plots.quality import calibration_curve, pit_histogram
from healgp.report.facts import Facts, number
from healgp.report.pictures import picture, slider_pictures

#: Columns whose names are listed.
_NAMES = 40


def page(facts: Facts, version: str) -> str:
    """The whole page; it asks the network for nothing, and says so to the browser."""
    model = facts.model
    sections = [
        ("quality", "Quality", _quality(facts)),
        ("data", "The data", _data(facts)),
        ("choices", "What was chosen, and why", _choices(facts)),
        ("slider", "The temperature", _slider(facts)),
        ("uncertain", "The most uncertain rows", _uncertain(facts)),
        ("columns", "Which columns matter", _columns(facts)),
        ("experts", "The experts", _experts(facts)),
        ("training", "Training", _training(facts)),
        ("settings", "All settings", _settings(facts)),
    ]
    sections = [entry for entry in sections if entry[2]]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections)
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        f"{content}</section>\n"
        for name, title, content in sections
    )
    titles = {"measurements": "Regression", "counts": "Counts", "classes": "Classification"}
    N, J = model._committee.n_rows, model.n_experts_
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>healgp report</title>
<style>
{_file("style.css")}</style>
</head>
<body>
<a class="skip" href="#main">To the report</a>
<header>
<h1>{titles[facts.kind]} by a committee of Gaussian processes</h1>
<p class="soft">{escape(type(model).__name__)}: {_count(N, "training row")},
{_count(len(facts.names), "column")}, {_count(J, "expert")}. Written on {date.today():%d %B %Y}
by healgp {escape(version)}.</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main">
{body}</main>
</body>
</html>
"""


def _quality(facts: Facts) -> str:
    found = facts.evidence.prediction
    good = "as wide as they say" in facts.words[0] or "as often as" in facts.words[0]
    out = [
        f"<p>Judged on {escape(facts.where)}.</p>",
        f'<p class="verdict{"" if good else " warning"}">{escape(" ".join(facts.words))}</p>',
        '<dl class="figures">',
        *(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.quality),
        "</dl>",
    ]
    if isinstance(found, Classes):
        caption = (
            "How often predictions are right, by how sure they were. On the dashed line they are "
            "right as often as they claim; grey bars are what chance allows. Above the line they "
            "are too modest, below it too sure."
        )
    else:
        caption = (
            "The share of rows inside their intervals, for intervals of every level. On the dashed "
            "line the intervals hold what they promise; the grey band is what chance allows. Above "
            "the line they are too wide, below it too narrow."
        )
    shown = [
        _figure(picture("coverage", "Calibration curve", lambda ax: calibration_curve(found, ax)),
                caption)
    ]  # fmt: skip
    if not isinstance(found, Classes):
        shown.append(_figure(
            picture("pit", "PIT histogram", lambda ax: pit_histogram(found, ax)),
            "Where the observed values fall in their predicted distributions, in tenths. Flat is "
            "right; a hill in the middle means error bars too wide, a valley too narrow, a slope "
            "that predictions are off to one side.",
        ))  # fmt: skip
    out.append(f'<div class="pictures">{"".join(shown)}</div>')
    out.append(
        '<p class="soft">NLPD is the negative log predictive density, the mean over rows: smaller '
        "is better, and it punishes error bars that are too narrow as well as those too wide."
        + ("" if isinstance(found, Classes) else " RMSE and CRPS are errors in the target’s unit.")
        + "</p>"
    )
    return "\n".join(out)


def _data(facts: Facts) -> str:
    names = [f"<code>{escape(name)}</code>" for name in facts.names[:_NAMES]]
    left = len(facts.names) - len(names)
    rows = [
        ("training rows", f"{facts.model._committee.n_rows:,}"),
        ("columns", f"{len(facts.names):,}"),
        *((escape(k), escape(v)) for k, v in facts.target),
        ("names of the columns", ", ".join(names) + (f" and {left:,} more" if left else "")),
    ]
    return _table(None, rows)


def _choices(facts: Facts) -> str:
    model: Any = facts.model
    kernels, rules = model.kernel_scores_, model.aggregation_scores_
    slider, rule = facts.slider, model.aggregation_
    lines = [
        ("kernel", model.kernel_,
         "the one with the largest marginal likelihood, each trained briefly on a few experts"
         if kernels else "as it was asked for"),
        ("rule", rule,
         "nested is taken where it predicts left-out training rows clearly better, else gpoe"
         if rules else "one expert alone is the whole committee" if model.n_experts_ == 1
         else "as it was asked for" if model.aggregation != "auto"
         else "the rule for sparse experts"),
    ]  # fmt: skip
    if slider is not None and slider.used:
        given = model.temperature != "auto"
        lines.append((
            "temperature", number(model.temperature_, 3),
            "as it was asked for" if given else
            "the one that predicts left-out rows best: see the next section",
        ))  # fmt: skip
    if facts.kind == "measurements" and not _is_plain(model):
        said = model._setting({}).deviations
        shape = "Gaussian" if said.gaussian else f"Student’s t, ν = {number(said.freedom, 3)}"
        factor = "" if said.scale == 1.0 else f", deviations × {number(said.scale, 3)}"
        lines.append((
            "error bars", shape + factor,
            "how far left-out training rows are from their predictions, where that is clearly not "
            "what the model alone would say",
        ))  # fmt: skip
    shown = "".join(
        f'<div><dt>{name}</dt><dd class="what">{escape(what)}</dd>'
        f'<dd class="why">{escape(why)}</dd></div>'
        for name, what, why in lines
    )
    out = [f'<dl class="choices">{shown}</dl>']
    if kernels:
        out.append(_scores(
            "Kernels: log marginal likelihood per row, larger is better",
            sorted(kernels.items(), key=lambda item: -item[1]), model.kernel_,
        ))  # fmt: skip
    if rules:
        caption = "Rules: NLPD of left-out rows (of the standardised target), smaller is better"
        out.append(_scores(caption, sorted(rules.items(), key=lambda item: item[1]), rule))
    return "\n".join(out)


def _is_plain(model: Any) -> bool:
    """Whether its deviations are the Gaussian ones of its experts."""
    return model._setting({}).deviations == GAUSSIAN


def _slider(facts: Facts) -> str:
    slider = facts.slider
    if slider is None:
        return ""
    of_classes = facts.kind == "classes"
    nlpd, calibration, data = slider_pictures(slider, of_classes)
    about = (
        "The temperature says how sparse the vote is: at a low one all experts are heard alike, at "
        "a high one only the surest. "
    )
    if not slider.used:
        about += (
            "The rule that was chosen, nested, has no temperature; this is what "
            f"{slider.rule} would give."
        )
    elif not of_classes and not _is_plain(facts.model):
        about += "It is shown with Gaussian error bars, the model's own, which it was chosen by."
    where = "training rows, left out" if facts.evidence.left_out else "the rows given"
    last = len(slider.temperatures) - 1
    text = json.dumps(data).replace("<", "\\u003c")
    return f"""<p>{escape(about)}</p>
<div class="control" id="control" hidden>
<label for="temperature">Temperature</label>
<input type="range" id="temperature" min="0" max="{last}" step="1" value="{slider.chosen}"
 aria-describedby="said">
<output id="said" for="temperature" aria-live="polite"></output>
<button type="button" id="back">Back to the one that was chosen</button>
</div>
<div class="pictures">
{
        _figure(
            nlpd,
            f"NLPD of {slider.n:,} rows ({where}) against the temperature; the mark is at "
            f"{number(float(slider.temperatures[slider.chosen]), 3)} unless moved.",
        )
    }
{
        _figure(
            calibration,
            "How often predictions are right, by how sure they were, at that temperature."
            if of_classes
            else "The share of rows inside their intervals at that temperature.",
        )
    }
</div>
<script type="application/json" id="slider-data">{text}</script>
<script>
{_file("slider.js")}</script>
"""


def _uncertain(facts: Facts) -> str:
    found = facts.uncertain
    if not found.lines:
        return ""
    lines = [[escape(cell) for cell in line] for line in found.lines]
    return f"<p>{escape(found.where)}</p>" + _table([escape(h) for h in found.head], lines)


def _columns(facts: Facts) -> str:
    model = facts.model
    if not model.ard or len(facts.names) < 2:
        return ""
    values = relevances(model)
    height = 0.8 + 0.22 * min(len(values), 20)
    order = np.argsort(-values, kind="stable")
    told = ", ".join(
        f"{facts.names[d]} {number(float(values[d]), 2)}" for d in order[: min(len(order), 20)]
    )
    drawn = picture(
        "relevance", f"Relevance of columns: {told}",
        lambda ax: relevance(model, facts.names, ax), (4.1, height),
    )  # fmt: skip
    return '<div class="pictures">' + _figure(
        drawn,
        "How quickly the answer changes along each column: its standard deviation divided by its "
        "lengthscale. A column near 0 hardly matters; a long bar may also mean a wiggly influence.",
    ) + "</div>"  # fmt: skip


def _experts(facts: Facts) -> str:
    model = facts.model
    sizes = model._committee.sizes
    words = (
        f"<p>{_count(len(sizes), 'expert')} of {sizes.min():,} to {sizes.max():,} rows, "
        f"{np.median(sizes):,.0f} in the middle.</p>"
    )
    if model.n_experts_ == 1:
        return f"<p>One expert holds all {sizes[0]:,} rows.</p>"
    if len(facts.names) < 2:
        return words
    drawn = picture(
        "experts", "Map of the experts",
        lambda ax: experts_map(model, rows=False, feature_names=facts.names, ax=ax), (4.1, 3.5),
    )  # fmt: skip
    return words + '<div class="pictures">' + _figure(
        drawn,
        "Where the experts’ rows lie, over the two widest directions of the scaled inputs: an "
        "outline at one standard deviation about the centre of each (for many experts, the "
        "centres; those of very few rows are left out). Named are the columns that each direction "
        "is mostly made of.",
    ) + "</div>"  # fmt: skip


def _training(facts: Facts) -> str:
    model = facts.model
    if len(getattr(model, "training_curve_", ())) < 2:
        return ""
    drawn = picture("training", "Training curve", lambda ax: training_curve(model, ax))
    return '<div class="pictures">' + _figure(
        drawn,
        f"The objective after each of {_count(model.n_iter_, 'iteration')}, larger is better. "
        "Where it steps down, more experts have joined, or training began again from longer "
        "lengthscales.",
    ) + "</div>"  # fmt: skip


def _settings(facts: Facts) -> str:
    rows = []
    for name, value in facts.model.get_params(deep=False).items():
        text = repr(value)
        if isinstance(value, np.ndarray) or len(text) > 60:  # labels of rows, say
            text = f"given as {type(value).__name__}"
        rows.append(
            f"<div><dt><code>{escape(name)}</code></dt><dd><code>{escape(text)}</code></dd></div>"
        )
    return f'<dl class="settings">{"".join(rows)}</dl>'


def _scores(caption: str, scores: Sequence[tuple[str, float]], chosen: str) -> str:
    lines = "".join(
        f'<tr{" class=chosen" if name == chosen else ""}><th scope="row">{escape(name)}'
        f"{' (chosen)' if name == chosen else ''}</th>"
        f'<td class="number">{value:.4f}</td></tr>'
        for name, value in scores
    )
    lines = lines.replace(">-", ">−")
    return (
        f'<h3>{escape(caption)}</h3><div class="scroll"><table><tbody>{lines}</tbody></table></div>'
    )


def _table(head: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; the first of each row is its name."""
    top, kind = "", ' class="facts"'
    if head is not None:
        kind = ""
        top = "<thead><tr>" + "".join(f'<th scope="col">{h}</th>' for h in head) + "</tr></thead>"
    lines = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return f'<div class="scroll"><table{kind}>{top}<tbody>{lines}</tbody></table></div>'


def _figure(drawn: str, caption: str) -> str:
    return f"<figure>{drawn}<figcaption>{escape(caption)}</figcaption></figure>"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _file(name: str) -> str:
    return files("healgp.report").joinpath(name).read_text(encoding="utf-8")
