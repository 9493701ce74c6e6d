"""Saved models and tables of any bytes: an error or a model, never a crash, nothing that is run,
and no more memory than the files ask for.

`python -m trust.fuzz` mutates the corpus with a seed. `python -m trust.fuzz atheris load|table
SECONDS` lets Atheris look for inputs, guided by the code that they reach (`pip install atheris`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from healgp import load, storage
from trust.tally import Tally, main

CORPUS = Path(__file__).parent / "corpus"

#: Bytes that a mutated input may make the process grow by; the corpus takes a few thousand.
MEMORY = 1 << 30

#: What a file must not make Python do.
FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect",
             "pickle.find_class", "ctypes.dlopen", "marshal.loads", "compile")  # fmt: skip

NEW = np.linspace(-1, 1, 6).reshape(3, 2)
TABLE = pd.DataFrame({"a": NEW[:, 0], "kind": ["x", "y", None]})


class RanError(BaseException):
    """The input made Python do what it must not; no handler in the library may stop it."""


_watching = False

#: What the corpus makes Python do (type hints of our own are compiled).
_usual: set[str] = set()
_learning = True


def _watch(event: str, arguments: Any) -> None:
    if _watching and event.startswith(FORBIDDEN):
        what = f"{event} {arguments}"[:200]
        if _learning:
            _usual.add(what)
        elif what not in _usual:
            raise RanError(what)


@contextlib.contextmanager
def watched() -> Any:
    global _watching
    _watching = True
    try:
        yield
    finally:
        _watching = False


def try_model(data: bytes, folder: Path) -> str:
    """Loads a model of which one file is `data`. The first byte says which, and whether the
    checksums are made to fit, so that what lies behind them is reached as well."""
    which, body = (data[0] if data else 0), data[1:]
    name = CORPUS / "models" / sorted(os.listdir(CORPUS / "models"))[(which >> 2) % 4]
    for file in folder.iterdir():
        file.unlink()
    for file in name.iterdir():
        shutil.copyfile(file, folder / file.name)
    record, arrays = folder / "model.json", next(folder.glob("arrays-*"))
    (arrays if which & 1 else record).write_bytes(body)
    if which & 2:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError, OSError,
                                 storage.SafetensorError):  # fmt: skip
            _forge(record, arrays)
    try:
        with watched():
            model = load(folder)
    except ValueError as error:
        return _refused(error, folder)
    with contextlib.suppress(ValueError), np.errstate(all="ignore"):
        model.predict(TABLE if hasattr(model, "encoder") else NEW)
    return "loaded"


def _refused(error: Exception, file: Path) -> str:
    assert str(file) in str(error), f"the message names no file: {error}"
    return "refused"


def _forge(record: Path, arrays: Path) -> None:
    """Gives record and arrays the checksums that belong to what they say."""
    said = json.loads(record.read_bytes())
    with storage.safe_open(arrays, framework="numpy") as file:
        said["arrays"]["each"] = {
            name: {"dtype": str(a.dtype), "shape": list(a.shape), "sha256": storage._sha256(a)}
            for name in file.keys()  # noqa: SIM118 (it is no dict)
            for a in [file.get_tensor(name)]
        }
    said.pop("sha256", None)
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    said["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    record.write_text(json.dumps(said), encoding="utf-8")


def try_table(data: bytes, folder: Path) -> str:
    """Reads a table; the first byte says as which format. What can be read is described."""
    from healgp import columns, tables

    formats = (".csv", ".tsv", ".parquet", ".feather", ".csv.gz")
    path = folder / f"table{formats[(data[0] if data else 0) % len(formats)]}"
    path.write_bytes(data[1:])
    try:
        with watched():
            table = tables.read(path)
    except (ValueError, MemoryError) as error:  # a size that is forged is never allocated
        return _refused(error, path)
    finally:
        path.unlink()
    with contextlib.suppress(ValueError):
        for name in table.columns:
            columns.describe(table[name])
    return "read"


TARGETS = {"load": try_model, "table": try_table}


def seeds(target: str) -> list[bytes]:
    """The corpus, with the first byte that chooses what the rest stands for."""
    if target == "load":
        models = sorted((CORPUS / "models").iterdir())
        return [
            bytes([4 * i + 2 * forged + is_arrays]) + file.read_bytes()
            for i, model in enumerate(models)
            for is_arrays, pattern in enumerate(("model.json", "arrays-*"))
            for file in model.glob(pattern)
            for forged in (0, 1)
        ]
    number = {".csv": 0, ".tsv": 1, ".parquet": 2, ".feather": 3, ".gz": 4}
    return [
        bytes([number[f.suffix]]) + f.read_bytes() for f in sorted((CORPUS / "tables").iterdir())
    ]


def mutated(seed: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
    """One to four changes: a bit, a byte, a number, a piece cut out, doubled, or of another."""
    data = bytearray(seed)
    words = [b"-1", b"1e999", b"null", b"[]", b"{}", b'"$"', b"9" * 30, b"\x00", b"\xff" * 8,
             b"NaN", b'{"$":"array","name":"labels"}', b"\n", b",", b'"']  # fmt: skip
    for _ in range(int(rng.integers(1, 5))):
        at, length = (
            (int(v) for v in rng.integers(1, len(data) + 1, 2)) if len(data) > 1 else (1, 1)
        )
        length = min(length, 64)
        kind = int(rng.integers(6))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1 and at < len(data):
            data[at] = int(rng.integers(256))
        elif kind == 2:
            word = words[int(rng.integers(len(words)))]
            data[at : at + len(word) * int(rng.integers(2))] = word
        elif kind == 3:
            del data[at : at + length]
        elif kind == 4:
            data[at:at] = data[at : at + length] * int(rng.integers(1, 4))
        else:
            other = others[int(rng.integers(len(others)))]
            start = int(rng.integers(len(other)))
            data[at : at + length] = other[start : start + length]
    return bytes(data)


def run(tally: Tally, effort: float = 1.0) -> None:
    """In a process of its own a crash would be seen as one; its memory is limited."""
    warnings.simplefilter("ignore")
    sys.addaudithook(_watch)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for target, n in (("load", 6000), ("table", 3000)):
            try_one, corpus = TARGETS[target], seeds(target)
            folder = Path(name) / target
            folder.mkdir()
            for seed in corpus:  # as they are, and so that everything is imported
                with tally.right(f"{target}: the corpus"):
                    assert try_one(seed, folder) != "refused"
            _learn(False)
            before = resource.getrlimit(resource.RLIMIT_AS)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
            try:
                for i in range(int(n * effort)):
                    data = mutated(corpus[i % len(corpus)], rng, corpus)
                    with tally.right(f"{target}: {hashlib.sha256(data).hexdigest()[:16]}"):
                        try:
                            try_one(data, folder)
                        except (Exception, RanError) as error:
                            _keep(data, target)
                            raise AssertionError(f"{type(error).__name__}: {error}") from error
            finally:
                resource.setrlimit(resource.RLIMIT_AS, before)
                _learn(True)


def _learn(now: bool) -> None:
    global _learning
    _learning = now


def _keep(data: bytes, target: str) -> None:
    """An input that broke something, for whoever mends it."""
    folder = Path("results") / "fuzz" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def guided(target: str, seconds: str) -> None:
    """Atheris's run; it ends with an error, and the input in a file, if anything is found."""
    import atheris

    warnings.simplefilter("ignore")
    sys.addaudithook(_watch)
    with tempfile.TemporaryDirectory() as name:
        folder, inputs = Path(name) / "folder", Path(name) / "inputs"
        folder.mkdir()
        inputs.mkdir()
        for i, seed in enumerate(seeds(target)):
            (inputs / str(i)).write_bytes(seed)
            TARGETS[target](seed, folder)
        _learn(False)
        if target == "load":
            from healgp import encoding, persistence

            for module in (storage, encoding, persistence):
                _instrument(atheris, module)
        else:
            from healgp import columns, tables

            for module in (columns, tables):
                _instrument(atheris, module)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            atheris.Setup(
                ["fuzz", f"-max_total_time={seconds}", "-rss_limit_mb=4096", "-timeout=20",
                 "-max_len=20000", f"-artifact_prefix={os.getcwd()}/", str(inputs)],
                lambda data: TARGETS[target](data, folder),
            )  # fmt: skip
            atheris.Fuzz()


def _instrument(atheris: Any, module: Any) -> None:
    for name, value in list(vars(module).items()):
        if callable(value) and getattr(value, "__module__", "") == module.__name__:
            with contextlib.suppress(Exception):
                if isinstance(value, type):
                    for method, function in list(vars(value).items()):
                        if hasattr(function, "__code__"):
                            setattr(value, method, atheris.instrument_func(function))
                elif hasattr(value, "__code__"):
                    setattr(module, name, atheris.instrument_func(value))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "atheris":
        guided(*sys.argv[2:])
    else:
        main(run)
