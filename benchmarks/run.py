"""`make bench`: speed and memory as ratios in one run, on the screen and in docs/benchmarks.md.

`make bench ARGS=--quick` is for a quick look, `make bench ARGS="--only objective"` for a part.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import core
import peers
import scale
import sparse
from timing import machine

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; docs stay as they are")
    parser.add_argument("--only", help="one section by name; docs get only that one")
    options = parser.parse_args()
    quick = options.quick
    rows, repeats = (6_000, 2) if quick else (36_000, 7)
    sections = {
        "objective": (
            "Objective with gradient against LAPACK",
            f"{rows:,} rows, D = 8, rbf with ARD. LAPACK's `potrf` and `potri` run on the same "
            "matrices in as many threads, each with BLAS held to one.",
            lambda: core.objective(rows, repeats),
        ),
        "threads": (
            "Two threads against one",
            f"The same objective, {rows:,} rows.",
            lambda: core.threads(rows, repeats),
        ),
        "kernels": (
            "Kernels", "Objective with gradient.", lambda: core.kernels(rows, repeats)
        ),
        "prediction": (
            "Prediction against the triangular solves",
            "Latent moments of every expert at every row, before weights and aggregation.",
            lambda: core.prediction(rows, repeats),
        ),
        "sparse": (
            "A step of sparse experts against its matrix products",
            "ELBO with gradient, q(u) included, in two threads; the products it consists of run as "
            "dgemm on arrays of the same shapes in as many threads.",
            lambda: sparse.step(repeats),
        ),
        "mnist": (
            "MNIST",
            "20 principal components, 60,000 images to fit, 10,000 to predict, in a process of its "
            "own.",
            lambda: sparse.mnist(quick),
        ),
        "compilation": (
            "Compilation", "1,000 rows, in a new process.", scale.compilation
        ),
        "memory": (
            "Memory", "In a process of its own.", lambda: scale.memory(quick)
        ),
        "rows": (
            "Cost against the number of rows",
            "Robot arm, 200 rows per expert, 10 iterations of training.",
            lambda: scale.rows(quick, DOCS / "cost.png"),
        ),
        "peers": ("Peers", "", lambda: peers.compare(quick)),
    }  # fmt: skip
    parts = [
        "# Benchmarks\n",
        f"Made by `make bench` on {datetime.date.today():%Y-%m-%d}: {machine()}. Times are the "
        f"best of {repeats} repeats (fits: one run). Machines differ and are noisy; ratios within "
        "one run are what to look at.\n",
    ]
    for name, (title, text, run) in sections.items():
        if options.only in (None, name):
            print(f"… {title}", flush=True)
            parts += [f"## {title}\n", text + "\n" if text else "", run()]
            print("\n".join(parts[-3:]), flush=True)
    if quick:
        return
    text = "\n".join(parts)
    if options.only is not None:
        title, section = sections[options.only][0], "\n".join(parts[2:])
        pages = DOCS.joinpath("benchmarks.md").read_text(encoding="utf-8").split("\n## ")
        if not any(page.startswith(f"{title}\n") for page in pages):
            pages.append(title + "\n")
        pages = [section[3:] if page.startswith(f"{title}\n") else page for page in pages]
        text = "\n## ".join(page.rstrip("\n") + "\n" for page in pages)
    DOCS.joinpath("benchmarks.md").write_text(text, encoding="utf-8")
    print(f"Written to {DOCS / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
