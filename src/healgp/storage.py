"""A folder that holds a record, `model.json`, and its arrays, `arrays-….safetensors`, and that is
never seen half-written.

Both files are written under a name of their own, flushed to the disk and renamed; `model.json`
comes last and names the arrays that belong to it. So whenever the writer is killed, or the power
fails, `model.json` is either not there yet, or the old one with its arrays, or the new one with
its own. What an interrupted writer left behind is never read, and the next one removes it.

Checksums of the record and of every array find damage. They are no defence against forgery: that is
why nothing in the files is ever run, and why whoever reads them checks what they say.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

Array = np.ndarray

RECORD = "model.json"
_ARRAYS = re.compile(r"arrays-[0-9a-f]{16}\.safetensors")
_UNFINISHED = re.compile(r"\.saving-[0-9a-f]{16}")

#: What `model.json` says that it is, and the newest layout of both files that is understood.
FORMAT, VERSION = "healgp model", 1

#: A record has the names of columns and classes, and no rows.
_LARGEST_RECORD = 2**28

#: Names of the arrays' types in the file.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32",
    "F64": "float64",
}  # fmt: skip


class BrokenError(ValueError):
    """A file that cannot be used; the message names it."""


# ---- writing -------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], record: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Writes a record and its arrays into the folder `path`, which is made if it is not there."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"{folder} is a file, and a model is saved as a folder. Give another name."
        )
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _alone_in(folder) as alone:
            before = _arrays_there(folder)
            name, described = _write_arrays(folder, arrays)
            whole = {"format": FORMAT, "format_version": VERSION} | record
            whole["arrays"] = {"file": name, "each": described}
            whole["sha256"] = _checksum(whole)
            text = json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False)
            _write_file(folder, RECORD, lambda file: file.write_text(text, encoding="utf-8"))
            _remove_others(folder, name, before, alone)
    except BaseException:
        if made:
            with suppress(OSError):
                folder.rmdir()  # if nothing is in it
        raise
    if made:
        _flush(folder.absolute().parent)


def _write_arrays(folder: Path, arrays: dict[str, Array]) -> tuple[str, dict[str, Any]]:
    """The name of the file, which follows from what is in it, and a description of each array."""
    described = {
        name: {"dtype": str(a.dtype), "shape": list(a.shape), "sha256": _sha256(a)}
        for name, a in arrays.items()
    }
    file_name = f"arrays-{_checksum(described)[:16]}.safetensors"
    _write_file(folder, file_name, lambda file: save_file(arrays, file))
    return file_name, described


def _write_file(folder: Path, name: str, write: Callable[[Path], Any]) -> None:
    """Writes a file under another name, and renames it once the disk has it."""
    unfinished = folder / f".saving-{secrets.token_hex(8)}"
    try:
        unfinished.touch()
        mode = unfinished.stat().st_mode
        write(unfinished)
        os.chmod(unfinished, mode)  # as any new file, whatever the library made of it
        _flush(unfinished)
        os.replace(unfinished, folder / name)
    finally:
        unfinished.unlink(missing_ok=True)
    _flush(folder)


def _flush(path: Path) -> None:
    """Waits until the disk has a file or the names in a folder, where the system can say so."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    """Waits for other processes that write here. False where the system has no such lock: two that
    write at once still leave a whole model, but leftovers are not told from work in progress."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover
        yield False
        return
    descriptor, alone = os.open(folder, os.O_RDONLY), True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # pragma: no cover  (some network folders)
            alone = False
        yield alone
    finally:
        os.close(descriptor)


def _arrays_there(folder: Path) -> str | None:
    """The arrays that a model in the folder names; an error if the folder is something else's."""
    names = [file.name for file in folder.iterdir()]
    if RECORD not in names:
        if any(not (_ARRAYS.fullmatch(name) or _UNFINISHED.fullmatch(name)) for name in names):
            raise ValueError(
                f"{folder} is a folder with other files in it. Give the name of a new folder, or "
                "of a saved model to replace."
            )
        return None
    try:
        return _checked_record(folder)["arrays"]["file"]
    except BrokenError as error:
        raise ValueError(
            f"{folder} is not replaced, for it is not a whole model: {error} Remove it, or give "
            "another name."
        ) from None


