"""The worked examples run, and what they show is true."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

#: Smaller than as they come, for time.
SMALL = {
    "spatial_map": ["--rows", "1500"],
    "active_learning": ["--rounds", "2", "--repeats", "2"],
    "counts": ["--days", "60"],
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.fixture
def run(tmp_path):
    def function(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        result = module.main([*SMALL[name], "--out", str(tmp_path)])
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        return result

    return function


def test_a_map_is_less_sure_far_from_its_stations(run):
    found = run("spatial_map")
    assert found["rmse"] < 0.15  # the noise of one measurement
    assert found["deviation far from any"] > 2 * found["deviation near a station"]
    assert 0.9 < found["truth within two deviations"] <= 1.0


def test_sampling_where_it_is_least_sure_beats_random_sampling(run):
    found = run("active_learning")
    assert found["least sure"] < 0.7 * found["random"]


def test_rates_are_found_from_counts(run):
    found = run("counts")
    assert found["error of the rate"] < 0.25 * found["error of the mean"]
    assert abs(found["within 95 %"] - 0.95) < 0.03
