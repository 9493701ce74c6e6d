"""The main job from end to end, on data that needs no download: `python -m healgp.demo`."""

from __future__ import annotations

import time
from typing import Any

from healgp import ExpertGPRegressor, metrics
from healgp.datasets import robot_arm

N_TRAIN, N_TEST, PICTURE = 45_000, 5_000, "pathologies.png"

#: Name, unhealed setting, healed setting (the tempered softmax, its temperature chosen from the
#: training rows).
RULES: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] = [
    ("PoE", dict(aggregation="poe"), None),
    ("gPoE", dict(aggregation="gpoe", weighting="uniform"), dict(aggregation="gpoe")),
    ("BCM", dict(aggregation="bcm"), None),
    ("rBCM", dict(aggregation="rbcm", weighting="entropy"), dict(aggregation="rbcm")),
    ("grBCM", dict(aggregation="grbcm", weighting="entropy"), dict(aggregation="grbcm")),
    ("barycenter", dict(aggregation="barycenter", weighting="uniform"),
     dict(aggregation="barycenter")),
    ("Wasserstein", dict(aggregation="wasserstein", weighting="uniform"),
     dict(aggregation="wasserstein")),
    ("nested", None, dict(aggregation="nested")),
]  # fmt: skip


def main() -> None:
    print(
        f"An 8-link robot arm: from {N_TRAIN:,} noisy observations, where is its end for "
        f"{N_TEST:,} new joint angles?"
    )
    X, y = robot_arm(N_TRAIN + N_TEST)
    X_train, y_train, X_test, y_test = X[:N_TRAIN], y[:N_TRAIN], X[N_TRAIN:], y[N_TRAIN:]

    start = time.perf_counter()
    model = ExpertGPRegressor(random_state=0, verbose=1).fit(X_train, y_train)
    fitted = time.perf_counter()
    settings = [setting for _, *both in RULES for setting in both if setting is not None]
    results = iter(model.predict_many(X_test, settings))
    predicted = time.perf_counter()

    print(
        f"\n{model.n_experts_} experts; fit {fitted - start:.1f} s, predict by "
        f"{len(settings)} rules {predicted - fitted:.1f} s. Chosen from the training rows: "
        f"kernel {model.kernel_},\nrule {model.aggregation_}, temperatures of the healed rules.\n"
    )
    print(f"{'':12} {'unhealed':^24}   {'healed':^24}")
    print(f"{'rule':12} " + "   ".join([f"{'RMSE':>7} {'NLPD':>8} {'in 95 %':>7}"] * 2))
    for name, *both in RULES:
        cells = []
        for setting in both:
            if setting is None:
                cells.append(f"{'–':>7} {'–':>8} {'–':>7}")
                continue
            mean, std = next(results)
            cells.append(
                f"{metrics.rmse(y_test, mean):7.4f} {metrics.nlpd(y_test, mean, std):8.3f} "
                f"{metrics.coverage(y_test, mean, std):7.1%}"
            )
        print(f"{name:12} " + "   ".join(cells))
    print(
        "\nThe noise alone has RMSE 0.0500 and NLPD −1.577. 'in 95 %': the share of observations "
        "within\ntheir 95 % intervals; well below 95 % is over-confident, well above is "
        "under-confident."
    )
    try:
        from healgp.plots import pathologies

        pathologies(PICTURE)
        print(f"What goes wrong, and how it is healed, as a picture: {PICTURE}")
    except ImportError:
        print("For a picture as well: pip install '.[plots]'")


if __name__ == "__main__":
    main()
