"""Prints the lower bounds of pyproject.toml as constraints, for `make test-lowest`."""

from __future__ import annotations

import re
import tomllib

from trust.tally import ROOT

#: Extras that are tested at their lower bounds.
EXTRAS = ("dask", "plots", "cli")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"]]
    for extra in EXTRAS:
        asked += project["optional-dependencies"][extra]
    for requirement in asked:
        name, bound = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement).groups()
        print(f"{name}=={bound}{'.0' * (2 - bound.count('.'))}")


if __name__ == "__main__":
    main()
