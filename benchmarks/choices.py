"""`make choices`: what the defaults are worth, and what they were chosen by; docs/choices.md.

Parts, kept fit by fit in results/choices, so that a run that was interrupted goes on:

- `defaults`: the first split of every set with all defaults, seconds beside;
- `cost`: what the choice of the kernel costs;
- `grid`: rules × partitions × metrics × sizes of experts, judged by leave-one-out on training rows;
- `best`: the defaults against every single setting of rule, kernel and temperature.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.parallel import Parallel, delayed
from tqdm import tqdm

import peers
from healgp import ExpertGPRegressor, datasets, metrics
from healgp.diagnosis import LEVELS
from healgp.evidence import Numbers, evidence
from healgp.experiments.cells import write
from healgp.kernels import KERNELS
from timing import machine, table

OPTIONS = argparse.Namespace(kept=False)
DOCS = Path(__file__).parent.parent / "docs"
KEPT = Path("results/choices")

SMALL = ("concrete", "airfoil", "parkinsons", "power")
LARGE = ("kin40k", "protein")
SETS = (*SMALL, *LARGE)

#: Simulated rows that make 20 experts.
_ARM = "robot arm, 10,000 rows"

#: What the defaults are asked for on the first split: NLPD and RMSE at most.
ASKED: dict[str, tuple[float, float | None]] = {
    "concrete": (0.125, None), "airfoil": (-0.08, None), "parkinsons": (-4.0, None),
    "power": (-0.28, 0.187), "kin40k": (-1.06, 0.092), "protein": (0.58, 0.48),
}  # fmt: skip

RULES = ("gpoe", "barycenter", "wasserstein", "nested")
SIZES = (250, 500, 1000, 2000)

#: Partition, metric and size of experts, one changed at a time.
GRID: list[dict[str, Any]] = [
    *(dict(points_per_expert=m) for m in SIZES),
    dict(partition_metric="plain"),
    dict(partition="balanced"),
    dict(partition="balanced", partition_metric="plain"),
]

#: Splits that the grid is averaged over.
SPLITS = {"concrete": 3, "airfoil": 3, "parkinsons": 3, "power": 3, "kin40k": 2, "protein": 2,
          "airline": 2}  # fmt: skip

#: Rows per expert from which one split of the large sets must do: a fit takes a quarter of an hour,
#: of airline longer.
_LONG = 2000

#: Splits that the shares of test rows within intervals are the means of: what is asked for, and for
#: the smallest sets as many more as tell chance from bias.
COVERED = [
    ("concrete", 10), ("concrete", 50), ("airfoil", 10), ("airfoil", 50), ("parkinsons", 10),
    ("power", 10), ("kin40k", 3), ("protein", 3),
]  # fmt: skip

#: Test rows that the grid predicts at most: airline has 72,644.
_ROWS = 10_000

TEMPERATURES = (1.0, 3.0, 10.0, 25.0, 50.0, 100.0, 300.0, 1000.0)
#: Every rule with every weighting that changes it.
SINGLE: dict[str, dict[str, Any]] = {
    **{f"{rule} T={t:g}": dict(aggregation=rule, temperature=t)
       for rule in ("gpoe", "rbcm", "grbcm", "barycenter", "wasserstein") for t in TEMPERATURES},
    **{f"rbcm unnormalised T={t:g}": dict(aggregation="rbcm", temperature=t,
                                          normalize_weights=False) for t in TEMPERATURES},
    **{f"{rule} uniform": dict(aggregation=rule, weighting="uniform")
       for rule in ("gpoe", "barycenter", "wasserstein")},
    "poe": dict(aggregation="poe"),
    "bcm": dict(aggregation="bcm"),
    "rbcm entropy": dict(aggregation="rbcm", weighting="entropy"),
    "grbcm entropy": dict(aggregation="grbcm", weighting="entropy"),
    "nested": dict(aggregation="nested"),
}  # fmt: skip


def fit(
    data: str, split: int, parameters: Mapping[str, Any],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Any, ...]:  # fmt: skip
    if data == _ARM:
        X, y = datasets.robot_arm(10_000)
        new, target = X[:0], y[:0]
    else:
        X, new, y, target = datasets.load(data, split, standardize=True)
    start = clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ExpertGPRegressor(random_state=0, **parameters).fit(X, y)
    return model, new, target, clock() - start


def scores(found: Numbers) -> dict[str, Any]:
    """NLPD, also of the Gaussian with the same mean and deviation; RMSE; share of rows within the
    intervals of every level."""
    values = dict(
        nlpd=found.nlpd, gaussian=metrics.nlpd(found.y, found.mean, found.std),
        rmse=metrics.rmse(found.y, found.mean),
    )  # fmt: skip
    inside = {f"{level:.0%}": round(found.coverage(level), 4) for level in LEVELS}
    return {name: round(float(v), 5) for name, v in values.items()} | {"inside": inside}


def one_default(data: str, split: int) -> dict[str, Any]:
    model, new, target, seconds = fit(data, split, {})
    start = time.perf_counter()
    found = evidence(model, new, target).prediction
    return dict(
        kernel=model.kernel_, rule=model.aggregation_, experts=model.n_experts_,
        temperature=model.temperature_, freedom=min(model.degrees_of_freedom_, 1e9), fit=seconds,
        predict=time.perf_counter() - start, scores=scores(found),
    )  # fmt: skip


def one_of_grid(data: str, split: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Leave-one-out NLPD of every rule as a Gaussian, and what the test rows say to it; seconds are
    the process's own, for others run beside it."""
    clock = time.process_time
    model, new, target, seconds = fit(data, split, parameters, clock)
    new, target = new[:_ROWS], target[:_ROWS]
    kept: dict[str, Any] = dict(fit=seconds, experts=model.n_experts_, kernel=model.kernel_)
    kept["lml"] = model.log_marginal_likelihood_ / len(model.labels_)
    settings = {rule: dict(aggregation=rule) for rule in RULES}
    kept["loo"] = {r: evidence(model, settings=[s]).prediction.nlpd for r, s in settings.items()}
    kept["predict"], kept["test"] = {}, {}
    for rules in (("gpoe",), ("nested",), ("barycenter", "wasserstein")):
        start = clock()
        found = evidence(model, new, target, [settings[rule] for rule in rules]).predictions
        kept["predict"][rules[0]] = clock() - start
        kept["test"] |= {rule: p.nlpd for rule, p in zip(rules, found, strict=True)}
    return kept


