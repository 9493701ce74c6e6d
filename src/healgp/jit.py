"""How all jitted code is compiled: without the GIL, and kept on disk where there is room for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def jit(*fastmath: str, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """A decorator. "contract" allows fused multiply-add; "reassoc" lets sums be reordered, so that
    they vectorise: the order is then still the same in every run."""
    options: dict[str, Any] = dict(
        nogil=True, error_model="numpy", fastmath=set(fastmath) or False, forceinline=inline
    )

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # nowhere to write: it is compiled again in every process
            return njit(**options)(function)

    return decorate
