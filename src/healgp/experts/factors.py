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


def plan(sizes: Array, room: float) -> tuple[bool, Array]:
    """Whether factors of experts of some sizes must be packed to be within `room` numbers, and how
    many numbers are kept of each: all or none."""
    n = sizes.astype(np.int64)
    packed = bool((n * n).sum() > room)
    each = n * (n + 1) // 2 if packed else n * n
    return packed, np.where(np.cumsum(each) <= room, each, 0)


class Factors:
    """Memory for the factors of experts of some sizes within `room` numbers."""

    def __init__(self, sizes: Array, room: float) -> None:
        self.packed, each = plan(sizes, room)
        self._kept = [np.empty(size) if size else _NOTHING for size in each]
        self._used = int(each.sum())
        #: Of each expert's factor in memory; 0 where it is not kept.
        self.addresses = np.array([_address(a) for a in self._kept], dtype=np.int64)

    @property
    def nbytes(self) -> int:
        return 8 * self._used

    def replace(self, experts: Array, new: Factors, sizes: Array, room: float) -> None:
        """The factors of some experts, existing ones and those that come after them, by `new`;
        `sizes` are all experts' afterwards."""
        n, more = sizes.astype(np.int64), len(sizes) - len(self._kept)
        self._kept += [_NOTHING] * more
        self.addresses = np.append(self.addresses, np.zeros(more, dtype=np.int64))
        for j in experts:
            self._keep(j, _NOTHING)
        if not self.packed and (n * n).sum() > room:
            self.packed = True
            for j, factor in enumerate(self._kept):
                self._keep(j, _packed(factor))
        for j, factor in zip(experts, new._kept, strict=True):
            if self.packed and not new.packed:
                factor = _packed(factor)
            if self._used + factor.size <= room:
                self._keep(j, factor)

    def _keep(self, j: int, factor: Array) -> None:
        self._used += factor.size - self._kept[j].size
        self._kept[j], self.addresses[j] = factor, _address(factor)


def _address(factor: Array) -> int:
    return factor.ctypes.data if factor.size else 0


def _packed(whole: Array) -> Array:
    m = int(np.sqrt(whole.size))
    out = np.empty(m * (m + 1) // 2)
    exact.pack(whole, m, out)
    return out
