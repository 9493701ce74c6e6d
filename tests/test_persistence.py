"""Saved models: what comes back is the same bit for bit, and broken files are refused."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import textwrap
import time

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

import healgp
from healgp import ExpertGPClassifier, ExpertGPRegressor, load, persistence, storage
from healgp.aggregation import RULES
from healgp.weights import WEIGHTINGS

# training ends early, for these models need not be good
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SPARSE_RULES = [rule for rule in RULES if rule != "grbcm"]
BEFORE = {"temperature": 50.0, "max_iter": 3, "random_state": 0}


def rows(n=240, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * rng.standard_normal(n)


def regressor(y_of=lambda y: y, **changes):
    X, y = rows()
    parameters = {"points_per_expert": 40, "kernel": "rbf", "random_state": 0, "max_iter": 5}
    return ExpertGPRegressor(**(parameters | changes)).fit(X, y_of(y))


def classifier(n_classes, names=None, **changes):
    X, y = rows()
    labels = np.digitize(y, np.quantile(y, np.linspace(0, 1, n_classes + 1)[1:-1]))
    labels = labels if names is None else np.asarray(names)[labels]
    parameters = {"points_per_expert": 80, "n_inducing": 10, "max_iter": 2, "random_state": 0}
    return ExpertGPClassifier(**(parameters | changes)).fit(X, labels)


def counts(y):
    return np.floor(np.exp(1 + y))


MODELS = {
    "all chosen": lambda: regressor(kernel="auto"),
    "one expert": lambda: regressor(points_per_expert=None),
    "grbcm": lambda: regressor(aggregation="grbcm", kernel="rational_quadratic"),
    "y-space": lambda: regressor(space="y", aggregation="rbcm", partition="random"),
    "isotropic, as it is": lambda: regressor(ard=False, standardize=False, aggregation="nested"),
    "routed": lambda: regressor(points_per_expert=6, aggregation="gpoe", routing_tol=0.1),
    "nested, routed": lambda: regressor(points_per_expert=3, aggregation="nested", n_nearest=2),
    "sparse": lambda: regressor(n_inducing=8),
    "sparse, one expert": lambda: regressor(n_inducing=8, points_per_expert=None),
    "counts": lambda: regressor(counts, likelihood="poisson", n_inducing=8),
    "two classes": lambda: classifier(2, ["no", "yes"]),
    "three classes": lambda: classifier(3),
    "robustmax": lambda: classifier(3, np.array(["a", "b", "cc"], object), likelihood="robustmax"),
    "classes that are numbers": lambda: classifier(2, [-1.0, 2.0]),
    "classes that are truth": lambda: classifier(2, [False, True]),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    return MODELS[request.param]()


def settings_of(model):
    """Every rule, weighting and space that the model has."""
    regression = isinstance(model, ExpertGPRegressor)
    exact = isinstance(model._committee, persistence.Committee)
    gaussian = regression and model.likelihood == "gaussian"
    for rule in [*RULES, "nested"] if exact else SPARSE_RULES:
        # the nested rule has no weights; each softmax of many experts would audit a route first
        few = rule == "nested" or model.n_experts_ > 30
        for weighting in ("softmax_variance",) if few else WEIGHTINGS:
            for space in ("f", "y") if gaussian else ("f",):
                setting = {"aggregation": rule, "weighting": weighting, "temperature": 30.0}
                yield setting | ({"space": space} if regression else {})


def same(one, other):
    one, other = (v if isinstance(v, tuple | list) else [v] for v in (one, other))
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        if isinstance(a, tuple | list):
            same(a, b)
        else:
            assert np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_array_equal(a, b)


def same_predictions(model, again):
    new, target = rows(60, seed=1)
    same(model.predict(new), again.predict(new))
    if isinstance(model, ExpertGPClassifier):
        same(model.predict_proba(new), again.predict_proba(new))
        assert again.classes_.dtype == model.classes_.dtype
        target = model.predict(new)
    else:
        same(model.predict(new, return_std=True), again.predict(new, return_std=True))
        same(model.predict_interval(new), again.predict_interval(new))
        target = target if model.likelihood == "gaussian" else counts(target)
    same(model.log_predictive_density(new, target), again.log_predictive_density(new, target))
    same(model.expert_moments(new), again.expert_moments(new))


def test_every_rule_and_weighting_bit_for_bit(fitted, tmp_path):
    new = rows(60, seed=1)[0]
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model")
    same_predictions(fitted, again)
    settings = list(settings_of(fitted))
    same(fitted.predict_many(new, settings), again.predict_many(new, settings))
    for name in ("temperature_", "aggregation_", "aggregation_scores_", "kernel_", "kernel_scores_",
                 "n_experts_", "n_iter_", "signal_variance_"):  # fmt: skip
        assert getattr(again, name) == getattr(fitted, name)
    assert again.get_params() == fitted.get_params()
    same(again.labels_, fitted.labels_)
    assert set(vars(again)) == set(vars(fitted))


def test_what_was_chosen_is_kept_and_not_chosen_again(tmp_path):
    model = regressor(aggregation="auto", points_per_expert=6, routing_tol=0.1)
    new = rows(60, seed=1)[0]
    model.predict_many(new, [{}, {"aggregation": "rbcm"}, {"space": "y"}])
    model.save(tmp_path)
    again = load(tmp_path)
    assert list(again._curves) == list(model._curves)
    for mine, its in zip(model._curves.values(), again._curves.values(), strict=True):
        same([mine.temperatures, mine.nlpd], [its.temperatures, its.nlpd])
    assert again._rules == model._rules
    assert len(again._rules) > 0
    assert again._routes == model._routes
    assert len(again._routes) > 0
    # another setting, which the first has not worked out, comes out the same as well
    for one in (model, again):
        one.set_params(weighting="softmax_entropy")
    assert again.temperature_ == model.temperature_
    same_predictions(model, again)


@pytest.mark.parametrize("make", [regressor, lambda: classifier(3)])
def test_a_calibrated_model(make, tmp_path):
    model = make()
    new, target = rows(100, seed=2)
    before = model.temperature_curve_[1]
    if isinstance(model, ExpertGPClassifier):
        target = model.predict(new)
    model.calibrate(new, target).save(tmp_path)
    again = load(tmp_path)
    assert not np.array_equal(model.temperature_curve_[1], before)
    same(model.temperature_curve_, again.temperature_curve_)
    same_predictions(model, again)


def test_covariances_and_draws(tmp_path):
    new = rows(20, seed=1)[0]
    for rule in ("nested", "grbcm", "wasserstein"):
        model = regressor(aggregation=rule)
        model.save(tmp_path)
        again = load(tmp_path)
        same(model.predict(new, return_cov=True), again.predict(new, return_cov=True))
        same(model.sample_y(new, 3, random_state=1), again.sample_y(new, 3, random_state=1))


def test_names_of_columns(tmp_path):
    X, y = rows()
    table = pd.DataFrame(X, columns=["länge", "width"])
    model = ExpertGPRegressor(**BEFORE).fit(table, y)
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.feature_names_in_.tolist() == ["länge", "width"]
    assert again.feature_names_in_.dtype == object
    same(model.predict(table), again.predict(table))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(table[["width", "länge"]])


def test_parameters_that_json_has_no_word_for(tmp_path):
    X, y = rows()
    labels = np.array(["b", "a", "c"])[np.arange(len(y)) % 3]
    state = np.random.RandomState(3)
    model = ExpertGPRegressor(
        partition=labels, lengthscale=np.array([1.0, 2.0]), random_state=state,
        temperature=np.float64(40), points_per_expert=np.int64(80), max_iter=2,
    ).fit(X, y)  # fmt: skip
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    same([labels, model.lengthscale], [again.partition, again.lengthscale])
    same(again.random_state.standard_normal(3), state.standard_normal(3))
    same(clone(again).set_params(random_state=5).fit(X, y).predict(X),
         clone(model).set_params(random_state=5).fit(X, y).predict(X))  # fmt: skip

    model = ExpertGPRegressor(partition=lambda X, n, rng: X[:, 0] > 0, **BEFORE).fit(X, y)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    same(again.partition, model.labels_)
    assert "callable" in json.loads((tmp_path / "m" / "model.json").read_text())["notes"][0]
    same(model.predict(X), again.predict(X))
    same(clone(again).fit(X, y).predict(X), model.predict(X))

    model = ExpertGPRegressor(checkpoint=tmp_path / "journal", **BEFORE).fit(X, y)
    model.save(tmp_path / "with")
    assert load(tmp_path / "with").checkpoint is None
    assert model.checkpoint == tmp_path / "journal"

    dates = pd.Series(pd.date_range("2020-01-01", periods=2)).take(np.arange(len(y)) % 2)
    model = ExpertGPRegressor(partition=dates, **BEFORE).fit(X, y)
    model.save(tmp_path / "m")
    same(load(tmp_path / "m").partition, dates.to_numpy())
    with pytest.raises(ValueError, match=r"parameters.n_jobs|verbose.*cannot be saved"):
        model.set_params(verbose=object()).save(tmp_path / "m")
    assert load(tmp_path / "m").verbose == 0


def test_what_cannot_be_saved(tmp_path):
    X, y = rows()
    with pytest.raises(NotFittedError):
        ExpertGPRegressor().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()

    class Mine(ExpertGPRegressor):
        pass

    with pytest.raises(ValueError, match="Mine cannot be saved"):
        Mine(**BEFORE).fit(X, y).save(tmp_path / "model")
    model = ExpertGPRegressor(**BEFORE).fit(X, y)
    with pytest.raises(ValueError, match="max_iter"):
        model.set_params(max_iter="many").save(tmp_path / "model")
    model.set_params(max_iter=3)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        model.save(tmp_path / "file")
    with pytest.raises(ValueError, match="other files"):
        model.save(tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.json").write_text('{"modelTopology": {}}')
    with pytest.raises(ValueError, match="not a model of healgp"):
        model.save(tmp_path / "theirs")


def test_a_model_replaces_another_and_leaves_nothing(tmp_path):
    one, other = regressor(), classifier(3)
    one.save(tmp_path / "deep" / "model")
    first = {file.name for file in (tmp_path / "deep" / "model").iterdir()}
    one.save(tmp_path / "deep" / "model")
    assert {file.name for file in (tmp_path / "deep" / "model").iterdir()} == first
    other.save(tmp_path / "deep" / "model")
    same_predictions(other, load(tmp_path / "deep" / "model"))
    left = {file.name for file in (tmp_path / "deep" / "model").iterdir()}
    assert len(left) == 2
    assert left & first == {"model.json"}
    (tmp_path / "deep" / "model" / ".saving-0123456789abcdef").touch()  # of one that was killed
    one.save(tmp_path / "deep" / "model")
    assert len(list((tmp_path / "deep" / "model").iterdir())) == 2


# ---- files that are not whole ------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = regressor(points_per_expert=60)
    model.save(folder)
    return model, folder


@pytest.fixture
def copied(saved, tmp_path):
    for file in saved[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return saved[0], tmp_path, next(tmp_path.glob("arrays-*"))


def loaded(folder):
    """The model, or None after an error that names the folder."""
    try:
        return load(folder)
    except ValueError as error:
        message = str(error)
    assert str(folder) in message
    return None


@pytest.mark.parametrize("which", ["record", "arrays"])
@pytest.mark.parametrize("harm", ["flip", "cut", "insert"])
def test_damage_is_found_or_does_no_harm(copied, which, harm):
    model, folder, arrays = copied
    file = folder / "model.json" if which == "record" else arrays
    whole, rng, new = file.read_bytes(), np.random.default_rng(0), rows(5, seed=1)[0]
    ends = [0, 1, 7, 8, 9, 10, len(whole) - 1]
    expected, refused = model.predict(new), 0
    for at in [*ends, *rng.integers(0, len(whole), 60), *rng.integers(0, 300, 20)]:
        changed = bytearray(whole)
        if harm == "flip":
            changed[at] ^= 1 << int(rng.integers(8))
        elif harm == "cut":
            del changed[at:]
        else:
            changed[at:at] = bytes([int(rng.integers(256))])
        file.write_bytes(changed)
        again = loaded(folder)
        if again is None:
            refused += 1
        else:
            same(again.predict(new), expected)
    assert refused > 70 if which == "arrays" else refused > 40
    file.write_bytes(whole)
    same(load(folder).predict(new), expected)


def forge(folder, change):
    """Changes the record and gives it the checksum that belongs to it."""
    record = json.loads((folder / "model.json").read_text())
    change(record)
    record.pop("sha256", None)
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    record["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "model.json").write_text(json.dumps(record))


def paths(tree, at=()):
    """Every place in a tree of JSON."""
    yield at
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from paths(value, (*at, key))
        else:
            yield (*at, key)


def put(record, at, value):
    for key in at[:-1]:
        record = record[key]
    record[at[-1]] = value


OTHERS = [None, True, -1, 0, 10**400, 1.5, "text", [], [1, "a"], {}, {"$": "Setting"},
          {"$": "array", "name": "labels"}, {"$": "os.system"}, {"$": ["a"]},
          {"$": "tuple", "items": 3}]  # fmt: skip


def test_forged_records_are_refused_or_predict(copied):
    """Every value of the record in turn becomes one of another type, with the right checksum."""
    _, folder, _ = copied
    whole, new = (folder / "model.json").read_text(), rows(5, seed=1)[0]
    places = [at for at in paths(json.loads(whole)) if at and at != ("sha256",)]
    rng, refused = np.random.default_rng(0), 0
    for at in places:
        for other in rng.permutation(np.array(OTHERS, dtype=object))[:4]:
            (folder / "model.json").write_text(whole)
            forge(folder, lambda record, at=at, other=other: put(record, at, other))
            again = loaded(folder)
            if again is None:
                refused += 1
                continue
            with contextlib.suppress(ValueError):
                again.predict(new)
    assert refused > 2 * len(places)


def test_forged_arrays_are_refused(copied):
    """Arrays of other sizes and with other values, described as they are."""
    _, folder, _ = copied
    with storage.opened(folder) as (_, arrays):
        whole = {name: arrays[name] for name in arrays._described}
    record = json.loads((folder / "model.json").read_text())
    changes = {
        "shorter": lambda a: a[..., :-1], "longer": lambda a: np.concatenate([a, a], axis=-1),
        "flat": lambda a: a.reshape(-1, 1), "others": lambda a: -a - 1, "huge": lambda a: a + 2**40,
        "narrow": lambda a: a.astype("float32"), "nan": lambda a: a * np.nan,
    }  # fmt: skip
    needed = ("committee.XT", "committee.y", "committee.offsets", "committee.theta.lengthscales",
              "scaling.x_scale", "calibration_rows", "communication")  # fmt: skip
    for name in needed:
        for what, change in changes.items():
            if (name, what) in {("committee.XT", "others"), ("committee.y", "others"),
                                ("committee.XT", "huge"), ("committee.y", "huge"),
                                ("scaling.x_scale", "huge"), ("calibration_rows", "shorter"),
                                ("communication", "shorter"),
                                ("committee.theta.lengthscales", "huge")}:  # fmt: skip
                continue  # other numbers, and a model still
            kept = {key: value for key, value in record.items() if key not in ("arrays", "sha256")}
            storage.write(folder, kept, whole | {name: np.asarray(change(whole[name]), order="C")})
            with pytest.raises(ValueError, match="does not describe a model"):
                load(folder)


def test_sites_from_which_no_posterior_can_be_made_are_an_error(tmp_path):
    model = classifier(3)
    model._committee.sites.weight[:] = 1e308
    model._committee.sites.shift[:] = -1e308
    model.save(tmp_path)
    with pytest.raises(ValueError, match=r"posterior of expert 0 .* Fit the model again"):
        load(tmp_path).predict(rows(5)[0])


def test_missing_newer_and_foreign_files(copied):
    _, folder, arrays = copied
    forge(folder, lambda record: record.update(format_version=2, library_version="9.0"))
    with pytest.raises(ValueError, match=r"model.json was saved by a newer healgp \(9.0\)"):
        load(folder)
    forge(folder, lambda record: record.update(format_version=1))
    load(folder)
    for name in ("../../etc/passwd", str(arrays.absolute()), "arrays-xyz.safetensors"):
        kept = json.loads((folder / "model.json").read_text())["arrays"]["file"]
        forge(folder, lambda record, name=name: record["arrays"].update(file=name))
        with pytest.raises(ValueError, match=r"model.json does not say which arrays"):
            load(folder)
        forge(folder, lambda record, kept=kept: record["arrays"].update(file=kept))
    (folder / "model.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"model.json is damaged"):
        load(folder)
    (folder / "model.json").write_text('{"format": NaN}')
    with pytest.raises(ValueError, match=r"model.json is damaged"):
        load(folder)
    (folder / "model.json").unlink()
    with pytest.raises(ValueError, match=r"model.json does not exist"):
        load(folder)
    with pytest.raises(ValueError, match="does not exist"):
        load(folder / "nowhere")


def test_missing_arrays_and_a_huge_size(copied):
    _, folder, arrays = copied
    header = json.dumps({"labels": {"dtype": "F64", "shape": [2**50], "data_offsets": [0, 2**53]}})
    arrays.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(ValueError, match=arrays.name):
        load(folder)
    arrays.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match=arrays.name):
        load(folder)
    arrays.unlink()
    with pytest.raises(ValueError, match=f"{arrays.name} is missing"):
        load(folder)


# ---- killed while saving -----------------------------------------------------------------------

KILLED = """
    import os, pickle, shutil, signal, sys
    from healgp import load
    folder, old, new, X = sys.argv[1], *(pickle.load(open(name, "rb")) for name in sys.argv[2:])
    SOME = ("open", "os.rename", "os.remove", "os.chmod", "os.mkdir", "fcntl.flock")
    names = {old.predict(X).tobytes(): "old", new.predict(X).tobytes(): "new"}

    def save_and_be_killed(last):
        # every opening, renaming and removal of a file in the folder is a step
        steps = 0

        def hook(event, arguments):
            nonlocal steps
            if event in SOME and (event == "fcntl.flock" or folder in str(arguments[0])):
                steps += 1
                if steps == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        new.save(folder)
        os._exit(0)

    for before in (None, old):
        ended, step = None, 0
        while ended != 0:
            step += 1
            shutil.rmtree(folder, ignore_errors=True)
            if before is not None:
                before.save(folder)
            child = os.fork()
            if child == 0:
                save_and_be_killed(step)
            ended = os.waitpid(child, 0)[1]
            assert ended in (0, signal.SIGKILL), ended
            try:
                found = names[load(folder).predict(X).tobytes()]
            except ValueError as error:
                assert "model.json does not exist" in str(error)
                found = "none"
            print(found, end=" ")
            old.save(folder)
            assert len(os.listdir(folder)) == 2  # what the killed one left is gone
        print()
