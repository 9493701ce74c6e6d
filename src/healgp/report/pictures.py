"""matplotlib's figures as SVG inside a page: colours become the page's own, so that they follow
light and dark, and nothing is left that names a host or another file."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from healgp.plots.choices import mark, nlpd_curve
from healgp.plots.style import FIT, FULL, GROUPS, INK, SOFT, label, legend, start
from healgp.report.facts import Slider

Array = np.ndarray

#: Colours of the pictures, and the page's names for them.
_COLOURS = {INK: "--ink", SOFT: "--soft", FIT: "--fit", FULL: "--mark"} | {
    colour: f"--group-{i}" for i, colour in enumerate(GROUPS) if colour not in (FIT, FULL)
}

_STYLE: Any = {
    "svg.fonttype": "none", "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.unicode_minus": True,
}  # fmt: skip


def picture(
    name: str, text: str, draw: Callable[[Any], Any], size: tuple[float, float] = (4.1, 3.1)
) -> str:
    """The SVG that `draw(ax)` draws; `text` says what it shows to those who cannot see it."""
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = _figure(size)
        draw(figure.subplots())
        return _inline(figure, name, text)


def slider_pictures(slider: Slider, of_classes: bool) -> tuple[str, str, dict[str, Any]]:
    """The NLPD curve with its marker, the calibration curve, and for each temperature where the
    marker and the curve go, in the pictures' coordinates."""
    T, chosen = slider.temperatures, slider.chosen
    with mpl.rc_context(_STYLE | {"svg.hashsalt": "slider"}):
        first = _figure((4.1, 3.1))
        ax = nlpd_curve(T, slider.nlpd, first.subplots())
        ax.lines[0].set_gid("slider-nlpd")
        if slider.choice is not None:
            ax.lines[0].set_label("rows given")
            ax.plot(*slider.choice, color=SOFT, linewidth=1.2, label="training rows, left out")
            legend(ax)
        line, dot = mark(ax, T[chosen], T, slider.nlpd)
        line.set_gid("slider-line")
        dot.set_gid("slider-dot")
        first.draw_without_rendering()
        dots = _places(first, ax, T, slider.nlpd)
        nlpd = _inline(first, "slider", "NLPD against the temperature, with a movable marker")

    with mpl.rc_context(_STYLE | {"svg.hashsalt": "slider-calibration"}):
        second = _figure((4.1, 3.1))
        ax = start(second.subplots())
        ax.plot([0, 1], [0, 1], color=SOFT, linewidth=1.0, linestyle=(0, (4, 2)))
        (curve,) = ax.plot(*slider.curves[chosen], color=FIT, linewidth=2.0)
        curve.set_gid("slider-curve")
        ax.set(xlim=(0, 1), ylim=(0, 1.02))
        if of_classes:
            label(ax, "confidence", "share that is right")
        else:
            label(ax, "level of the interval", "share of rows inside")
        second.draw_without_rendering()
        paths = [
            "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in _places(second, ax, *at))
            for at in slider.curves
        ]
        text = "Calibration curve under the temperature of the slider"
        calibration = _inline(second, "slider-calibration", text)
    data = {
        "chosen": chosen,
        "words": slider.words,
        "dots": [[round(x, 1), round(y, 1)] for x, y in dots],
        "paths": paths,
    }
    return nlpd, calibration, data


def _figure(size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, dpi=72, layout="constrained")  # a point is a unit of the SVG
    FigureCanvasSVG(figure)
    return figure


def _places(figure: Figure, ax: Any, x: Array, y: Array) -> Array:
    """Points of the data in the SVG's coordinates, which count from the top."""
    places = ax.transData.transform(np.column_stack([x, y]))
    return np.column_stack([places[:, 0], figure.bbox.height - places[:, 1]])


def _page_style(style: str) -> str:
    """A style with the page's colours and the page's font."""
    for colour, variable in _COLOURS.items():
        style = style.replace(colour, f"var({variable})")
    style = re.sub(r"font: ?([\d.]+)px [^;\"]*", r"font-size: \1px", style)
    return re.sub(r"font-family: [^;\"]*;? ?", "", style)


def _inline(figure: Figure, name: str, text: str) -> str:
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's font may well have it
        figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    width, height = figure.get_size_inches() * 72
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r"<style type=\"text/css\">.*?</style>", "", body, flags=re.S)
    # ids of groups repeat from picture to picture; only those of the slider are asked for
    body = re.sub(r"<g id=\"(?!slider-)[^\"]*\"", "<g", body)
    body = re.sub(r"style=\"[^\"]*\"", lambda found: _page_style(found.group()), body)
    what = html.escape(text)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{what}">{body}'
