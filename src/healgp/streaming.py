"""Rows that come after a fit: which experts take them, and what changes because of them.

A row goes to the expert whose centre is nearest in inputs divided by the lengthscales (experts of a
random partition: to one drawn at random). Rows that are far from every centre found an expert of
their own, and an expert of more than twice the rows that experts are to have is divided into equal
parts. θ stays. Only these experts' factors change: rows that are appended extend the factor, in
time that grows with the square of the expert's rows instead of its cube.

Experts have room for more rows than they hold, so that a row is copied a bounded number of times,
however many batches come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from healgp import partition
from healgp.engines.local import LocalEngine
from healgp.experts.committee import Committee, ExpertError

Array = np.ndarray

#: A row is far beyond this multiple of the largest distance that a row had from the centre of its
#: expert before it came, or of one lengthscale if that is more.
_FAR = 2.0

#: Numbers of a block of distances.
_DISTANCES = 2**19


class Centres:
    """The mean of the rows of each expert, in inputs divided by the lengthscales."""

    def __init__(self, committee: Committee) -> None:
        self._lengthscales = committee.theta.lengthscales
        self._centres = committee.centres() / self._lengthscales
        self._middle = self._centres.mean(axis=0)  # distances lose fewer digits near zero
        self._centres -= self._middle

    def update(self, committee: Committee, experts: Array) -> None:
        """After some experts have changed, or have come after the others."""
        more = np.empty((committee.n_experts - len(self._centres), len(self._middle)))
        centres = np.concatenate([self._centres, more])
        for j in experts:
            mean = committee.inputs(committee.columns(j)).mean(axis=0)
            centres[j] = mean / self._lengthscales - self._middle
        self._centres = centres

    def closest(self, new: Array) -> tuple[Array, Array]:
        """The expert with the nearest centre, and the distance from it, for the rows `new`."""
        Z = new / self._lengthscales - self._middle
        experts, distances = np.empty(len(Z), dtype=np.intp), np.empty(len(Z))
        squares = (self._centres**2).sum(axis=1)
        rows = max(_DISTANCES // len(self._centres), 1)
        for start in range(0, len(Z), rows):
            part = Z[start : start + rows]
            best = (squares - 2.0 * (part @ self._centres.T)).argmin(axis=1)
            experts[start : start + rows] = best
            apart = np.linalg.norm(part - self._centres[best], axis=1)
            distances[start : start + rows] = apart
        return experts, distances


@dataclass
class Arrivals:
    """What a model knows of the rows that come to it."""

    points: int | None  # rows that an expert is to have; None is no bound, and no new experts
    at_random: bool
    far: float
    seed: int
    labels: Array  # of all rows in the order in which they came, with room for more
    n_rows: int
    checked_at: int  # rows that there were when routes were last checked

    @classmethod
    def of(
        cls, committee: Committee, labels: Array, points: int | None, at_random: bool, seed: int
    ) -> Arrivals:
        reach = 1.0
        for j in range(committee.n_experts):
            Z = committee.inputs(committee.columns(j)) / committee.theta.lengthscales
            reach = max(reach, float(np.linalg.norm(Z - Z.mean(axis=0), axis=1).max()))
        return cls(points, at_random, _FAR * reach, seed, labels, len(labels), len(labels))

    def rng(self) -> np.random.Generator:
        """The same for the same rows before, also after a batch that was refused."""
        return np.random.default_rng([self.seed, self.n_rows])


@dataclass(frozen=True)
class Part:
    """Rows of an expert after a batch: those at the places `old` of what was expert `source`, and
    those at the places `new` of the batch."""

    expert: int
    source: int
    old: Array
    new: Array
    whole: bool  # all rows of the source


@dataclass(frozen=True)
class Change:
    """What a batch did."""

    parts: list[Part]
    before: Array  # offsets
    after: Array

    def follow(self, rows: Array) -> Array:
        """Where the committee's rows are that were at `rows` before."""
        owner = np.searchsorted(self.before, rows, side="right") - 1
        place = rows - self.before[owner]
        found = self.after[owner] + place
        for part in self.parts:
            if not part.whole:
                here = np.flatnonzero((owner == part.source) & np.isin(place, part.old))
                inside = np.searchsorted(part.old, place[here])
                found[here] = self.after[part.expert] + inside
        return found


