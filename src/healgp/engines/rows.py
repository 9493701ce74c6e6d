"""Rows of Dask collections: looked at in samples and block by block, and never all in one place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from healgp.engines import turns
from healgp.engines.cluster import current_client, n_threads
from healgp.engines.shards import Shard

Array = np.ndarray


def is_collection(X: Any) -> bool:
    """Whether it is a Dask array or DataFrame."""
    return hasattr(X, "__dask_graph__")


def blocks_of(X: Any, what: str) -> Any:
    """A Dask array of X that is divided by rows only."""
    if hasattr(X, "to_dask_array"):
        X = X.to_dask_array()
    if X.ndim not in (1, 2):
        raise ValueError(f"{what} has {X.ndim} dimensions; it must have rows and columns.")
    if np.isnan(X.shape[0]):
        X = X.compute_chunk_sizes()
    return X.rechunk({1: -1}) if X.ndim == 2 else X


def training_rows(estimator: Any, X: Any, y: Any, numeric: bool) -> tuple[Rows, Rows]:
    """X [N, D] and y [N] of Dask collections, checked as scikit-learn checks arrays; `numeric` is
    whether y must be numbers."""
    names = getattr(X, "columns", None)
    X = blocks_of(X, "X")
    y = blocks_of(y if is_collection(y) else _divided(y, X), "y")
    if X.ndim != 2:
        raise ValueError("X has one dimension; it must have rows and columns.")
    if y.ndim == 2:
        if y.shape[1] != 1:
            raise ValueError(f"y has {y.shape[1]} columns; it must have one.")
        y = y[:, 0]
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} rows, but y has {len(y)}.")
    if 0 in X.shape:
        raise ValueError(f"X has shape {X.shape}: there is nothing to learn from.")
    X = _numbers(X, "X")
    y = _numbers(y, "y") if numeric else y
    X, y = X.rechunk({0: _filled(X.chunks[0])}), y.rechunk((_filled(X.chunks[0]),))
    X, y = (Rows(array.persist()) for array in (X, y))
    for what, rows in (("X", X), ("y", y)):
        if (what == "X" or numeric) and not all(rows.each(_finite)):
            raise ValueError(
                f"{what} contains NaN or infinity, or a value too large for float64. Leave those "
                "rows out, or impute them, before you fit."
            )
    estimator.n_features_in_ = X.shape[1]
    if names is not None and all(isinstance(name, str) for name in names):
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    return X, y


def _divided(y: Any, X: Any) -> Any:
    """An array or a series as a collection, in the blocks of X where it is as long."""
    import dask.array as da

    y = np.asarray(y)
    return da.from_array(y, chunks={0: X.chunks[0]} if y.shape[:1] == X.shape[:1] else -1)


def _numbers(array: Any, what: str) -> Any:
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{what} is of type {array.dtype}; it must hold numbers. Turn text into numbers first, "
            "for instance with dask.dataframe.get_dummies."
        )
    return array.astype(np.float64)


def _filled(chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Blocks without those that have no rows."""
    return tuple(n for n in chunks if n)


def _finite(block: Array) -> bool:
    return bool(np.isfinite(block).all())


def predicted(
    model: Any, X: Any, function: Callable[[Any, Array], Array], width: int, dtype: Any = float
) -> Any:
    """A lazy Dask array [n, width] of function(model, block) over the blocks of X. Each is worked
    out on a worker, which asks the shards."""
    import dask.array as da

    names = getattr(X, "columns", None)
    X = blocks_of(X, "X")
    if X.ndim != 2 or X.shape[1] != model.n_features_in_:
        found = X.shape[1] if X.ndim == 2 else 1
        raise ValueError(
            f"X has {found} features, but {type(model).__name__} is expecting "
            f"{model.n_features_in_} features as input."
        )
    known = getattr(model, "feature_names_in_", None)
    if names is not None and known is not None and list(names) != list(known):
        raise ValueError(
            "The columns of X must be those of the fit, in the same order: "
            f"{', '.join(map(str, known))}."
        )
    traveller = _Traveller(model)
    graph = turns.in_turns(
        X, partial(_on_worker, function=function, nothing=np.empty((0, width), dtype)), traveller,
        # a block that asks no shards keeps its thread, and there are only so many
        max(n_threads(current_client()), 2) if traveller.asks_shards else None,
    )  # fmt: skip
    return da.Array(*graph, chunks=(X.chunks[0], (width,)), dtype=dtype)


#: So that one of a worker's threads prepares a committee, and the others wait for it.
_PREPARING = threading.Lock()


