"""How experts are asked, whatever they are and wherever their rows lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import numpy as np

from healgp.engines.local import LocalEngine

Array = np.ndarray
Result = TypeVar("Result")


class Experts:
    """What committees share. Expert j owns the rows offsets[j]:offsets[j + 1] of them all."""

    offsets: Array

    #: Whether experts are exact, and not sparse.
    is_exact = True

    #: How many results of `together` to wait for at a time: here they are there at once.
    ahead = 0

    @property
    def n_experts(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    def places(self, rows: Array) -> Array:
        """Where rows are that are counted expert by expert: some experts have room between."""
        return rows

    @property
    def sizes(self) -> Array:
        return np.diff(self.offsets)

    @property
    def work(self) -> Array:
        """One size for each piece that a thread can take, for the engine."""
        return self.sizes

    def engine(self, n_jobs: int | None) -> LocalEngine:
        """The threads that work for these experts."""
        return LocalEngine(n_jobs, self.work)

    def at(self, part: Array | slice) -> Self:
        """The experts that are asked about some of the new rows: the same for all of them."""
        return self

    @property
    def homes(self) -> Array:
        """A number for each expert; those with the same one can be asked together: a few
        neighbours, so that a call is worth its bookkeeping and there are many for the threads."""
        return np.arange(self.n_experts) // min(max(self.n_experts // 64, 1), 16)

    def blocks(self) -> list[tuple[int, int]]:
        """Blocks of experts: enough of them for every thread, large enough for cheap bookkeeping.
        They do not depend on the number of threads, nor does the order in which they are added
        up."""
        size = min(max(self.n_experts // 16, 1), 32)
        starts = range(0, self.n_experts, size)
        return [(first, min(first + size, self.n_experts)) for first in starts]

    def moments(
        self, new: Array, first: int, last: int, engine: LocalEngine
    ) -> tuple[Array, Array]:
        """Latent means and variances [last − first, n] of some experts at the rows `new` [n, D]."""
        raise NotImplementedError

    def moments_of(
        self, new: Array, asked: list[tuple[int, Array]], engine: LocalEngine
    ) -> list[tuple[Array, Array]]:
        """The same of some experts of one home, each at its own rows of `new`."""
        found = (self.moments(new[rows], j, j + 1, engine) for j, rows in asked)
        return [(mean[0], var[0]) for mean, var in found]

    def together(
        self, experts: Array, function: Callable[[Any, Array, LocalEngine], Result],
        engine: LocalEngine,
    ) -> Callable[[], Result]:  # fmt: skip
        """What gives function(committee, numbers, engine), the committee being one that has some of
        the experts and `numbers` where it has them."""
        result = function(self, experts, engine)
        return lambda: result
