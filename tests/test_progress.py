"""Progress bars, and Ctrl-C at the moment at which one appears."""

import contextlib
import gc
import io
import sys

from healgp.progress import progress


class Interrupted(io.StringIO):
    """A terminal whose user presses Ctrl-C as soon as something shows."""

    pressed = False

    def write(self, text):
        super().write(text)
        if text.strip() and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt


def test_an_interrupt_while_a_bar_appears_leaves_no_traceback(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    terminal = Interrupted()
    with contextlib.suppress(KeyboardInterrupt):
        progress(total=3, desc="work", file=terminal)
    gc.collect()
    assert terminal.pressed
    assert not ignored


def test_a_bar_shows_from_its_start_to_its_end():
    terminal = io.StringIO()
    with progress(total=3, desc="work", file=terminal) as bar:
        assert "work:   0%" in terminal.getvalue()
        bar.update(3)
    assert "work: 100%" in terminal.getvalue()
