"""For the reference: docstrings as Markdown and Griffe's parser want them."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A parameter with choices. Griffe would take the first choice for the default.
CHOICES = re.compile(r"^([\w, ]+ : )\{([^}]*)\}", flags=re.M)

#: The star of a prior's moment or of a new row, which Markdown would take for emphasis.
STAR = re.compile(r"(?<=[σmxfk])\*")


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


class Readable(griffe.Extension):
    """Griffe calls it for every object that it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = CHOICES.sub(r"\1one of \2", obj.docstring.value)
            text = STAR.sub(r"\\*", text)
            obj.docstring.value = text if "\nExamples\n---" in text else fenced(text)
