"""The experts on a real cluster of worker processes: the same model as on one machine, whatever the
blocks and workers, also when workers are killed."""

import logging
import os
import pickle
import signal
import threading
import time
import weakref
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_digits

pytest.importorskip("distributed", reason="needs the extra dask")

import dask
import dask.array as da
import dask.dataframe as dd
import pandas as pd
from distributed import Client, LocalCluster, get_worker

import healgp
from healgp import ExpertGPClassifier, ExpertGPRegressor, auditing, partition, routing
from healgp.engines import cluster as layout
from healgp.engines import dask as engine
from healgp.engines.rows import Rows
from healgp.estimators.scaling import center_and_scale

RNG = np.random.default_rng(0)
N = 4000
X = RNG.uniform(-3, 3, (N, 3)) * [1, 2, 300]
Y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * RNG.standard_normal(N)
NEW = RNG.uniform(-3, 3, (500, 3)) * [1, 2, 300]
SMALL = dict(points_per_expert=50, random_state=0)
QUICK = dict(SMALL, kernel="rbf", aggregation="gpoe")
RULES = ["gpoe", "rbcm", "grbcm", "barycenter", "nested"]


@pytest.fixture(scope="module")
def cluster():
    # LocalCluster looks again some seconds after a worker has gone, and closes its place for good
    # if a worker there has just been killed: then nobody would start another
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
    ):  # fmt: skip
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture(scope="module")
def local():
    return ExpertGPRegressor(**SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def quick():
    return ExpertGPRegressor(**QUICK).fit(X, Y)


def given(kind, tmp_path):
    if kind == "arrays":
        return X, Y
    if kind == "dask arrays":  # blocks of their own, across the columns too
        return da.from_array(X, chunks=(1300, 2)), da.from_array(Y, chunks=700)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y)
    if kind == "parquet":
        dd.from_pandas(table, npartitions=3).to_parquet(tmp_path / "table")
        table = dd.read_parquet(tmp_path / "table")
    else:
        table = dd.from_pandas(table, npartitions=5)
    return table[["a", "b", "c"]], table["y"]


