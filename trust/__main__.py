"""Runs every part in a process of its own, ends with a table of what was tried, and writes it into
docs/trust.md.

`python -m trust [EFFORT] [PART …]`: an effort of 1 is what `make trust` runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

from trust.tally import ROOT, Tally, python

PARTS = {
    "inputs": "bad and extreme input",
    "properties": "properties over random problems",
    "numerics": "numbers at their limits, against mpmath",
    "fuzz": "fuzzed models and tables",
    "faults": "processes killed at random moments",
    "limits": "a full disk, too little memory, no network",
    "together": "threads and processes at once",
    "soak": "fits, predictions and batches in one process",
}

#: Seconds that a part may take at effort 1.
TIMEOUT = 900.0

PAGE = ROOT / "docs" / "trust.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"


def run(part: str, effort: float) -> Tally:
    """The tally of a part; one that crashes or does not end is a result lost."""
    child = python("-W", "ignore", "-m", f"trust.{part}", effort, stdout=subprocess.PIPE,
                   stderr=subprocess.DEVNULL, cwd=ROOT)  # fmt: skip
    try:
        out, _ = child.communicate(timeout=TIMEOUT * max(effort, 1.0))
        tally = Tally(**json.loads(out.splitlines()[-1]))
        tally.part = part
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        child.kill()
        child.communicate()
        why = f"{type(error).__name__}, code {child.returncode}"
        tally = Tally(part, lost=1, notes=[f"the part itself did not end well: {why}"])
    return tally


def table(tallies: list[Tally]) -> str:
    lines = ["| part | inputs tried | faults injected | results lost | wrong answers | seconds |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    total = Tally("all together")
    for tally in tallies:
        for name in ("inputs", "faults", "lost", "wrong", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    for tally in [*tallies, total]:
        words = PARTS.get(tally.part, tally.part)
        lines.append(
            f"| {words} | {tally.inputs:,} | {tally.faults:,} | {tally.lost} | {tally.wrong} | "
            f"{tally.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def write(tallies: list[Tally], effort: float, page: Path) -> None:
    """Puts the table, and what went wrong, between the two marks of the page."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    notes = "".join(f"- {tally.part}: {note}\n" for tally in tallies for note in tally.notes)
    found = f"Of {time.strftime('%d %B %Y')}, with an effort of {effort:g}:\n\n{table(tallies)}"
    found += f"\nWhat it had to say:\n\n{notes}" if notes else ""
    page.write_text(before + BEGIN + "\n" + found + "\n" + END + after, encoding="utf-8")


def main() -> None:
    effort = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    chosen = sys.argv[2:] or list(PARTS)
    tallies = []
    with tqdm(chosen, unit="part") as bar:
        for part in bar:
            bar.set_description(part)
            tallies.append(run(part, effort))
    print(table(tallies))
    for tally in tallies:
        for note in tally.notes:
            print(f"{tally.part}: {note}")
    if chosen == list(PARTS):
        write(tallies, effort, PAGE)
    sys.exit(any(tally.lost or tally.wrong for tally in tallies))


if __name__ == "__main__":
    main()
