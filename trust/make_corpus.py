"""Writes the corpus of the fuzzer anew: four small models and a table in every format."""

from __future__ import annotations

import shutil

import numpy as np

from healgp import ExpertGPClassifier, ExpertGPRegressor
from healgp.tables import TableModel, pd, write
from trust.fuzz import CORPUS


def main() -> None:
    shutil.rmtree(CORPUS, ignore_errors=True)
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (24, 2))
    y = np.sin(X[:, 0])
    shared = {"points_per_expert": 8, "max_iter": 1, "random_state": 0}
    models = CORPUS / "models"
    ExpertGPRegressor(kernel="rbf", **shared).fit(X, y).save(models / "exact")
    ExpertGPClassifier(n_inducing=3, **shared).fit(X, np.digitize(y, [-0.5, 0.5])).save(
        models / "classes"
    )
    grown = ExpertGPRegressor(kernel="rbf", aggregation="gpoe", **shared).fit(X[:16], y[:16])
    grown.partial_fit(X[16:], y[16:]).save(models / "grown")
    table = pd.DataFrame(X, columns=["a", "b"]).assign(
        kind=["x", "y", None] * 8, day=pd.date_range("2020-01-01", periods=24), target=y
    )
    TableModel.fit(table[["a", "kind", "target"]], "target", kernel="rbf", **shared).save(
        models / "table"
    )
    (CORPUS / "tables").mkdir()
    for suffix in ("csv", "tsv", "parquet", "feather", "csv.gz"):
        write(table, CORPUS / "tables" / f"table.{suffix}")


if __name__ == "__main__":
    main()
