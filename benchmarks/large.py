"""`make bench-scale`: what many experts cost, as ratios in one run; docs/scale.md.

`make bench-scale ARGS="--only routed"` runs one part; the others stay as they were.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import clusters
from healgp import ExpertGPRegressor, datasets, metrics
from healgp.deviations import GAUSSIAN, Deviations
from healgp.experiments.cells import write
from timing import machine, table

DOCS = Path(__file__).parent.parent / "docs"

#: Rows that are predicted at most: asking everyone takes long.
_ROWS = 10_000


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def at_best(run: Callable[[], Any], seconds: float = 5.0) -> tuple[Any, float]:
    """What it gives, and the shortest time of as many runs as fit: other work on the machine only
    ever makes one longer."""
    found, best = timed(run)
    spent = best
    while spent + best < seconds:
        _, took = timed(run)
        spent, best = spent + took, min(best, took)
    return found, best


def fitted(X, y, **parameters) -> tuple[Any, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return timed(lambda: ExpertGPRegressor(random_state=0, **parameters).fit(X, y))


def routed() -> str:
    rows = []
    paper = dict(kernel="rbf", aggregation="gpoe", temperature=100.0)
    for data in ("kin40k", "protein", "airline"):
        X, new, y, _ = datasets.load(data, 0, standardize=True)
        new = new[:_ROWS]
        for name, parameters in (("defaults", {}), ("gPoE, T = 100, rbf", paper)):
            model, _ = fitted(X, y, **parameters)
            model.predict(new[:10])  # the audit is part of the first prediction
            near, fast = at_best(lambda: model.predict(new, return_std=True))  # noqa: B023
            model.set_params(routing=None)
            all_, slow = at_best(lambda: model.predict(new, return_std=True))  # noqa: B023
            apart = np.maximum(abs(near[0] - all_[0]), abs(near[1] - all_[1])) / all_[1]
            rows.append([
                data, name, model.aggregation_, model.n_experts_, f"{slow:.2f}", f"{fast:.2f}",
                f"**{slow / fast:.1f}**", f"{np.mean(apart <= 1e-3):.2%}", f"{apart.max():.1e}",
            ])  # fmt: skip
            print(rows[-1], flush=True)
    head = ["", "setting", "rule", "experts", "everyone, s", "routed, s", "times faster",
            "within 0.001 std", "largest, in std"]  # fmt: skip
    return f"{_ROWS:,} test rows at most, 500 rows per expert.\n\n" + table(head, rows)


def growth() -> str:
    """µs per row against the number of experts, hyperparameters given."""
    rng, rows = np.random.default_rng(0), []
    cases = [(J, denser) for denser in (False, True) for J in (100, 300, 1000, 3000, 5000)]
    for J, denser in cases:
        side = 6.0 if denser else 6.0 * (J / 100) ** (1 / 3)
        X, new = rng.uniform(0, side, (100 * J, 3)), rng.uniform(0, side, (4 * _ROWS, 3))
        y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * rng.standard_normal(len(X))
        model, _ = fitted(
            X, y, points_per_expert=100, kernel="rbf", partition_metric="plain", max_iter=0,
            lengthscale=1.0, signal_variance=0.25, noise_variance=0.01, aggregation="gpoe",
            temperature=100.0, standardize=False,
        )  # fmt: skip
        _, audit = timed(lambda: model.predict(new[:1]))  # noqa: B023
        _, fast = timed(lambda: model.predict(new))  # noqa: B023
        some, asked = new[: max(200_000 // J, 100)], model._route(model._setting({})).experts or J
        model.set_params(routing=None)
        _, slow = timed(lambda: model.predict(some))  # noqa: B023
        rows.append([
            "the same, more densely" if denser else "larger, as densely", J, asked,
            f"{1e6 * fast / len(new):.0f}", f"{1e6 * slow / len(some):.0f}", f"{audit:.1f}",
        ])  # fmt: skip
        print(rows[-1], flush=True)
    head = ["more rows fill a space that is", "experts", "asked in full", "routed, µs per row",
            "everyone, µs per row", "first prediction, s"]  # fmt: skip
    about = f"Experts of 100 rows, three dimensions, gPoE at T = 100, {4 * _ROWS:,} rows predicted."
    draw_growth(rows, DOCS / "growth.png")
    return f"{about}\n\n{table(head, rows)}\n![µs per row against the experts](growth.png)\n"


def draw_growth(rows: list[list[Any]], picture: Path) -> None:
    """The lines of the table of growth."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for kind, line in zip(dict.fromkeys(row[0] for row in rows), ("-", "--"), strict=True):
        experts, routed, everyone = np.array(
            [[float(row[i]) for i in (1, 3, 4)] for row in rows if row[0] == kind]
        ).T
        ax.loglog(experts, everyone, f"o{line}", color="#777777", label=f"everyone, space {kind}")
        ax.loglog(experts, routed, f"o{line}", color="#1f6fb4", label=f"routed, space {kind}")
    ax.set(xlabel="experts", ylabel="µs per row", title="What a prediction costs")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def progressive() -> str:
    rows = []
    X, new, y, target = datasets.load("airline", 0, standardize=True)
    new, target = new[:_ROWS], target[:_ROWS]
    seconds = {}
    for training in ("progressive", "full"):
        model, seconds[training] = fitted(
            X, y, training=training, kernel="matern32", aggregation="gpoe", temperature=100.0,
        )  # fmt: skip
        nlpd = metrics.nlpd(target, *model.predict(new, return_std=True))
        rows.append([training, model.n_experts_, f"{seconds[training]:.0f}", model.n_iter_,
                     f"{model.log_marginal_likelihood_ / len(y):.4f}", f"{nlpd:.4f}"])  # fmt: skip
        print(rows[-1], flush=True)
    head = ["training", "experts", "fit, s", "iterations", "log p per row", "NLPD"]
    ratio = seconds["full"] / seconds["progressive"]
    return table(head, rows) + f"\nThe whole fit is **{ratio:.1f} times** faster.\n"


