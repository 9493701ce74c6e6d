"""Results as they come: one small file for every fit, data set and split, so that a run that was
interrupted goes on where it was."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sklearn.utils.parallel import Parallel, delayed

from healgp.engines.local import effective_n_jobs, memory
from healgp.experiments import protocol
from healgp.progress import progress

#: Fits from which on there are as many at a time as cores, each with one: that leaves no core idle
#: where a fit has too little for two threads to share, but starting processes takes seconds.
_MANY = 8

#: Bytes that a fit beside others may need: the full GP on power has matrices of 8,612 rows.
_BYTES = 4e9


@dataclass(frozen=True)
class Cell:
    fit: str
    data: str
    split: int

    def path(self, folder: Path) -> Path:
        return folder / "cells" / self.fit / f"{self.data}-{self.split}.json"

    def read(self, folder: Path) -> dict[str, list[float]] | None:
        """Scores of the settings, if they are there and were made with the same parameters."""
        try:
            kept = json.loads(self.path(folder).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if kept.get("parameters") != self._parameters():
            return None
        wanted = protocol.settings_of(self.fit, self.data)
        scores: dict[str, list[float]] = kept["scores"]
        return scores if all(name in scores for name in wanted) else None

    def run(self, folder: Path) -> None:
        start = time.perf_counter()
        scores = protocol.run(self.fit, self.data, self.split)
        kept = dict(
            asdict(self),
            seconds=round(time.perf_counter() - start, 2),
            parameters=self._parameters(),
            scores=scores,
        )
        write(self.path(folder), json.dumps(kept, indent=1))

    def when(self, folder: Path) -> tuple[float, float]:
        """Beginning and end of its fit, in seconds since 1970."""
        path = self.path(folder)
        end = path.stat().st_mtime
        return end - json.loads(path.read_text(encoding="utf-8"))["seconds"], end

    def _parameters(self) -> Any:
        settings = protocol.settings_of(self.fit, self.data)
        parameters = dict(fit=protocol.parameters_of(self.fit, self.data), settings=settings)
        return json.loads(json.dumps(parameters))  # as they come back from a file


def write(path: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def fill(cells: Iterable[Cell], folder: Path, force: bool = False) -> None:
    """Runs the cells that are missing (all of them with `force`), with a bar of what was done and
    what remains."""
    missing = [cell for cell in dict.fromkeys(cells) if force or cell.read(folder) is None]
    if not missing:
        return
    # The long ones first, so that all processes end at about the same time.
    missing.sort(key=lambda cell: protocol.effort(cell.fit, cell.data), reverse=True)
    beside = [cell for cell in missing if cell.data not in protocol.LARGE]
    if len(beside) < _MANY:
        beside = []
    processes = min(effective_n_jobs(None), max(1, int(memory() / _BYTES)))
    together = Parallel(n_jobs=processes, return_as="generator_unordered")
    with progress(total=len(missing), unit="fit", dynamic_ncols=True) as bar:
        done = together(delayed(_run)(cell, folder) for cell in beside)
        alone = (_run(cell, folder) for cell in missing if cell not in beside)
        for cell in chain(done, alone):
            bar.set_description(f"{cell.data}, split {cell.split}: {cell.fit}", refresh=False)
            bar.update()


def _run(cell: Cell, folder: Path) -> Cell:
    cell.run(folder)
    return cell
