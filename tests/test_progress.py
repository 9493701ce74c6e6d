"""Progress bars; Ctrl-C at the moment at which one appears, and a process that is killed then."""

import contextlib
import gc
import io
import os
import signal
import sys
import threading

import pytest

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


class Deadly(io.StringIO):
    """A terminal on which something shows as the process is killed."""

    def write(self, text):
        os.kill(os.getpid(), signal.SIGKILL)


def forked(work):
    """How a forked process ended that did the work."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_bars_of_forked_processes_wait_for_no_other_process():
    def show(terminal=None):
        progress(total=3, file=terminal or io.StringIO()).close()

    show()
    assert forked(lambda: show(Deadly())) == signal.SIGKILL
    here = threading.Thread(target=show, daemon=True)
    here.start()
    here.join(20)
    assert not here.is_alive()

    held, go = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text):
            held.set()
            go.wait(60)

    slow = threading.Thread(target=show, args=(Slow(),))
    slow.start()
    held.wait(60)

    def in_time():
        signal.alarm(20)  # which ends the process
        show()

    assert forked(in_time) == 0
    go.set()
    slow.join()
