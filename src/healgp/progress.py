"""Progress bars."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def progress(*arguments: Any, **options: Any) -> tqdm:
    """A bar that appears once it is whole. tqdm's own appears while it is being made, and Ctrl-C at
    that moment leaves half a bar, which before tqdm 4.70 ended in a traceback."""
    bar = tqdm(*arguments, delay=1e-9, **options)
    bar.refresh()
    return bar