def same(one, other):
    np.testing.assert_allclose(one.lengthscales_, other.lengthscales_, rtol=1e-8)
    np.testing.assert_array_equal(one.labels_, other.labels_)
    for name in ("temperature_", "aggregation_", "kernel_", "n_iter_"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.log_marginal_likelihood_ == pytest.approx(other.log_marginal_likelihood_, rel=1e-10)
    for a, b in zip(one.predict_many(NEW, [{}]), other.predict_many(NEW, [{}]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["arrays", "dask arrays", "frames", "parquet"])
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_the_same_model_as_on_one_machine(kind, client, local, tmp_path):
    model = ExpertGPRegressor(engine="dask", **SMALL).fit(*given(kind, tmp_path))
    same(model, local)
    if kind in ("arrays", "dask arrays"):
        settings = [{"aggregation": rule, "temperature": 10.0} for rule in RULES]
        for setting, a, b in zip(
            settings, model.predict_many(NEW, settings), local.predict_many(NEW, settings),
            strict=True,
        ):  # fmt: skip
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8, err_msg=str(setting))
        a, b = (m.predict(NEW[:20], return_cov=True)[1] for m in (model, local))
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


def test_grbcm_within_the_memory_of_a_worker(client):
    kw = dict(SMALL, aggregation="grbcm", kernel="rbf", max_iter=0, temperature=10.0)
    expected = ExpertGPRegressor(**kw).fit(X, Y).predict(NEW)
    for budget in (0.0, 1.5e6):
        model = ExpertGPRegressor(engine="dask", memory_budget=budget, **kw).fit(X, Y)
        np.testing.assert_allclose(model.predict(NEW), expected, rtol=1e-8, atol=1e-8)
        kept = [c.kept_bytes() for c in (model._committee, *model._grbcm[:2])]
        assert sum(kept) <= budget
        assert (min(kept) > 0) == (budget > 0)


def test_full_training_and_other_blocks(client, monkeypatch):
    kw = dict(SMALL, training="full", kernel="matern32", aggregation="gpoe", partition="random")
    expected = ExpertGPRegressor(**kw).fit(X, Y)
    for rows in (200, 1500):
        monkeypatch.setattr(layout, "_MOST_ROWS", rows)
        monkeypatch.setattr(layout, "_FEWEST_ROWS", rows)
        same(ExpertGPRegressor(engine="dask", **kw).fit(X, Y), expected)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sparse_experts(client, likelihood):
    y = Y if likelihood == "gaussian" else np.random.default_rng(1).poisson(np.exp(Y / 4))
    kw = dict(
        points_per_expert=400, n_inducing=20, likelihood=likelihood, kernel="rbf", random_state=0,
        max_iter=10,
    )  # fmt: skip
    expected = ExpertGPRegressor(**kw).fit(X, y)
    for A, b in ((X, y), (da.from_array(X, chunks=(900, 3)), da.from_array(y, chunks=900))):
        model = ExpertGPRegressor(engine="dask", **kw).fit(A, b)
        assert model.elbo_ == pytest.approx(expected.elbo_, rel=1e-10)
        a, b = model.predict(NEW, return_std=True), expected.predict(NEW, return_std=True)
        np.testing.assert_allclose(a, b, rtol=1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classes(client):
    D, labels = load_digits(return_X_y=True)
    labels = np.array(["even", "three", "odd"])[np.where(labels == 3, 1, 2 * (labels % 2))]
    kw = dict(points_per_expert=300, n_inducing=20, random_state=0, max_iter=5)
    expected = ExpertGPClassifier(**kw).fit(D, labels)
    p = expected.predict_proba(D[:100])
    for A, b in (
        (D, labels),
        (da.from_array(D, chunks=(500, 64)), da.from_array(labels, chunks=400)),
    ):
        model = ExpertGPClassifier(engine="dask", **kw).fit(A, b)
        np.testing.assert_array_equal(model.classes_, expected.classes_)
        np.testing.assert_allclose(model.predict_proba(D[:100]), p, rtol=1e-8, atol=1e-12)
    lazy = da.from_array(D[:100], chunks=(60, 64))
    np.testing.assert_allclose(model.predict_proba(lazy).compute(), p, rtol=1e-8, atol=1e-12)
    np.testing.assert_array_equal(model.predict(lazy).compute(), expected.predict(D[:100]))
    density = model.log_predictive_density(lazy, labels[:100])
    np.testing.assert_allclose(density, expected.log_predictive_density(D[:100], labels[:100]))


def test_predictions_of_collections_are_lazy(client, local):
    model = ExpertGPRegressor(engine="dask", **SMALL).fit(X, Y)
    new = da.from_array(NEW, chunks=(200, 3))
    mean, std = model.predict(new, return_std=True)
    lower, upper = model.predict_interval(new, 0.9)
    for array in (mean, std, lower, upper):
        assert isinstance(array, da.Array)
        assert array.shape == (500,)
    expected = local.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean.compute(), expected[0], rtol=1e-8)
    np.testing.assert_allclose(std.compute(), expected[1], rtol=1e-8)
    np.testing.assert_allclose(lower.compute(), local.predict_interval(NEW, 0.9)[0], rtol=1e-8)
    frame = dd.from_pandas(pd.DataFrame(NEW, columns=["a", "b", "c"]), npartitions=2)
    np.testing.assert_allclose(model.predict(frame).compute(), expected[0], rtol=1e-8)
    some = frame[frame["a"] > frame["a"].quantile(0.9).compute()].repartition(npartitions=2)
    none = frame.partitions[:1][frame.partitions[:1]["a"] > 1e9]
    mixed = dd.concat([none, some])  # its first partition has no rows
    np.testing.assert_allclose(
        model.predict(mixed).compute(), local.predict(some.compute().to_numpy()), rtol=1e-8
    )
    with pytest.raises(ValueError, match="3 features"):
        model.predict(new[:, :2])


def watched(blocks):
    """The same blocks, of which workers know how many they have brought, and held at most."""

    def brought(block):
        worker, block = get_worker(), block.copy()
        held = [one for one in getattr(worker, "held", []) if one() is not None]
        worker.held = [*held, weakref.ref(block)]
        worker.brought = getattr(worker, "brought", 0) + 1
        worker.most = max(getattr(worker, "most", 0), len(worker.held))
        return block

    return blocks.map_blocks(brought, dtype=float)


def seen(client):
    """Blocks brought, and held at most, since the last time."""

    def numbers(dask_worker):
        found = getattr(dask_worker, "brought", 0), getattr(dask_worker, "most", 0)
        dask_worker.brought, dask_worker.most, dask_worker.held = 0, 0, []
        return found

    return np.sum(list(client.run(numbers).values()), axis=0)


def test_some_blocks_are_under_way_at_a_time(client):
    kw = dict(QUICK, routing=None)
    model, rows = ExpertGPRegressor(engine="dask", **kw).fit(X, Y), NEW[:300]
    expected = ExpertGPRegressor(**kw).fit(X, Y).predict(rows)
    blocks = da.from_array(rows, chunks=(10, 3))
    seen(client)
    mean = model.predict(watched(blocks))
    np.testing.assert_allclose(mean.compute(), expected, rtol=1e-8)
    brought, held = seen(client)
    assert brought == 30
    assert held <= 4  # two for two threads, and what Python has not let go of yet
    np.testing.assert_allclose(mean[:10].compute(), expected[:10], rtol=1e-8)
    assert seen(client)[0] == 1
    np.testing.assert_allclose(mean[-10:].compute(), expected[-10:], rtol=1e-8)
    assert seen(client)[0] == 15


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.persist(),
        lambda rows: rows + 0 * rows.mean(axis=0),  # which needs all blocks
        lambda rows: rows.rechunk((10, 2)),
        lambda rows: rows.rechunk((100, 3)).rechunk((35, 3)),
    ],
)
def test_blocks_that_were_made_in_other_ways(client, quick, made):
    model = ExpertGPRegressor(engine="dask", **QUICK).fit(X, Y)
    mean = model.predict(made(da.from_array(NEW, chunks=(50, 3))))
    np.testing.assert_allclose(mean.compute(), quick.predict(NEW), rtol=1e-8, atol=1e-8)


