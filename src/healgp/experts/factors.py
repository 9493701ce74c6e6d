"""The experts' Cholesky factors, as far as memory allows: all of them whole, else packed as
triangles; and of those that do not fit as triangles none, they are made again when asked.

Each factor has memory of its own, which jitted code finds by its address, so that one expert's can
be replaced by a larger one and all others stay where they are.
"""

from __future__ import annotations

import numpy as np

from healgp.experts import exact

Array = np.ndarray

_NOTHING = np.empty(0)


class Factors:
    """Memory for the factors of experts of some sizes within `room` numbers."""

    def __init__(self, sizes: Array, room: float) -> None:
        n = sizes.astype(np.int64)
        self.packed = bool((n * n).sum() > room)
        each = n * (n + 1) // 2 if self.packed else n * n
        fits = np.cumsum(each) <= room
        self._kept = [np.empty(a) if b else _NOTHING for a, b in zip(each, fits, strict=True)]
        self._find()

    def _find(self) -> None:
        #: Of each expert's factor in memory; 0 where it is not kept.
        self.addresses = np.array([a.ctypes.data if a.size else 0 for a in self._kept], np.int64)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self._kept)

    def replace(self, experts: Array, new: Factors, sizes: Array, room: float) -> None:
        """The factors of some experts, existing ones and those that come after them, by `new`;
        `sizes` are all experts' afterwards."""
        n = sizes.astype(np.int64)
        kept = self._kept + [_NOTHING] * (len(sizes) - len(self._kept))
        for j in experts:
            kept[j] = _NOTHING
        if not self.packed and (n * n).sum() > room:
            kept = [_packed(a) for a in kept]
            self.packed = True
        used = sum(a.size for a in kept)
        for j, factor in zip(experts, new._kept, strict=True):
            if self.packed and not new.packed:
                factor = _packed(factor)
            if used + factor.size <= room:
                kept[j] = factor
                used += factor.size
        self._kept = kept
        self._find()


def _packed(whole: Array) -> Array:
    m = int(np.sqrt(whole.size))
    out = np.empty(m * (m + 1) // 2)
    exact.pack(whole, m, out)
    return out
