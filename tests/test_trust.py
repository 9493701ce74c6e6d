"""Short runs of the trial that `make trust` runs in full: the same code, fewer attempts."""

import json
import os
import sys

import numpy as np
import pytest
from trust import faults, inputs, limits, numerics, properties, together
from trust.__main__ import BEGIN, END, PAGE, PARTS, table, write
from trust.tally import Tally, ended

pytestmark = [
    pytest.mark.trust,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, limits and /proc"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def tally():
    """Whatever a test tries must come out right."""
    tally = Tally("test")
    yield tally
    assert not tally.lost, tally.notes
    assert not tally.wrong, tally.notes
    assert tally.inputs + tally.faults > 0


def test_bad_and_extreme_input(tally):
    inputs.run_kind(tally, "two classes")


def test_bad_tables(tally):
    inputs.run_commands(tally)


def test_properties(tally):
    properties.each(tally, properties.nothing_matters_that_should_not, 8)
    properties.each(tally, properties.partial_fit_is_fit, 8)
    properties.each(tally, properties.training_follows_the_units, 2)
    properties.each(tally, properties.classes_follow, 2)


def test_numbers_against_mpmath(tally):
    numerics.likelihoods(tally, 6)
    numerics.rules(tally, 10)


def test_fuzzed_files():
    code, out, err = ended("-W", "ignore", "-m", "trust.fuzz", 0.03)
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["wrong"] == 0, found["notes"]
    assert found["inputs"] > 250


def test_killed_saves(tally, tmp_path):
    faults.saves(tally, tmp_path, 6, np.random.default_rng(0))


def test_a_full_disk(tally):
    limits.disks(tally, 0.0)
    tally.inputs += 1  # where nothing can be mounted


def test_nothing_is_asked_of_the_network(tally):
    limits.sockets(tally)


def test_one_loaded_model_in_many_threads(tally):
    before = together.blas()
    together.one_model(tally, 1)
    assert together.blas() == before


def test_a_wrong_answer_and_a_loss_are_counted(tmp_path):
    tally = Tally("inputs")
    for value in (1, 2):
        with tally.right("a sum"):
            assert value == 1
        with tally.kept("a file"):
            os.stat(tmp_path if value == 1 else tmp_path / "none")
    assert (tally.inputs, tally.faults, tally.wrong, tally.lost) == (2, 2, 1, 1)
    assert len(tally.notes) == 2
    said = table([tally, tally])
    assert f"| {PARTS['inputs']} | 2 | 2 | 1 | 1 |" in said
    assert "| all together | 4 | 4 | 2 | 2 |" in said
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}old\n{END}below\n")
    write([tally], 0.5, page)
    text = page.read_text()
    assert "old" not in text
    assert "a file: FileNotFoundError" in text
    assert text.startswith("above")
    assert text.endswith("below\n")
    assert PAGE.exists()
