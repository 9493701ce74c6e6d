"""A memory budget changes what is kept, never what is predicted."""

import numpy as np
import pytest

from healgp import ExpertGPClassifier, ExpertGPRegressor
from healgp.engines.local import memory

SHARED = dict(points_per_expert=50, random_state=0, max_iter=0)


@pytest.mark.parametrize("rule", ["gpoe", "nested", "grbcm"])
def test_predictions_do_not_depend_on_the_budget(wave, rule):
    X, y, new = wave
    answers, kept = [], []
    for budget in (None, 0.0, 40_000.0, 100_000.0):
        model = ExpertGPRegressor(
            kernel="rbf", aggregation=rule, temperature=10.0, memory_budget=budget, **SHARED
        ).fit(X, y)
        answers.append(model.predict(new, return_std=True))
        kept.append(model._committee._factors.nbytes)
        assert budget is None or kept[-1] <= budget
    for answer in answers[1:]:
        assert np.array_equal(answer, answers[0])
    assert kept[1] == 0 < kept[2] < kept[3] < kept[0]


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


@pytest.mark.parametrize("budget", [-1.0, "much"])
def test_nonsense_is_refused(wave, budget):
    with pytest.raises(ValueError, match="memory_budget"):
        ExpertGPRegressor(memory_budget=budget).fit(wave[0], wave[1])
