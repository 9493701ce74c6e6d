"""Progress bars."""

from __future__ import annotations

import os
import threading
from typing import Any

from tqdm import tqdm


class _Bar(tqdm):
    """A bar with a lock of its own in every process. tqdm's is shared with forked processes: one
    that is killed while it writes would keep all the others waiting for ever."""

    monitor_interval = 0  # a thread for bars that skip updates, as these do not

    @classmethod
    def unlock(cls) -> None:
        cls.set_lock(threading.RLock())

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        """Draws it; Ctrl-C at that moment gives the lock back, as with tqdm's own it does not."""
        if not self.disable:
            with self._lock:
                self.display()


_Bar.unlock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Bar.unlock)  # another thread may have had it


def progress(*arguments: Any, **options: Any) -> tqdm:
    """A bar that appears once it is whole. tqdm's own appears while it is being made, and Ctrl-C at
    that moment leaves half a bar, which before tqdm 4.70 ended in a traceback."""
    bar = _Bar(*arguments, delay=1e-9, miniters=1, **options)
    bar.refresh()
    return bar
