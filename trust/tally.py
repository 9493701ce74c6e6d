"""What a part of the trial has tried, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@dataclass
class Tally:
    """Counts of one part; `notes` has a line for everything that went wrong."""

    part: str
    inputs: int = 0
    faults: int = 0
    lost: int = 0
    wrong: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def right(self, what: str) -> Iterator[None]:
        """One input: an exception that leaves the block, a failed assertion too, is a wrong
        answer."""
        self.inputs += 1
        try:
            yield
        except Exception as error:
            self.wrong += 1
            self.notes.append(f"{what}: {type(error).__name__}: {error}"[:200])

    @contextmanager
    def kept(self, what: str, faults: int = 1) -> Iterator[None]:
        """What must still be there after a fault, or after several: an exception that leaves the
        block is a loss."""
        self.faults += faults
        try:
            yield
        except Exception as error:
            self.lost += 1
            self.notes.append(f"{what}: {type(error).__name__}: {error}"[:200])


def main(run: Callable[[Tally, float], None]) -> None:
    """Runs a part on its own and prints its tally as JSON; the argument is the effort, 1 for
    `make trust`."""
    effort = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    tally = Tally(run.__module__)
    start = time.monotonic()
    run(tally, effort)
    tally.seconds = time.monotonic() - start
    print(json.dumps(asdict(tally)))


def python(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """A Python of its own in the same environment, with the harness and the library on its path."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path} | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, text=True, **options
    )


def ended(*arguments: Any, timeout: float = 120.0, **options: Any) -> tuple[int, str, str]:
    """Exit code and output of a Python of its own; an AssertionError if it does not end."""
    child = python(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise AssertionError(f"it did not end within {timeout:g} s") from None
    return child.returncode, out, err
