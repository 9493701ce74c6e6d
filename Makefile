# Every target makes its own virtual environment first: Python 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow check docs bench bench-scale choices reproduce clean

demo: $(INSTALLED)
	$(BIN)/python -m healgp.demo

test: $(INSTALLED)
	$(BIN)/python -m pytest

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow --durations=10

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

bench: $(INSTALLED)
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-scale: $(INSTALLED)
	$(BIN)/python benchmarks/large.py $(ARGS)

choices: $(INSTALLED)
	$(BIN)/python benchmarks/choices.py $(ARGS)

reproduce: $(INSTALLED)
	$(BIN)/healgp reproduce all --page docs/reproduction.md

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[all]" --group dev
	touch $@

$(VENV)/.installed-docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
