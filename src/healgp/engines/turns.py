"""Tasks of blocks that wait for other tasks, some at a time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def in_turns(
    X: Any, function: Callable[[Any, Any], Any], given: Any, at_once: int | None
) -> tuple[Any, str]:
    """A graph of function(given, block) over the blocks [n, D] of a Dask array, and its name. At
    most `at_once` of them are under way at a time; None leaves that to Dask.

    A task that waits for others must leave its thread to them: if all threads belonged to such
    tasks, nobody would ever answer. Dask then starts the next, until it has started all of them,
    with all of X. So a block comes after the one that is `at_once` before it, and brings its rows
    itself, which Dask would bring long before their turn. A part of the result then needs some
    blocks before it too, one in `at_once`: Dask wants to know an order in advance. Who wants a part
    takes it from X. In return every task is pure, and what is lost can be made again.
    """
    from dask.highlevelgraph import HighLevelGraph

    name, model = (f"{what}-{uuid.uuid4().hex}" for what in ("predicted", "model"))
    keys = [(X.name, i, 0) for i in range(len(X.chunks[0]))]
    graph = dict(X.__dask_optimize__(X.__dask_graph__(), keys))
    takes_turns = at_once is not None and len(keys) > at_once
    blocks = _blocks(graph, keys) if takes_turns else [_Block(key, {}, [key]) for key in keys]
    layer: dict[Any, Any] = {model: given}
    for i, block in enumerate(blocks):
        before = (name, i - at_once, 0) if at_once is not None and i >= at_once else None
        layer[name, i, 0] = (_run, function, model, block, block.others, before)
        for task in block.tasks:
            del graph[task]
    # Dask leaves futures out of what it optimizes, and forgets the value of one that nobody holds
    held = {key: value for key, value in X.__dask_graph__().items() if _is_future(value)}
    return HighLevelGraph.from_collections(name, held | graph | layer, dependencies=()), name


@dataclass
class _Block:
    """The tasks of a block, hidden from Dask, and the keys of others that they need."""

    key: Any
    tasks: dict[Any, Any]
    others: list[Any]

    def rows(self, others: list[Any]) -> Any:
        import dask

        return dask.get(self.tasks | dict(zip(self.others, others, strict=True)), self.key)


def _run(
    function: Callable[[Any, Any], Any], given: Any, block: _Block, others: list[Any], before: Any
) -> Any:
    return function(given, block.rows(others))


def _blocks(graph: Mapping[Any, Any], keys: list[Any]) -> list[_Block]:
    """The blocks with the tasks that no other block needs."""
    from dask.core import get_dependencies

    needs = {
        key: get_dependencies(graph, key) for key, task in graph.items() if not _is_future(task)
    }
    owner: dict[Any, Any] = {}  # None: several
    for key in keys:
        left = [key]
        while left:
            task = left.pop()
            new = key if owner.get(task, key) == key else None
            if task not in owner or owner[task] != new:
                owner[task] = new
                left.extend(needs.get(task, ()))
    own: dict[Any, dict[Any, Any]] = {key: {} for key in keys}
    for task, key in owner.items():
        if key is not None and task in needs:
            own[key][task] = graph[task]
    needed = {key: {key}.union(*(needs[task] for task in tasks)) for key, tasks in own.items()}
    return [_Block(key, tasks, list(needed[key] - tasks.keys())) for key, tasks in own.items()]


def _is_future(value: Any) -> bool:
    from distributed import Future

    return isinstance(value, Future)
