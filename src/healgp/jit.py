"""How all jitted code is compiled: without the GIL, and kept on disk where there is room for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numba import njit
from numba.core import event

from healgp import room


def jit(*fastmath: str, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """A decorator. "contract" allows fused multiply-add; "reassoc" lets sums be reordered, so that
    they vectorise: the order is then still the same in every run."""
    options: dict[str, Any] = dict(
        nogil=True, error_model="numpy", fastmath=set(fastmath) or False, forceinline=inline
    )

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return _with_room(njit(cache=True, **options)(function))
        except RuntimeError:  # nowhere to write: it is compiled again in every process
            return _with_room(njit(**options)(function))

    return decorate


class _Room(event.Listener):
    """Asks for room before a function is compiled, and not again for those that it calls: in there
    Numba would take the error for one of types."""

    asked = False

    def on_start(self, event: Any) -> None:
        if not self.asked:
            self.asked = True
            room.ask(room.COMPILING)

    def on_end(self, event: Any) -> None:
        pass


def _with_room(dispatcher: Any) -> Any:
    """Asks for room before a function is read from disk or compiled."""
    compile_ = dispatcher.compile

    @wraps(compile_)
    def asking(signature: Any) -> Any:
        if room.left() == np.inf or getattr(_inside, "now", False):
            return compile_(signature)
        room.ask()
        _inside.now = True
        try:
            with event.install_listener("numba:compile", _Room()):
                return compile_(signature)
        finally:
            _inside.now = False

    dispatcher.compile = asking
    return dispatcher


_inside = threading.local()