def streaming(first: int = 5_000, batches: int = 1_000, size: int = 20) -> str:
    """What a row costs over the tenths of a stream, predicted and then learnt."""
    X, y = datasets.robot_arm(first + batches * size)
    model, _ = fitted(
        X[:first], y[:first], points_per_expert=200, kernel="matern32", aggregation="gpoe",
        temperature=100.0,
    )  # fmt: skip
    rows = []
    for tenth in range(10):
        predict = learn = 0.0
        for batch in range(tenth * batches // 10, (tenth + 1) * batches // 10):
            here = slice(first + batch * size, first + (batch + 1) * size)
            predict += timed(lambda: model.predict(X[here], return_std=True))[1]  # noqa: B023
            learn += timed(lambda: model.partial_fit(X[here], y[here]))[1]  # noqa: B023
        n, sizes = batches // 10 * size, np.bincount(model.labels_)
        rows.append([
            tenth + 1, f"{len(model.labels_):,}", model.n_experts_, f"{sizes.mean():.0f}",
            f"{n / learn:.0f}", f"{n / predict:.0f}",
        ])  # fmt: skip
        print(rows[-1], flush=True)
    head = ["tenth", "rows so far", "experts", "rows per expert", "learnt, rows per s",
            "predicted, rows per s"]  # fmt: skip
    text = (
        f"{first:,} rows to fit, then {batches:,} batches of {size}, each predicted and then "
        "learnt by `partial_fit`; 200 rows per expert, gPoE at T = 100."
    )
    return f"{text}\n\n" + table(head, rows)


def everything() -> str:
    """All flights with all defaults, in a process of its own for its memory."""
    start = time.perf_counter()
    text = subprocess.run(
        [sys.executable, __file__, "--everything"], check=True, capture_output=True, text=True
    ).stdout
    print(text, f"{time.perf_counter() - start:.0f} s with the reading", flush=True)
    return text


def all_flights() -> None:
    X, new, y, target = datasets.load("airline_all", 0, standardize=True)
    model, fit = fitted(X, y)
    (mean, std), predict = timed(partial(model.predict, new, return_std=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    said = model._setting({}).deviations

    def scores(mean: Any, std: Any, said: Deviations = GAUSSIAN) -> list[str]:
        inside = np.abs(said.position(target, mean, std) - 0.5) <= 0.475
        return [f"{-said.log_density(target, mean, std).mean():.4f}",
                f"{metrics.nlpd(target, mean, std):.4f}", f"{metrics.rmse(target, mean):.4f}",
                f"{inside.mean():.3f}"]  # fmt: skip

    rows = [["healgp, defaults", f"{fit:.0f}", f"{predict:.0f}", f"{peak:.1f}",
             *scores(mean, std, said)]]  # fmt: skip
    about = (
        f"{len(X):,} rows to fit, {len(new):,} to predict; {model.n_experts_:,} experts, kernel "
        f"{model.kernel_}, rule {model.aggregation_}, T = {model.temperature_:.3g}, "
        f"{model.degrees_of_freedom_:.1f} degrees of freedom, "
        f"{model._route(model._setting({})).experts} experts asked in full at most."
    )
    del model
    sparse, fit = fitted(
        X, y, points_per_expert=None, n_inducing=500, kernel="rbf", aggregation="gpoe", max_iter=20
    )
    (mean, std), predict = timed(lambda: sparse.predict(new, return_std=True))
    rows.append(["one sparse GP, 500 inducing inputs", f"{fit:.0f}", f"{predict:.0f}", "",
                 *scores(mean, std)])  # fmt: skip
    A = np.column_stack([np.ones(len(X)), X])
    beta, *_ = np.linalg.lstsq(A, y, rcond=None)
    mean = np.column_stack([np.ones(len(new)), new]) @ beta
    std = np.full(len(new), np.std(y - A @ beta))
    rows.append(["linear regression", "", "", "", *scores(mean, std)])
    head = ["", "fit, s", "predict, s", "peak memory, GB", "NLPD", "as a Gaussian", "RMSE",
            "in 95 % intervals"]  # fmt: skip
    print(about + "\n\n" + table(head, rows))


PARTS = {
    "routed": ("Asking near experts against asking everyone", routed),
    "growth": ("Cost of a row against the number of experts", growth),
    "streaming": ("Rows that come in batches", streaming),
    "progressive": ("Progressive against full training, airline", progressive),
    "everything": ("All 2,319,121 flights", everything),
    "workers": ("Worker processes against threads, airline", clusters.workers),
    "scheduler": ("How many shards a scheduler bears", clusters.scheduler),
    "paper": ("On paper: 10⁷, 10⁸, 10⁹ rows", clusters.paper),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--everything", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.everything:
        return all_flights()
    fitted(*datasets.robot_arm(500), points_per_expert=100)
    page = DOCS / "scale.md"
    for name, (title, run) in PARTS.items():
        if options.only in (None, name):
            text = run()
            _, *old = page.read_text(encoding="utf-8").split("\n## ")
            parts = dict(part.split("\n", 1) for part in old) | {title: f"\n{text}"}
            head = f"# Scale\n\nMade by `make bench-scale` on {machine()}.\n"
            written = [f"## {t}\n{parts[t].rstrip()}\n" for t, _ in PARTS.values() if t in parts]
            write(page, "\n".join([head, *written]))  # as it goes: the whole takes long
    print(f"Written to {page}")
    return None


if __name__ == "__main__":
    main()