def test_what_routing_needs_is_found_once_and_travels(client, quick, monkeypatch):
    model = ExpertGPRegressor(engine="dask", **QUICK).fit(X, Y)
    audits, audit = [], auditing.audit
    monkeypatch.setattr(auditing, "audit", lambda *args: audits.append(args) or audit(*args))

    def forbid(dask_worker):
        dask_worker.before = auditing.audit, routing.Guide.__init__, routing.routed
        auditing.audit = routing.Guide.__init__ = None
        dask_worker.routed = []

        def routed(*args):
            dask_worker.routed.append(len(args[1]))
            return dask_worker.before[2](*args)

        routing.routed = routed

    def allow(dask_worker):
        auditing.audit, routing.Guide.__init__, routing.routed = dask_worker.before
        return dask_worker.routed

    new = da.from_array(NEW, chunks=(100, 3))
    client.run(forbid)
    try:
        for _ in range(2):
            mean = model.predict(new).compute()
    finally:
        routed = [n for found in client.run(allow).values() for n in found]
    assert routed == [100] * 10
    assert len(audits) == 1
    np.testing.assert_allclose(mean, quick.predict(NEW), rtol=1e-8, atol=1e-8)
    model._routes.clear()
    model.set_params(routing=None).predict(new)
    assert not model._routes


@pytest.mark.parametrize("way", ["saved", "pickled", "fitted here"])
def test_a_model_from_elsewhere_predicts_collections(way, client, quick, tmp_path):
    model = quick
    if way != "fitted here":
        model = ExpertGPRegressor(engine="dask", **QUICK).fit(X, Y)
    if way == "saved":
        model.save(tmp_path / "model")
        model = healgp.load(tmp_path / "model")
    else:
        model = pickle.loads(pickle.dumps(model))
    found = model.set_params(engine="dask").predict(da.from_array(NEW, chunks=(50, 3)))
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), quick.predict(NEW), rtol=1e-8, atol=1e-8)


