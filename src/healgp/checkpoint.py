"""A fit that goes on where it was killed.

L-BFGS-B decides from values and gradients alone where to evaluate next, so the evaluations that it
has made are its state. They are written to a file as they come; a fit that is begun again on the
same data finds them there, takes the same steps without work, and goes on, to the same result.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

Array = np.ndarray
Objective = Callable[[Array], tuple[float, Array]]

_MAGIC = b"healgp checkpoint 1\n"

#: Length and checksum of what follows.
_HEAD = struct.Struct("<QI")


class Journal:
    """The evaluations of one fit. path=None keeps none."""

    def __init__(self, path: str | os.PathLike[str] | None, *identity: Any) -> None:
        self._path = None if path is None else Path(path)
        self._fingerprint = _digest(*identity)
        self._known: list[tuple[bytes, list[Array]]] = []
        self._next = 0
        self._file: Any = None
        self._full = False

    def __enter__(self) -> Self:
        if self._path is None:
            return self
        try:
            end = self._read()
            self._file = open(self._path, "r+b" if end else "w+b", buffering=0)
            if not end:
                self._put(_MAGIC + self._fingerprint)
                end = len(_MAGIC) + len(self._fingerprint)
            self._file.truncate(end)  # a last record that was cut off
            self._file.seek(end)
        except OSError as error:
            raise ValueError(
                f"checkpoint={str(self._path)!r} cannot be read and written: {error.strerror}."
            ) from None
        return self

    def __exit__(self, *error: Any) -> None:
        if self._file is not None:
            self._file.close()

    def done(self) -> None:
        """The fit has ended: nothing is left to go on with."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def remembered(
        self,
        objective: Objective,
        state: Callable[[], list[Array]] = list,
        restore: Callable[[list[Array]], None] = lambda state: None,
    ) -> Objective:
        """The objective, with what is known of it taken from the file; `state` is what it leaves
        behind for its next evaluation."""
        if self._path is None:
            return objective

        def evaluate(point: Array) -> tuple[float, Array]:
            key = _digest(point)
            if self._next < len(self._known) and self._known[self._next][0] == key:
                value, gradient, *rest = self._known[self._next][1]
                self._next += 1
                if self._next == len(self._known):
                    restore(rest)
                return float(value[0]), gradient.copy()
            found, gradient = objective(point)
            self._append(key, [np.array([found]), gradient, *state()])
            return found, gradient

        return evaluate

    def _append(self, key: bytes, arrays: list[Array]) -> None:
        if self._full:
            return
        try:
            self._write(key, arrays)
        except OSError as error:
            # hours of training must not end for this; what is whole in the file stays of use
            self._full = True
            warnings.warn(
                f"checkpoint={str(self._path)!r} cannot be written any more ({error.strerror}); "
                "training goes on without it.",
                stacklevel=2,
            )

    def _write(self, key: bytes, arrays: list[Array]) -> None:
        # what was remembered beyond this point belongs to steps that are not taken any more
        if self._next < len(self._known):
            self._known = self._known[: self._next]
            self._file.seek(0)
            self._file.truncate(0)
            self._put(_MAGIC + self._fingerprint)
            for known in self._known:
                self._put(_record(*known))
        self._put(_record(key, arrays))
        self._known.append((key, []))  # its place only: the numbers are not needed again
        self._next += 1

    def _put(self, data: bytes) -> None:
        if self._file.write(data) < len(data):  # without a buffer, a full disk takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _read(self) -> int:
        """Reads the records; returns where the last whole one ends, 0 where there is no file."""
        assert self._path is not None
        if not self._path.exists():
            return 0
        data = self._path.read_bytes()
        start = len(_MAGIC) + len(self._fingerprint)
        if not data[: len(_MAGIC)] == _MAGIC[: len(data)]:
            raise ValueError(
                f"checkpoint={str(self._path)!r} is a file that this library did not write, and "
                "it is left alone. Give another path."
            )
        if len(data) < start:
            return 0
        if data[len(_MAGIC) : start] != self._fingerprint:
            raise ValueError(
                f"checkpoint={str(self._path)!r} was left by a fit with other data or other "
                "parameters. Give another path, or delete the file."
            )
        while start + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, start)
            body = data[start + _HEAD.size : start + _HEAD.size + length]
            if len(body) < length or zlib.crc32(body) != checksum:
                break
            self._known.append(_parsed(body))
            start += _HEAD.size + length
        return start


def _record(key: bytes, arrays: list[Array]) -> bytes:
    parts = [key, struct.pack("<Q", len(arrays))]
    for array in arrays:
        parts.append(struct.pack(f"<{array.ndim + 1}Q", array.ndim, *array.shape))
        parts.append(np.ascontiguousarray(array, dtype="<f8").tobytes())
    body = b"".join(parts)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _parsed(body: bytes) -> tuple[bytes, list[Array]]:
    key, place = body[:32], 32
    (n,) = struct.unpack_from("<Q", body, place)
    place, arrays = place + 8, []
    for _ in range(n):
        (ndim,) = struct.unpack_from("<Q", body, place)
        shape = struct.unpack_from(f"<{ndim}Q", body, place + 8)
        place += 8 * (1 + ndim)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(body, "<f8", count, place).reshape(shape).astype(float))
        place += 8 * count
    return key, arrays


def _digest(*values: Any) -> bytes:
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            found.update(repr((value.shape, value.dtype.str)).encode())
            found.update(np.ascontiguousarray(value).tobytes())
        else:
            found.update(repr(value).encode())
    return found.digest()
