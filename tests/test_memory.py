"""A memory budget changes what is kept, never what is predicted."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from healgp import ExpertGPClassifier, ExpertGPRegressor
from healgp.engines.local import memory

SHARED = dict(points_per_expert=50, random_state=0, max_iter=0)


def kept_by(model):
    """Bytes of factors: the committee's, and those of the two that grBCM has besides."""
    more = model._grbcm[:2] if model._grbcm else ()
    return [committee.factors.nbytes for committee in (model._committee, *more)]


@pytest.mark.parametrize("rule", ["gpoe", "nested", "grbcm"])
def test_predictions_do_not_depend_on_the_budget(wave, rule):
    X, y, new = wave
    answers, kept = [], []
    for budget in (None, 0.0, 40_000.0, 100_000.0):
        model = ExpertGPRegressor(
            kernel="rbf", aggregation=rule, temperature=10.0, memory_budget=budget, **SHARED
        ).fit(X, y)
        answers.append(model.predict(new, return_std=True))
        kept.append(sum(kept_by(model)))
        assert budget is None or kept[-1] <= budget
    for answer in answers[1:]:
        assert np.array_equal(answer, answers[0])
    assert kept[1] == 0 < kept[2] < kept[3] < kept[0]


def test_what_the_committee_leaves_is_for_grbcm(wave):
    X, y, new = wave
    budget = 200_000.0
    model = ExpertGPRegressor(
        kernel="rbf", aggregation="grbcm", temperature=10.0, memory_budget=budget, **SHARED
    ).fit(X, y)
    said = model.predict(new)
    assert min(kept_by(model)) > 0
    assert sum(kept_by(model)) <= budget
    # as it does where the committee is prepared last
    again = pickle.loads(pickle.dumps(model))
    again._grbcm = None
    np.testing.assert_array_equal(again.predict(new), said)
    again.predict_many(new, [{"aggregation": "gpoe"}])
    assert kept_by(again) == kept_by(model)


def test_classes_do_not_depend_on_the_budget(wave):
    X, y, new = wave
    answers = [
        ExpertGPClassifier(n_inducing=10, memory_budget=budget, **SHARED)
        .fit(X, y > 0)
        .predict_proba(new)
        for budget in (None, 0.0)
    ]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-9)


def test_the_machine_has_some_memory():
    assert 2**27 < memory() < 2**50


LIMITED = """
import resource, sys
import numpy as np
from healgp import ExpertGPRegressor
from healgp.engines.local import memory
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (6000, 2))
y = np.sin(X[:, 0])
shared = dict(kernel="rbf", max_iter=1, random_state=0, n_jobs=1, aggregation="gpoe")
ExpertGPRegressor(points_per_expert=100, **shared).fit(X, y).predict(X)  # all code is there
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150 * 2**20, -1))
assert memory() < 151 * 2**20
few = ExpertGPRegressor(points_per_expert=100, **shared).fit(X, y)
assert np.abs(few.predict(X) - y).max() < 0.2
assert few._committee._factors.nbytes < 40 * 2**20
try:
    ExpertGPRegressor(points_per_expert=None, **shared).fit(X, y)
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_address_space_limit_is_kept_or_named():
    """Within the limit it works with less; beyond it the error says what to change."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "points_per_expert" in done.stdout
    assert "memory_budget" in done.stdout


UNCOMPILED = """
import resource
import numpy as np
from healgp import ExpertGPRegressor
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {} * 2**20, -1))
try:
    ExpertGPRegressor(kernel="rbf").fit(np.arange(40.0)[:, None], np.arange(40.0))
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("megabytes", "said"), [(30, "compiled code"), (150, "compiling")])
def test_without_room_for_compiled_code(megabytes, said, tmp_path):
    """LLVM would end the process."""
    done = subprocess.run(
        [sys.executable, "-c", UNCOMPILED.format(megabytes)], capture_output=True, text=True,
        check=False, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "ulimit -v" in done.stdout


@pytest.mark.parametrize("budget", [-1.0, "much"])
def test_nonsense_is_refused(wave, budget):
    with pytest.raises(ValueError, match="memory_budget"):
        ExpertGPRegressor(memory_budget=budget).fit(wave[0], wave[1])