def test_targets_that_are_no_collection(client, quick):
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=3)
    series = pd.Series(Y, index=np.arange(N)[::-1])  # the order of rows counts, and not the index
    for A, y in ((da.from_array(X, chunks=(1300, 2)), Y), (frame, series)):
        model = ExpertGPRegressor(engine="dask", **QUICK)
        with pytest.raises(ValueError, match="4000 rows, but y has 3995"):
            model.fit(A, y[:-5])
        with pytest.raises(ValueError, match="0 dimensions"):
            model.fit(A, None)
        same(model.fit(A, y), quick)


def kill_one(client, which=0):
    os.kill(sorted(client.run(os.getpid).values())[which], signal.SIGKILL)


@pytest.mark.parametrize("kind", ["arrays", "dask arrays"])
def test_killed_workers_cost_time_and_nothing_else(kind, client, monkeypatch, tmp_path):
    kw = dict(SMALL, training="full", kernel="rbf")
    expected = ExpertGPRegressor(**kw).fit(X, Y)
    evaluations, objective = [], engine.ShardedCommittee.objective

    def counted(self, theta, threads):
        evaluations.append(theta)
        if len(evaluations) == 3:  # while its tasks are under way
            threading.Timer(0.01, kill_one, (client,)).start()
        return objective(self, theta, threads)

    monkeypatch.setattr(engine.ShardedCommittee, "objective", counted)
    before = set(client.run(os.getpid).values())
    model = ExpertGPRegressor(engine="dask", **kw).fit(*given(kind, tmp_path))
    client.wait_for_workers(2, timeout=60)
    between = set(client.run(os.getpid).values())
    assert len(evaluations) > 4
    assert before != between
    threading.Timer(0.02, kill_one, (client, 1)).start()
    same(model, expected)
    limit = time.monotonic() + 60
    while set(client.run(os.getpid).values()) == between:
        assert time.monotonic() < limit, "nobody was killed"
        same(model, expected)
    same(model, expected)


@pytest.mark.parametrize("kind", ["arrays", "dask arrays"])
def test_a_worker_killed_in_a_lazy_prediction(kind, client, quick, tmp_path):
    model = ExpertGPRegressor(engine="dask", **QUICK).fit(*given(kind, tmp_path))
    dead = tmp_path / "dead"

    def deadly(rows, block_info=None):
        if block_info[0]["chunk-location"][0] == 0 and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    mean = model.predict(da.from_array(NEW, chunks=(50, 3)).map_blocks(deadly, dtype=float))
    shards = [kept.future for kept in model._committee.shards]
    limit = time.monotonic() + 60
    while any(len(workers) != 1 for workers in client.who_has(shards).values()):
        assert time.monotonic() < limit, "a shard never was on one worker alone"
        time.sleep(0.2)
    np.testing.assert_allclose(mean.compute(), quick.predict(NEW), rtol=1e-8, atol=1e-8)
    assert dead.exists()
    same(model, quick)


@pytest.mark.parametrize("kind", ["arrays", "dask arrays"])
def test_a_worker_that_joins_gets_work(kind, cluster, client, monkeypatch, tmp_path):
    kw = dict(SMALL, points_per_expert=300, training="full", kernel="rbf", aggregation="gpoe")
    expected = ExpertGPRegressor(**kw).fit(X, Y)
    evaluations, objective = [], engine.ShardedCommittee.objective
    cluster.scale(1)
    limit = time.monotonic() + 60
    while len(client.nthreads()) > 1:
        assert time.monotonic() < limit, "nobody has left"
        time.sleep(0.05)
    (old,) = client.nthreads()

    def tasks():
        return client.run(lambda dask_worker: dask_worker.state.executed_count)

    def counted(self, theta, threads):
        if len(evaluations) == 3:
            cluster.scale(2)
            client.wait_for_workers(2, timeout=60)
        found = objective(self, theta, threads)
        evaluations.append(tasks())
        return found

    monkeypatch.setattr(engine.ShardedCommittee, "objective", counted)
    model = ExpertGPRegressor(engine="dask", **kw).fit(*given(kind, tmp_path))
    (new,) = set(client.nthreads()) - {old}
    done = [after[new] - before[new] for before, after in pairwise(evaluations[3:])]
    assert min(done) > 0, "it sat out an evaluation"
    shards = [kept.future for kept in model._committee.shards]
    homes = [workers for workers in client.who_has(shards).values() if new in workers]
    assert len(homes) >= len(shards) // 2
    same(model, expected)
    os.kill(client.run(os.getpid)[new], signal.SIGKILL)  # what it was given comes back
    same(model, expected)
    client.wait_for_workers(2, timeout=60)


