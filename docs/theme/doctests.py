"""For the reference: examples in docstrings are shown as code, with or without a heading."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """The text with every run of lines from a >>> to the next empty line as a block of code."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>>"):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


class Doctests(griffe.Extension):
    """Griffe calls it for every object that it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and "\nExamples\n---" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