def _remove_others(folder: Path, name: str, before: str | None, alone: bool) -> None:
    for file in list(folder.iterdir()):
        left = _ARRAYS.fullmatch(file.name) or _UNFINISHED.fullmatch(file.name)
        if left and file.name != name and (alone or file.name == before):
            with suppress(OSError):  # someone may still be reading it, where that forbids removal
                file.unlink(missing_ok=True)


# ---- reading -------------------------------------------------------------------------------------


class Arrays:
    """The arrays of an open file, read from its memory map one at a time and checked then."""

    def __init__(self, path: Path, file: Any, described: dict[str, Any]) -> None:
        self._path, self._file, self._described = path, file, described
        if set(file.keys()) != set(described):
            raise BrokenError(f"{path} has other arrays than {RECORD} says: the two do not belong.")

    def __getitem__(self, name: str) -> Array:
        if name not in self._described:
            raise BrokenError(f"{self._path} has no array {name!r}.")
        said, here = self._described[name], self._file.get_slice(name)
        found = {"dtype": DTYPES.get(here.get_dtype()), "shape": list(here.get_shape())}
        if not isinstance(said, dict) or {k: said.get(k) for k in found} != found:
            raise BrokenError(
                f"{self._path}: the array {name!r} has another type or shape than saved."
            )
        array: Array = self._file.get_tensor(name)
        if _sha256(array) != said.get("sha256"):
            raise BrokenError(f"{self._path} is damaged: the array {name!r} is not what was saved.")
        return array


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[dict[str, Any], Arrays]]:
    """The record in the folder `path` and its arrays, while they are open."""
    folder = Path(path)
    with ExitStack() as stack:
        while True:
            record = _checked_record(folder)
            file = folder / record["arrays"]["file"]
            try:
                opened_file = stack.enter_context(safe_open(file, framework="numpy"))
                break
            except FileNotFoundError:
                # a newer model may have come in between; then its record is another
                if _checked_record(folder)["sha256"] == record["sha256"]:
                    raise BrokenError(f"{file} is missing: the model is not whole.") from None
            except (OSError, SafetensorError) as error:
                raise BrokenError(f"{file} cannot be read, or is damaged: {error}.") from None
        arrays = Arrays(file, opened_file, record["arrays"]["each"])
        try:
            yield record, arrays
        except SafetensorError as error:
            raise BrokenError(f"{file} is damaged: {error}.") from None


def _checked_record(folder: Path) -> dict[str, Any]:
    """What `model.json` says, checked as far as this module knows it."""
    path = folder / RECORD
    if not path.is_file():
        raise BrokenError(
            f"{path} does not exist: {folder} is not a saved model, or saving it was interrupted."
        )
    try:
        if path.stat().st_size > _LARGEST_RECORD:
            raise BrokenError(f"{path} has {path.stat().st_size:,} bytes, which no model needs.")
        record = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise BrokenError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, BrokenError):
            raise
        raise BrokenError(f"{path} is damaged, it is not JSON: {error}.") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise BrokenError(f"{path} is not a model of healgp's.")
    version = record.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BrokenError(f"{path} has the format version {version!r}, which is none.")
    if version > VERSION:
        by = str(record.get("library_version"))[:40]
        raise BrokenError(
            f"{path} was saved by a newer healgp ({by}): its format version is {version}, and this "
            f"one reads up to {VERSION}. Install a newer healgp."
        )
    said = record.get("sha256")
    if said != _checksum({name: value for name, value in record.items() if name != "sha256"}):
        raise BrokenError(f"{path} is damaged: its checksum is not that of what it says.")
    arrays = record.get("arrays")
    if (
        not isinstance(arrays, dict)
        or not isinstance(arrays.get("each"), dict)
        or not isinstance(arrays.get("file"), str)
        or not _ARRAYS.fullmatch(arrays["file"])
    ):
        raise BrokenError(f"{path} does not say which arrays belong to it.")
    return record


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def _sha256(array: Array) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


def _checksum(tree: Any) -> str:
    """Of what a tree of JSON says, however it is written down."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