def test_a_model_leaves_the_cluster_when_it_is_pickled(cluster, local):
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        model = ExpertGPRegressor(engine="dask", **SMALL).fit(X, Y)
        text = pickle.dumps(model)
    same(pickle.loads(text).set_params(engine="local"), local)


def test_without_a_client_the_error_says_how_to_start_one():
    with pytest.raises(ValueError, match="Client\\(\\)"):
        ExpertGPRegressor(engine="dask").fit(X, Y)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda X, y: (da.where(X > 2.9, np.nan, X), y), "X contains NaN"),
        (lambda X, y: (X, da.where(y > 1, np.inf, y)), "y contains NaN"),
        (lambda X, y: (X[:-5], y), "rows"),
        (lambda X, y: (X[:, 0], y), "one dimension"),
        (lambda X, y: (X[:0], y[:0]), "nothing to learn"),
        (lambda X, y: (X, da.stack([y, y], axis=1)), "2 columns"),
        (lambda X, y: (X.astype(str).map_blocks(lambda b: "x" + b, dtype="U9"), y), "number"),
    ],
)
def test_bad_collections(client, change, match):
    A, b = change(da.from_array(X, chunks=(1000, 3)), da.from_array(Y, chunks=1000))
    with pytest.raises((ValueError, TypeError), match=match):
        ExpertGPRegressor(engine="dask", **SMALL).fit(A, b)


def test_partitions_that_need_all_rows_are_refused(client):
    A, b = da.from_array(X, chunks=(1000, 3)), da.from_array(Y, chunks=1000)
    with pytest.raises(ValueError, match="'kmeans' or 'random'"):
        ExpertGPRegressor(engine="dask", partition="balanced").fit(A, b)


def test_rows_of_a_collection(client):
    rows = Rows(da.from_array(X, chunks=(1300, 3)))
    some = np.array([3999, 0, 1300, 1299, 5, 5])
    np.testing.assert_array_equal(rows[some], X[some])
    np.testing.assert_array_equal(((rows - 1.0) / X[0])[some], (X[some] - 1.0) / X[0])
    for a, b in zip(center_and_scale(rows), center_and_scale(X), strict=True):
        np.testing.assert_array_equal(a, b)
    for n in (7, 600):
        labels = [partition.kmeans(A, n, np.random.default_rng(0)) for A in (rows, X)]
        np.testing.assert_array_equal(*labels)


def test_training_begins_again_where_it_does_on_one_machine(client):
    # in 20 columns nothing is near anything from lengthscales of 1; whether that is so is judged by
    # the size of y at the experts of a stage
    rng = np.random.default_rng(0)
    X, job = rng.standard_normal((2560, 20)), dict(points_per_expert=40, random_state=0)
    y = X.sum(axis=1) / np.sqrt(20) + 0.2 * rng.standard_normal(2560)
    job |= dict(partition="random", kernel="rbf", aggregation="gpoe", temperature=10.0)
    here = ExpertGPRegressor(**job).fit(X, y)
    there = ExpertGPRegressor(engine="dask", **job).fit(X, y)
    assert here.lengthscales_.min() > 3.0
    np.testing.assert_allclose(there.lengthscales_, here.lengthscales_, rtol=1e-8)
    assert np.array_equal(there._committee.squares(), here._committee.squares())