"""


@pytest.fixture
def two(tmp_path):
    """Two models, pickled as files, and rows."""
    one, other, new = regressor(), regressor(points_per_expert=60), rows(5, seed=1)[0]
    for name, value in (("one", one), ("other", other), ("rows", new)):
        (tmp_path / name).write_bytes(pickle.dumps(value))
    return one, other, new


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no SIGKILL")
def test_killed_at_every_step(two, tmp_path):
    files = [tmp_path / name for name in ("model", "one", "other", "rows")]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), *files],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, over = (line.split() for line in done.stdout.splitlines())
    for found, before in ((first, "none"), (over, "old")):
        # for some steps what was there before, and from one step on the new model
        turn = found.index("new")
        assert turn > 5
        assert found == [before] * turn + ["new"] * (len(found) - turn)


SAVING = """
    import pickle, sys
    folder, models = sys.argv[1], [pickle.load(open(name, "rb")) for name in sys.argv[2:]]
    while True:
        for model in models:
            model.save(folder)
            print("saved", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_at_any_time_and_read_meanwhile(two, tmp_path):
    one, other, new = two
    wanted = {model.predict(new).tobytes() for model in (one, other)}
    command = [sys.executable, "-c", textwrap.dedent(SAVING), tmp_path / "model", tmp_path / "one",
               tmp_path / "other"]  # fmt: skip
    rng = np.random.default_rng(0)
    # two that save, and one that reads
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        end = time.monotonic() + rng.uniform(0.2, 0.6)
        while time.monotonic() < end:
            assert load(tmp_path / "model").predict(new).tobytes() in wanted
        assert writer.poll() is None
        writer.kill()
        writer.communicate()
    assert load(tmp_path / "model").predict(new).tobytes() in wanted


def test_a_full_disk_leaves_the_old_model(copied, monkeypatch):
    model, folder, _ = copied
    other, before = regressor(), sorted(file.name for file in folder.iterdir())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        other.save(folder)
    with pytest.raises(OSError, match="No space"):
        other.save(folder / ".." / "new")
    monkeypatch.undo()
    assert sorted(file.name for file in folder.iterdir()) == before
    same_predictions(model, load(folder))
    assert not (folder / ".." / "new").exists()


@pytest.mark.parametrize("rule", ["gpoe", "grbcm"])
def test_a_model_that_has_grown_goes_on(rule, tmp_path):
    X, y = rows(400)
    model = regressor(aggregation=rule, points_per_expert=30)
    for part in (slice(0, 50), slice(50, 60), slice(60, 250)):
        model.partial_fit(X[part] + 0.5, y[part])
    model.save(tmp_path)
    again, new = load(tmp_path), rows(60, seed=1)[0]
    for _ in range(2):
        np.testing.assert_allclose(again.predict(new), model.predict(new), rtol=1e-9, atol=1e-12)
        same(again.labels_, model.labels_)
        for one in (model, again):
            one.partial_fit(X[250:] - 0.5, y[250:])
    forge(tmp_path, lambda record: record["fitted"]["_arrivals"].update(n_rows=10**9))
    with pytest.raises(ValueError, match="labels is not as a model has it"):
        load(tmp_path)


@pytest.mark.parametrize("changes", [{}, {"n_inducing": 8}])
def test_experts_on_a_cluster_are_saved_as_of_one_machine(changes, tmp_path):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(1, threads_per_worker=1, processes=False,
                                       dashboard_address=":0")  # fmt: skip
    with cluster, distributed.Client(cluster):
        model = regressor(engine="dask", **changes)
        model.save(tmp_path / "model")
        new = rows(60, seed=1)[0]
        there = model.predict(new)
    again, local = load(tmp_path / "model"), regressor(**changes)
    for one, other in zip(again.predict(new, return_std=True),
                          local.predict(new, return_std=True), strict=True):  # fmt: skip
        np.testing.assert_allclose(one, other, rtol=1e-14)
    # what was chosen on left-out rows was chosen on sums over shards, which round in another order
    local._curves, local._rules = again._curves, again._rules
    same_predictions(local, again)
    np.testing.assert_allclose(again.predict(new), there, rtol=1e-10, atol=1e-12)


# ---- the other ways ----------------------------------------------------------------------------


def test_pickle_joblib_and_skops(fitted, tmp_path):
    same_predictions(fitted, pickle.loads(pickle.dumps(fitted)))
    joblib.dump(fitted, tmp_path / "model.joblib")
    same_predictions(fitted, joblib.load(tmp_path / "model.joblib"))
    dumped = skops.io.dumps(fitted)
    trusted = skops.io.get_untrusted_types(data=dumped)
    assert all(name.startswith("healgp.") for name in trusted)
    same_predictions(fitted, skops.io.loads(dumped, trusted=trusted))


def test_in_a_pipeline_by_skops():
    from sklearn.preprocessing import StandardScaler

    X, y = rows()
    model = make_pipeline(StandardScaler(), ExpertGPRegressor(**BEFORE)).fit(X, y)
    stream = io.BytesIO(skops.io.dumps(model))
    trusted = skops.io.get_untrusted_types(data=stream.getvalue())
    same(model.predict(X), skops.io.loads(stream.getvalue(), trusted=trusted).predict(X))


def test_versions_are_said(saved):
    record = json.loads((saved[1] / "model.json").read_text())
    assert record["library_version"] == healgp.__version__
    assert record["format_version"] == storage.VERSION
    assert record["class"] == "ExpertGPRegressor"
    assert record["schema"] == {"n_features": 2, "feature_names": None}
