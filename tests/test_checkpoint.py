"""A fit that was killed goes on where it was, to the same model."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from healgp import ExpertGPClassifier, ExpertGPRegressor
from healgp.checkpoint import Journal

FIT = """
import sys
import numpy as np
from healgp import ExpertGPClassifier, ExpertGPRegressor
rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, (4000, 2))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(4000)
MODELS = {
    "exact": (ExpertGPRegressor(points_per_expert=400, kernel="rbf", random_state=0), y),
    "sparse": (ExpertGPRegressor(points_per_expert=400, n_inducing=20, kernel="rbf",
                                 random_state=0, max_iter=30), y),
    "classes": (ExpertGPClassifier(points_per_expert=400, n_inducing=20, random_state=0,
                                   max_iter=20), y > 0),
}
"""


def data_and_model(kind):
    there: dict = {}
    exec(FIT, there)
    return there["X"], *there["MODELS"][kind]


@pytest.mark.parametrize("kind", ["exact", "sparse", "classes"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_killed_fit_goes_on_to_the_same_model(kind, tmp_path):
    X, model, y = data_and_model(kind)
    expected = model.fit(X, y)
    path = tmp_path / "checkpoint"
    code = FIT + (
        f"model, y = MODELS[{kind!r}]\nmodel.set_params(checkpoint={str(path)!r}).fit(X, y)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 120
        while not path.exists() or path.stat().st_size < 500:  # some evaluations
            assert child.poll() is None, "it ended before it was killed"
            assert time.monotonic() < limit
            time.sleep(0.001)
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    assert path.exists()
    _, again, _ = data_and_model(kind)
    again.set_params(checkpoint=path).fit(X, y)
    assert not path.exists()  # it has ended
    np.testing.assert_array_equal(again.lengthscales_, expected.lengthscales_)
    assert again.n_iter_ == expected.n_iter_
    predict = "predict_proba" if kind == "classes" else "predict"
    one, other = getattr(again, predict)(X[:100]), getattr(expected, predict)(X[:100])
    np.testing.assert_array_equal(one, other)


def square(calls):
    def objective(point):
        calls.append(point.copy())
        return float(-(point**2).sum()), -2 * point

    return objective


def test_known_evaluations_are_not_made_again(tmp_path):
    path, calls, points = tmp_path / "j", [], np.random.default_rng(0).random((5, 3))
    with Journal(path, "fit", np.arange(3)) as journal:
        first = [journal.remembered(square(calls))(p) for p in points[:3]]
    assert len(calls) == 3
    with Journal(path, "fit", np.arange(3)) as journal:
        again = [journal.remembered(square(calls))(p) for p in points]
    assert len(calls) == 5
    for (a, g), (b, h) in zip(first, again[:3], strict=True):
        assert a == b
        np.testing.assert_array_equal(g, h)
    # another way than before: what is known beyond it is forgotten
    with Journal(path, "fit", np.arange(3)) as journal:
        evaluate = journal.remembered(square(calls))
        for p in (points[0], points[4], points[1]):
            evaluate(p)
    assert len(calls) == 7
    with Journal(path, "fit", np.arange(3)) as journal:
        evaluate = journal.remembered(square(calls))
        for p in (points[0], points[4], points[1]):
            evaluate(p)
    assert len(calls) == 7


def test_what_is_left_behind_is_put_back_at_the_end_of_what_is_known(tmp_path):
    path, state = tmp_path / "j", np.zeros(2)

    def objective(point):
        state[:] += point
        return float(state.sum()), point

    def remembered(journal):
        return journal.remembered(objective, lambda: [state], lambda s: np.copyto(state, s[0]))

    with Journal(path, 1) as journal:
        evaluate = remembered(journal)
        evaluate(np.array([1.0, 2.0]))
        evaluate(np.array([3.0, 4.0]))
    state[:] = 0.0
    with Journal(path, 1) as journal:
        evaluate = remembered(journal)
        evaluate(np.array([1.0, 2.0]))
        evaluate(np.array([3.0, 4.0]))
        assert evaluate(np.array([1.0, 1.0]))[0] == 12.0


def test_a_record_that_was_cut_off_anywhere_is_made_again(tmp_path):
    path, calls, points = tmp_path / "j", [], np.random.default_rng(0).random((3, 2))
    with Journal(path, "fit") as journal:
        for p in points:
            journal.remembered(square(calls))(p)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        calls.clear()
        with Journal(path, "fit") as journal:
            evaluate = journal.remembered(square(calls))
            values = [evaluate(p)[0] for p in points]
        assert len(calls) >= 1
        np.testing.assert_array_equal(values, -(points**2).sum(axis=1))
        assert path.read_bytes() == whole


def test_others_files_are_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("something of mine")
    with pytest.raises(ValueError, match="did not write"), Journal(path, "fit"):
        pass
    assert path.read_text() == "something of mine"
    path.unlink()
    with Journal(path, "fit") as journal:
        journal.remembered(square([]))(np.ones(2))
    with pytest.raises(ValueError, match="other data or other parameters"), Journal(path, "else"):
        pass
    with pytest.raises(ValueError, match="cannot be read"), Journal(tmp_path / "no" / "j", "fit"):
        pass


def test_a_full_disk_ends_the_file_and_not_the_training(tmp_path):
    """What was written before it was full is of use to the next fit; a first write that fails is
    an error that names the parameter."""
    resource = pytest.importorskip("resource")
    path, calls, points = tmp_path / "j", [], np.random.default_rng(0).random((6, 3))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, before[1]))
        with Journal(path, "fit") as journal:
            evaluate = journal.remembered(square(calls))
            with pytest.warns(UserWarning, match="goes on without it"):
                first = [evaluate(p)[0] for p in points]
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with (
            pytest.raises(ValueError, match=r"checkpoint=.*cannot be"),
            Journal(tmp_path / "other", "fit"),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(calls) == len(points)
    with Journal(path, "fit") as journal:
        evaluate = journal.remembered(square(calls))
        np.testing.assert_array_equal([evaluate(p)[0] for p in points], first)
    assert len(points) < len(calls) < 2 * len(points)


def test_it_needs_a_seed():
    X = np.arange(20.0)[:, None]
    with pytest.raises(ValueError, match="random_state"):
        ExpertGPRegressor(checkpoint="x").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="random_state"):
        ExpertGPClassifier(checkpoint="x").fit(X, X[:, 0] > 3)
    with pytest.raises(ValueError, match="checkpoint=3"):
        ExpertGPRegressor(checkpoint=3, random_state=0).fit(X, X[:, 0])