def learn(
    committee: Committee, centres: Centres, arrivals: Arrivals, new: Array, targets: Array,
    engine: LocalEngine,
) -> Change:  # fmt: skip
    """Gives the rows `new` [n, D] with their targets to the experts, which must be prepared.

    If it fails, committee, centres and arrivals are as they were.
    """
    parts = _divide(committee, centres, arrivals, new)
    touched = _prepared(committee, parts, new, targets, engine)
    experts, before = np.array([part.expert for part in parts]), committee.offsets
    width = None if arrivals.points is None else 2 * arrivals.points
    committee.replace(experts, touched, width)
    _label(arrivals, parts, len(new))
    centres.update(committee, experts)
    return Change(parts, before, committee.offsets)


def _divide(committee: Committee, centres: Centres, arrivals: Arrivals, new: Array) -> list[Part]:
    J, sizes, rng = committee.n_experts, committee.sizes, arrivals.rng()
    if arrivals.at_random:
        owner = rng.integers(J, size=len(new))
    else:
        owner, distance = centres.closest(new)
        if arrivals.points is not None:
            owner[distance > arrivals.far] = J  # together they found one
    parts, n_experts = [], J + int((owner == J).any())
    divide = partition.random if arrivals.at_random else partition.balanced
    for rows in partition.groups(owner):
        j = int(owner[rows[0]])
        old = np.arange(sizes[j] if j < J else 0)
        total = len(old) + len(rows)
        if arrivals.points is None or total <= 2 * arrivals.points:
            parts.append(Part(j, j, old, rows, True))
            continue
        Z = new[rows]
        if j < J:
            Z = np.concatenate([committee.inputs(committee.columns(j)), Z])
        labels = divide(Z / committee.theta.lengthscales, total // arrivals.points, rng)
        for k, group in enumerate(partition.groups(labels)):
            expert = j if k == 0 else n_experts + k - 1
            mine, theirs = group[group < len(old)], group[group >= len(old)] - len(old)
            parts.append(Part(expert, j, mine, rows[theirs], False))
        n_experts += k
    return parts


def _prepared(
    committee: Committee, parts: list[Part], new: Array, targets: Array, engine: LocalEngine
) -> Committee:
    """The experts that a batch changes, as they are after it."""
    J, before = committee.n_experts, committee.factors
    inputs, outputs = [], []
    known, sources = np.zeros((2, len(parts)), dtype=np.int64)
    for i, part in enumerate(parts):
        if part.source < J:
            columns = committee.offsets[part.source] + part.old
            inputs.append(committee.XT[:, columns])
            outputs.append(committee.y[columns])
            if part.whole:
                known[i], sources[i] = len(part.old), before.addresses[part.source]
        inputs.append(new[part.new].T)
        outputs.append(targets[part.new])
    sizes = [len(part.old) + len(part.new) for part in parts]
    touched = Committee(
        np.ascontiguousarray(np.hstack(inputs)), np.concatenate(outputs),
        np.append(0, np.cumsum(sizes)), committee.kernel, committee.theta,
        factor_bytes=committee.factor_bytes,
    )  # fmt: skip
    try:
        touched.prepare(engine, known, sources, before.packed)
    except ExpertError as error:
        raise ExpertError(f"The new rows were not taken. {error}") from None
    return touched


def _label(arrivals: Arrivals, parts: list[Part], n: int) -> None:
    labels, N = arrivals.labels, arrivals.n_rows
    divided = {part.source for part in parts if not part.whole}
    if N + n > len(labels) or divided:  # labels that were handed out stay as they are
        labels = np.empty(max(len(labels), 2 * (N + n)), dtype=np.intp)
        labels[:N] = arrivals.labels[:N]
    rows_of = {j: np.flatnonzero(arrivals.labels[:N] == j) for j in divided}
    for part in parts:
        if not part.whole:
            labels[rows_of[part.source][part.old]] = part.expert
        labels[N + part.new] = part.expert
    arrivals.labels, arrivals.n_rows = labels, N + n