def one_kernel(data: str, split: int, kernel: str) -> dict[str, list[float]]:
    """Every single setting under one kernel."""
    model, new, target, _ = fit(data, split, dict(kernel=kernel))
    results = model.predict_many(new, list(SINGLE.values()))
    return {n: metrics.nlpd(target, *r) for n, r in zip(SINGLE, results, strict=True)}


class NotRunError(Exception):
    """A fit that is not there, when no new ones are to be made."""


def place(name: str, *arguments: Any) -> Path:
    """Where the result with these arguments is kept."""
    words = [json.dumps(a, sort_keys=True) if isinstance(a, dict) else str(a) for a in arguments]
    file = "".join(c if c.isalnum() or c in "-_" else "_" for c in "-".join(words)) + ".json"
    return KEPT / name / file


def kept(name: str, make: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What was found earlier with the same arguments, or what is found now."""
    path = place(name, *arguments)
    if not path.is_file():
        if OPTIONS.kept:
            raise NotRunError
        write(path, json.dumps(make(*arguments), indent=1))
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def fill(name: str, make: Callable[..., dict[str, Any]], every: Iterable[tuple[Any, ...]]) -> None:
    """What is missing of these results, as many at a time as there are cores, each with one."""
    missing = [arguments for arguments in every if not place(name, *arguments).is_file()]
    if missing and not OPTIONS.kept:
        together = Parallel(n_jobs=-1, return_as="generator_unordered")
        done = together(delayed(kept)(name, make, *arguments) for arguments in missing)
        for _ in tqdm(done, desc=name, total=len(missing), unit="fit", dynamic_ncols=True):
            pass


def bar(items: Iterable[Any], what: str) -> Any:
    return tqdm(list(items), desc=what, unit="fit", dynamic_ncols=True, disable=OPTIONS.kept)


def each(names: Iterable[Any], make: Callable[[Any], Any]) -> tuple[list[Any], str]:
    """make(name) of every name, and a sentence on those that were not run."""
    made, missing = [], []
    for name in names:
        try:
            made.append(make(name))
        except NotRunError:
            words = name.items() if isinstance(name, dict) else ()
            missing.append(" and ".join(f"{k}={v!r}" for k, v in words) or str(name))
    return made, f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""


def grid_splits(data: str, changes: Mapping[str, Any]) -> range:
    is_long = data not in SMALL and changes.get("points_per_expert", 0) >= _LONG
    return range(1 if is_long else SPLITS[data])


def splits_of(data: str) -> range:
    return range(10) if data in SMALL else range(3)


def defaults() -> str:
    def row(data: str) -> list[Any]:
        found = kept("defaults", one_default, data, 0)
        s, (asked, asked_rmse), freedom = found["scores"], ASKED[data], found["freedom"]
        return [
            data, found["kernel"], found["experts"], found["rule"], f"{found['temperature']:.3g}",
            f"{freedom:.1f}" if freedom < 1e9 else "∞", f"**{s['nlpd']:.3f}** ({asked})",
            f"{s['gaussian']:.3f}", f"**{s['rmse']:.4f}**" + (f" ({asked_rmse})" if asked_rmse
                                                              else ""),
            f"{found['fit']:.1f}", f"{found['predict']:.1f}",
        ]  # fmt: skip

    def inside(which: tuple[str, int]) -> list[Any]:
        data, splits = which
        every = [kept("defaults", one_default, data, s)["scores"]["inside"] for s in range(splits)]
        shares = [np.mean([e[f"{level:.0%}"] for e in every]) for level in LEVELS]
        return [data, len(every), *(f"{share:.3f}" for share in shares)]

    rows, missing = each(bar(ASKED, "defaults"), row)  # one at a time, for their seconds
    head = ["", "kernel", "experts", "rule", "T", "degrees of freedom", "NLPD (asked)",
            "as a Gaussian", "RMSE (asked)", "fit, s", "predict, s"]  # fmt: skip
    first = table(head, rows) + missing
    fill("defaults", one_default, sorted({(d, s) for d, n in COVERED for s in range(n)}))
    rows, missing = each(COVERED, inside)
    head = ["share of test rows within", "splits", *(f"{level:.0%}" for level in LEVELS)]
    return f"{first}\n{table(head, rows)}{missing}"


def mean_and_error(values: list[float]) -> tuple[float, float]:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def grid() -> str:
    """One table for every set: leave-one-out first, for it decides; the test rows beside."""
    parts = []
    every = [(d, s, c) for d in SPLITS for c in GRID for s in grid_splits(d, c)]
    # the long ones first, so that all processes end at about the same time
    every.sort(
        key=lambda c: ([*SPLITS].index(c[0]), c[2].get("points_per_expert", 500)), reverse=True
    )
    fill("grid", one_of_grid, every)
    for data in SPLITS:

        def row(changes: dict[str, Any], data: str = data) -> list[Any]:
            splits = grid_splits(data, changes)
            every = [kept("grid", one_of_grid, data, s, changes) for s in splits]
            merged = dict(partition="kmeans", partition_metric="auto", points_per_expert=500)
            merged |= changes
            metric = "kernel's" if merged["partition_metric"] == "auto" else "plain"
            cells: list[Any] = [merged["partition"], metric, merged["points_per_expert"]]
            cells += [len(every), f"{np.mean([e['experts'] for e in every]):.0f}"]
            for rule in RULES:
                loo = np.mean([e["loo"][rule] for e in every])
                test = np.mean([e["test"][rule] for e in every])
                cells.append(f"{loo:.3f} / {test:.3f}")
            cells.append(f"{np.mean([e['lml'] for e in every]):.3f}")
            seconds = [np.mean([e["predict"][rule] for e in every]) for rule in ("gpoe", "nested")]
            return [*cells, f"{np.mean([e['fit'] for e in every]):.1f}",
                    *(f"{s:.1f}" for s in seconds)]  # fmt: skip

        rows, missing = each(GRID, row)
        head = ["partition", "metric", "rows each", "splits", "experts", *RULES, "log p per row",
                "fit, s", "gpoe, s", "nested, s"]  # fmt: skip
        parts.append(f"### {data}\n\n" + (table(head, rows) if rows else "") + missing)
    return "\n".join(parts)


def best() -> str:
    def row(data: str) -> list[Any]:
        ours: list[float] = []
        plain: list[float] = []
        singles: dict[str, list[float]] = {}
        for split in splits_of(data):
            found = kept("defaults", one_default, data, split)["scores"]
            ours.append(found["nlpd"])
            plain.append(found["gaussian"])
            for kernel in KERNELS:
                for name, s in kept("kernels", one_kernel, data, split, kernel).items():
                    singles.setdefault(f"{kernel}, {name}", []).append(s)
        name = min(singles, key=lambda n: np.mean(singles[n]))
        mean, _ = mean_and_error(ours)
        top, error = mean_and_error(singles[name])
        apart, apart_error = mean_and_error(list(np.subtract(ours, singles[name])))
        allowed = max(0.01, 2 * apart_error)
        return [
            data, len(ours), f"**{mean:.3f}**", f"{np.mean(plain):.3f}",
            f"{top:.3f} ± {error:.3f}", name,
            f"{apart:+.3f} ± {apart_error:.3f}", f"{allowed:.3f}",
            "yes" if apart <= allowed else "**no**",
        ]  # fmt: skip

    several = [(data, s) for data in (*LARGE, *SMALL) for s in splits_of(data)]
    fill("defaults", one_default, several)
    fill("kernels", one_kernel, ((*which, kernel) for which in several for kernel in KERNELS))
    rows, missing = each(SETS, row)
    head = ["", "splits", "defaults", "as a Gaussian", "best single setting", "which it is",
            "difference", "allowed", "held"]  # fmt: skip
    return table(head, rows) + missing


def cost() -> str:
    """What choosing the kernel costs: the same fit with the kernel given, in the same run."""
    rows = []
    for data in bar((_ARM, *LARGE), "cost"):
        model, _, _, automatic = fit(data, 0, {})
        given = fit(data, 0, dict(kernel=model.kernel_))[3]
        rows.append([data, model.n_experts_, model.kernel_, f"{automatic:.1f}", f"{given:.1f}",
                     f"**{automatic / given:.2f}**"])  # fmt: skip
    head = ["", "experts", "kernel", "kernel='auto', s", "the same kernel given, s", "ratio"]
    return table(head, rows)


PARTS = {"defaults": defaults, "cost": cost, "grid": grid, "best": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*PARTS, "peers"], help="one part")
    parser.add_argument("--kept", action="store_true", help="write what is there, fit nothing")
    options = parser.parse_args(namespace=OPTIONS)
    ExpertGPRegressor(points_per_expert=100, random_state=0).fit(*datasets.robot_arm(500))
    DOCS.mkdir(exist_ok=True)
    timed = {"cost": cost, "peers": lambda: peers.compare(False)}
    for name, run in (PARTS | timed).items():
        if options.only in (None, name) and not (options.kept and name in timed):
            text = run()
            write(KEPT / f"{name}.md", text)
            print(text)
    page = Path(__file__).with_name("choices.md").read_text(encoding="utf-8")
    for name in (*PARTS, "peers"):
        path = KEPT / f"{name}.md"
        there = path.read_text(encoding="utf-8") if path.is_file() else "Not run yet.\n"
        page = page.replace(f"{{{name}}}", there.rstrip("\n"))
    write(DOCS / "choices.md", page.replace("{machine}", machine()))
    print(f"Written to {DOCS / 'choices.md'}")


if __name__ == "__main__":
    main()
