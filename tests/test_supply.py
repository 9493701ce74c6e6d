"""What the project depends on: known, with free licences, and bounded from below."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: Licences that let everyone use the library for anything.
FREE = re.compile(r"\b(BSD|MIT|Apache|PSF|Python Software Foundation|ISC|MPL|HPND|Zlib|Unlicense)")


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0]


def asked():
    """Everything that the library and its extras need, and what those need in turn."""
    left = [name_of(r) for r in PROJECT["dependencies"]]
    left += [name_of(r) for e in ("dask", "plots", "cli") for r in
             PROJECT["optional-dependencies"][e]]  # fmt: skip
    seen = {}
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in seen:
            continue
        try:
            seen[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed, or for another system
        left += [name_of(r) for r in seen[name].requires or () if "extra ==" not in r]
    return seen


def test_the_core_is_what_it_says():
    assert {name_of(r) for r in PROJECT["dependencies"]} == {
        "numpy", "scipy", "numba", "scikit-learn", "safetensors", "threadpoolctl", "tqdm",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(asked()))
def test_licences_are_free(name):
    data = asked()[name].metadata
    said = " ".join(
        [data.get("License-Expression") or "", (data.get("License") or "")[:200]]
        + [c for c in data.get_all("Classifier") or [] if c.startswith("License")]
    )
    assert FREE.search(said), f"{name} says {said[:100]!r}"


def test_every_requirement_has_a_lower_bound():
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in (r for group in groups for r in group if not r.startswith("healgp")):
        assert re.fullmatch(r"[\w.-]+>=[\d.]+", requirement), requirement


def test_development_is_locked_without_hosts():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    locked = {}
    for line in lines:
        if not line.startswith("#"):
            name, version = re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups()
            locked[name.lower().replace("_", "-")] = version
    if metadata.version("numpy") != locked["numpy"]:
        pytest.skip("another environment than the locked one")
    for name in asked():
        assert name in locked, f"{name} is not locked"
