"""Data flow one way: a module imports only from those before it in the line."""

import ast
from pathlib import Path

import healgp

ROOT = Path(healgp.__file__).parent

#: In the order of the data's way; a module may import from its own line and those above.
LINE = [
    ["checks", "checkpoint", "progress", "room"],
    ["jit", "linalg", "metrics", "datasets"],
    ["deviations"],
    ["kernels", "partition"],
    ["engines.local"],
    ["quadrature"],
    ["likelihoods"],
    ["experts.exact", "experts.stages", "experts.asking"],
    ["experts.factors", "experts.variational"],
    ["experts.brief"],
    ["experts.committee"],
    ["experts.sparse"],
    ["engines.shards"],
    ["engines.cluster"],
    ["engines.dask"],
    ["engines.dask_sparse"],
    ["engines.rows"],
    ["training"],
    ["selection"],
    ["weights"],
    ["aggregation"],
    ["prediction"],
    ["routing"],
    ["nested", "calibration", "streaming"],
    ["joint", "auditing"],
    ["estimators.scaling", "estimators.validation", "storage"],
    ["encoding"],
    ["persistence"],
    ["estimators.choosing"],
    ["estimators.base"],
    ["estimators.partial"],
    ["estimators.regressor", "estimators.classifier"],
    ["columns"],
    ["tables", "evidence"],
    ["diagnosis"],
    ["plots.style"],
    ["plots.fits", "plots.experts", "plots.quality", "plots.choices"],
    ["plots.pathologies"],
    ["", "plots"],
    ["report.facts"],
    ["report.pictures"],
    ["report.page"],
    ["report"],
    ["demo"],
    ["experiments.protocol"],
    ["experiments.cells"],
    ["experiments.tables"],
    ["experiments.figures"],
    ["experiments.reproduce"],
    ["commands"],
    ["cli"],
]
RANK = {name: i for i, names in enumerate(LINE) for name in names}


def modules():
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix("__init__").rstrip("."), path


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_modules_import_only_from_those_before_them():
    for name, path in modules():
        if name in ("experts", "engines", "estimators", "experiments"):
            assert not list(imports(path))
            continue
        for imported in imports(path):
            inner = imported.removeprefix("healgp.")
            if imported.startswith("healgp.") and inner in RANK:
                assert RANK[inner] <= RANK[name], f"{name} imports {inner}"


def test_the_numerical_core_knows_no_estimators_no_cluster_and_no_pictures():
    core = {name for names in LINE[: LINE.index(["prediction"]) + 1] for name in names}
    core.remove("partition")  # k-means is scikit-learn's
    core = {name for name in core if not name.startswith("engines.")}  # engines know clusters
    for name, path in modules():
        if name in core:
            for imported in imports(path):
                assert not imported.startswith(
                    ("dask", "distributed", "matplotlib", "sklearn.base")
                )


def test_docs_name_functions_that_exist():
    import importlib
    import re

    table = (ROOT.parent.parent / "docs" / "equations.md").read_text()
    names = re.findall(r"`(healgp\.[\w.]+)`", table)
    assert len(names) > 15
    for name in names:
        module, attribute = name.rsplit(".", 1)
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError:
            module, cls = module.rsplit(".", 1)
            owner = getattr(importlib.import_module(module), cls)
        assert hasattr(owner, attribute), name