class _Traveller:
    """A fitted model on its way to a worker, without what makes it a Dask task's own."""

    def __init__(self, model: Any) -> None:
        self._kind, committee = type(model), model._committee
        self.asks_shards = hasattr(committee, "passport")
        self._state = dict(model.__dict__)
        if self.asks_shards:
            self._state |= {"_committee": committee.passport(), "_grbcm": None}

    def model(self) -> Any:
        model = object.__new__(self._kind)
        model.__dict__.update(self._state)
        # names were checked when the prediction was asked for
        model.__dict__.pop("feature_names_in_", None)
        if self.asks_shards:
            model._committee = model._committee.committee()
        else:
            with _PREPARING, model._committee.engine(model.n_jobs) as engine:
                model._committee.prepare_once(engine)
        return model


def _on_worker(
    traveller: _Traveller, X: Array, function: Callable[[Any, Array], Array], nothing: Array
) -> Array:
    from distributed import worker_client

    if not len(X):  # a partition of a table may have no rows
        return nothing
    # a task that waits for the shards' own makes room for them
    with worker_client() if traveller.asks_shards else nullcontext():
        return function(traveller.model(), np.asarray(X, dtype=np.float64))


class Rows:
    """A Dask array as far as the library needs an array: its length, some of its rows, shifted and
    divided, and functions of its blocks."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._ends = np.concatenate([[0], np.cumsum(array.chunks[0])]).astype(np.intp)
        self.shape, self.ndim = array.shape, array.ndim

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __sub__(self, value: Any) -> Rows:
        return Rows(self._array - value)

    def __truediv__(self, value: Any) -> Rows:
        return Rows(self._array / value)

    def map(self, function: Callable[[Array], Array], dtype: Any) -> Rows:
        """A function of each row, as one of blocks."""
        return Rows(self._array.map_blocks(function, dtype=dtype))

    def __getitem__(self, rows: Array) -> Array:
        """Some rows, here."""
        block = np.searchsorted(self._ends, rows, side="right") - 1
        used = np.unique(block)
        places = [np.flatnonzero(block == b) for b in used]
        found = self._computed(
            lambda block, local: block[local],
            used, [(rows[here] - self._ends[b],) for b, here in zip(used, places, strict=True)],
        )  # fmt: skip
        out = np.empty((len(rows), *self.shape[1:]), dtype=self._array.dtype)
        for here, values in zip(places, found, strict=True):
            out[here] = values
        return out

    def each(self, function: Callable[..., Any], *arguments: Array) -> list[Any]:
        """function(block, …) of every block, with its part of arrays that have one entry a row."""
        ends = list(zip(self._ends[:-1], self._ends[1:], strict=True))
        parts = [tuple(argument[a:b] for argument in arguments) for a, b in ends]
        return self._computed(function, range(len(ends)), parts)

    def _computed(self, function: Callable[..., Any], blocks: Any, arguments: list[Any]) -> Any:
        from dask import delayed

        task, parts = delayed(function, pure=False), self._parts()
        tasks = [task(parts[b], *given) for b, given in zip(blocks, arguments, strict=True)]
        client = current_client()
        return client.gather(client.compute(tasks))

    def _parts(self) -> Array:
        return self._array.to_delayed().ravel()

    def shards(
        self, y: Rows, groups: list[Array], bounds: Array,
        build: Callable[[Array, Array, list[Array]], Shard], client: Any,
    ) -> list[Callable[[], Any]]:  # fmt: skip
        """For each run of groups, what brings build(X, y, groups) to a worker, from the rows of
        those groups. Dask knows how each was made, so it can make it again."""
        from dask import delayed

        labels = np.empty(len(self), dtype=np.int32)
        labels[np.concatenate(groups)] = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        split, pick, assemble = (delayed(f, pure=False) for f in (_split, _pick, _assemble))
        ends = zip(self._ends[:-1], self._ends[1:], strict=True)
        pieces = [
            split(X_part, y_part, labels[a:b], bounds)
            for X_part, y_part, (a, b) in zip(self._parts(), y._parts(), ends, strict=True)
        ]
        tasks = [
            assemble([pick(piece, s) for piece in pieces], build) for s in range(len(bounds) - 1)
        ]
        # all at once, so that they share the pieces; again, one by one
        first = dict(enumerate(client.compute(tasks)))

        def bring(s: int) -> Any:
            return first.pop(s, None) or client.compute(tasks[s])

        return [partial(bring, s) for s in range(len(tasks))]


def _split(X: Array, y: Array, labels: Array, bounds: Array) -> list[tuple[Array, Array, Array]]:
    """The rows of a block by shard."""
    order = np.argsort(labels, kind="stable")
    cuts = np.searchsorted(labels[order], bounds[1:-1])
    return [(X[part], y[part], labels[part]) for part in np.split(order, cuts)]


def _pick(pieces: list[Any], s: int) -> Any:
    return pieces[s]


def _assemble(
    pieces: list[tuple[Array, Array, Array]], build: Callable[[Array, Array, list[Array]], Shard]
) -> Shard:
    X, y, labels = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return build(X, y, groups)
