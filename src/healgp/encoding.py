"""Objects as plain JSON and arrays, and back: numbers, text, lists, arrays, and the dataclasses
that the caller lists. Nothing else can be written, and nothing else comes out of what is read.

What JSON has no word for is an object with the key "$", which says what it is.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from healgp.storage import DTYPES

Array = np.ndarray

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

#: Bytes that texts of one array may take.
_LARGEST_TEXTS = 2**30

#: Fields of dataclasses that are made again, and so not written.
MadeAgain = Mapping[type, Collection[str]]


class Encoder:
    """Turns objects into JSON; `arrays` gathers what goes beside it, each array once."""

    def __init__(self, classes: Collection[type], made_again: MadeAgain) -> None:
        self.arrays: dict[str, Array] = {}
        self._classes, self._made_again = classes, made_again
        self._known: dict[int, tuple[Any, Any]] = {}  # by id, which holds while the array lives

    def encode(self, value: Any, where: str) -> Any:
        """JSON for a value; `where` names its arrays and, if it cannot be saved, the value."""
        if value is None or isinstance(value, bool | str):
            return str(value) if isinstance(value, str) else value
        if isinstance(value, np.ndarray):
            if id(value) not in self._known:
                self._known[id(value)] = value, self._array(value, where)
            return self._known[id(value)][1]
        if isinstance(value, np.generic):
            return self.encode(value.item(), where)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            value = float(value)
            return value if math.isfinite(value) else {"$": "number", "value": repr(value)}
        if isinstance(value, list):
            return [self.encode(v, f"{where}.{i}") for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return {"$": "tuple", "items": self.encode(list(value), where)}
        if isinstance(value, dict):
            if all(isinstance(key, str) and key != "$" for key in value):
                return {key: self.encode(v, f"{where}.{key}") for key, v in value.items()}
            items = [[key, v] for key, v in value.items()]
            return {"$": "map", "items": self.encode(items, where)}
        if isinstance(value, np.random.RandomState):
            return self._random_state(value, where)
        if type(value) in self._classes:
            left_out = self._made_again.get(type(value), ())
            return {"$": type(value).__name__} | {
                field.name: self.encode(getattr(value, field.name), f"{where}.{field.name}")
                for field in dataclasses.fields(value)
                if field.name not in left_out
            }
        if hasattr(value, "__array__"):  # a column of pandas', say
            return self.encode(np.asarray(value), where)
        raise ValueError(f"{where} is a {type(value).__name__}, which cannot be saved.")

    def _array(self, a: Array, where: str) -> Any:
        if a.dtype.kind in "mM":  # dates: their numbers, and what they count
            return {"$": "dates", "unit": str(a.dtype), "numbers": self._put(a.view("i8"), where)}
        if a.dtype.kind == "U":
            return {"$": "texts", "dtype": str(a.dtype), "shape": list(a.shape),
                    "values": a.ravel().tolist()}  # fmt: skip
        if a.dtype.kind == "O":
            values = [self.encode(v, where) for v in a.ravel().tolist()]
            if all(v is None or isinstance(v, bool | int | float | str) for v in values):
                return {"$": "objects", "shape": list(a.shape), "values": values}
        elif str(a.dtype.newbyteorder("=")) in DTYPES.values():
            return {
                "$": "array",
                "name": self._put(a.astype(a.dtype.newbyteorder("="), copy=False), where),
            }
        raise ValueError(f"{where} is an array of {a.dtype}, which cannot be saved.")

    def _put(self, a: Array, where: str) -> str:
        name = where if where not in self.arrays else f"{where}.{len(self.arrays)}"
        self.arrays[name] = np.asarray(a, order="C")
        return name

    def _random_state(self, value: np.random.RandomState, where: str) -> Any:
        state = value.get_state(legacy=False)
        if not isinstance(state, dict) or state["bit_generator"] != "MT19937":
            raise ValueError(f"{where} is a RandomState of its own kind; give a number instead.")
        return {
            "$": "RandomState",
            "key": self.encode(state["state"]["key"], f"{where}.key"),
            "pos": int(state["state"]["pos"]),
            "has_gauss": int(state["has_gauss"]),
            "gauss": float(state["gauss"]),
        }


class Decoder:
    """Turns JSON back into objects; a ValueError says what in it is wrong."""

    def __init__(self, arrays: Any, classes: Collection[type], made_again: MadeAgain) -> None:
        self._arrays, self._made_again = arrays, made_again
        self._classes = {cls.__name__: cls for cls in classes}
        self._read: dict[str, Array] = {}

    def decode(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.decode(value) for value in tree]
        if not isinstance(tree, dict):
            return tree
        if "$" not in tree:
            return {name: self.decode(value) for name, value in tree.items()}
        kind, fields = tree["$"], {name: v for name, v in tree.items() if name != "$"}
        if not isinstance(kind, str):
            raise ValueError(f"{kind!r:.40} is no kind of value")
        if kind in self._classes:
            return self._dataclass(self._classes[kind], fields)
        known: dict[str, Any] = {
            "number": self._number, "tuple": self._tuple, "map": self._map, "array": self._array,
            "dates": self._dates, "texts": self._texts, "objects": self._objects,
            "RandomState": self._random_state,
        }  # fmt: skip
        if kind not in known:
            raise ValueError(f"{kind[:40]!r} is not a known kind of value")
        try:
            return known[kind](**fields)
        except (TypeError, KeyError, OverflowError) as error:
            raise ValueError(f"a value of the kind {kind!r} is not complete: {error}") from None

    def _dataclass(self, cls: type, fields: dict[str, Any]) -> Any:
        values = {name: self.decode(value) for name, value in fields.items()}
        hints = typing.get_type_hints(cls)
        wanted = {f.name: f for f in dataclasses.fields(cls)}
        for name in self._made_again.get(cls, ()):
            wanted.pop(name)
        for name, value in values.items():
            if name not in wanted:
                raise ValueError(f"{cls.__name__} has no field {name[:40]!r}")
            values[name] = checked(f"{cls.__name__}.{name}", value, hints[name])
        for name, field in wanted.items():
            if name not in values and field.default is dataclasses.MISSING:
                raise ValueError(f"{cls.__name__} lacks its field {name!r}")
        return cls(**values)

    def _number(self, value: str) -> float:
        return _NOT_FINITE[value]

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self.decode(items))

    def _map(self, items: list[Any]) -> dict[Any, Any]:
        return dict(self.decode(items))

    def _array(self, name: str) -> Array:
        if name not in self._read:
            self._read[name] = self._arrays[name]
        return self._read[name]

    def _dates(self, unit: str, numbers: str) -> Array:
        dtype, values = np.dtype(unit), self._array(numbers)
        if dtype.kind not in "mM" or values.dtype != np.int64:
            raise ValueError("dates are not dates")
        return values.view(dtype)

    def _texts(self, dtype: str, shape: list[int], values: list[str]) -> Array:
        checked("texts", values, list[str])
        longest = max(map(len, values), default=0)
        given = np.dtype(dtype)
        if given.kind != "U" or given.itemsize // 4 < longest:
            raise ValueError("texts have another type than they say")
        if given.itemsize * len(values) > _LARGEST_TEXTS:
            raise ValueError(f"texts of {given} are too large")
        return _shaped(np.array(values, dtype=given), shape)

    def _objects(self, shape: list[int], values: list[Any]) -> Array:
        checked("objects", values, list[bool | int | float | str | None])
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return _shaped(out, shape)

    def _random_state(
        self, key: Any, pos: int, has_gauss: int, gauss: float
    ) -> np.random.RandomState:
        words = self.decode(key)
        checked("RandomState", [pos, has_gauss], list[int])
        checked("RandomState", gauss, float)
        if getattr(words, "shape", None) != (624,) or not 0 <= pos <= 624:
            raise ValueError("a RandomState is not complete")
        state = np.random.RandomState()
        state.set_state(("MT19937", words, pos, has_gauss, gauss))
        return state


def _shaped(values: Array, shape: Any) -> Array:
    checked("shape", shape, list[int])
    if any(n < 0 for n in shape) or math.prod(shape) != values.size:
        raise ValueError("a shape does not fit its values")
    return values.reshape(shape)


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value, or a ValueError unless it is what a type hint says."""
    if not _is(value, hint):
        wanted = hint.__name__ if isinstance(hint, type) else str(hint)
        raise ValueError(f"{name} must be {wanted}, and is {type(value).__name__}")
    return float(value) if hint is float else value


def _is(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, argument) for argument in arguments)
    if origin is dict:
        key, item = arguments
        return isinstance(value, dict) and all(
            _is(k, key) and _is(v, item) for k, v in value.items()
        )
    if origin is list:
        return isinstance(value, list) and all(_is(v, arguments[0]) for v in value)
    if origin is tuple:
        return (
            isinstance(value, tuple)
            and len(value) == len(arguments)
            and all(_is(v, argument) for v, argument in zip(value, arguments, strict=True))
        )
    if isinstance(value, bool):
        return hint is bool
    if isinstance(value, int) and abs(value) >= 2**63:
        return False
    if hint is float:
        return isinstance(value, float | int)
    return isinstance(value, hint or type(None))
