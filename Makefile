# Every target makes its own virtual environment first: Python 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Two processes, each with whole files of tests: most tests use one core.
TWO := -n 2 --dist loadfile

.PHONY: demo test test-slow test-lowest trust fuzz soak check docs bench bench-scale choices reproduce \
	clean

demo: $(INSTALLED)
	$(BIN)/python -m healgp.demo

test: $(INSTALLED)
	$(BIN)/python -m pytest $(TWO)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow --durations=10

trust: $(INSTALLED)
	$(BIN)/python -m trust $(ARGS)

# Atheris looks for inputs for as long as it is told, in seconds: make fuzz TIME=3600
TIME ?= 600
fuzz: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group fuzz
	$(BIN)/python -m trust.fuzz atheris load $(TIME)
	$(BIN)/python -m trust.fuzz atheris table $(TIME)

soak: $(INSTALLED)
	$(BIN)/python -m trust.soak minutes 30

# The oldest versions that pyproject.toml allows, in an environment of their own.
test-lowest:
	test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(VENV)-lowest/bin/python -m trust.lowest > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(VENV)-lowest/constraints.txt --editable ".[plots,cli,dask]" --group dev
	$(VENV)-lowest/bin/python -m pytest $(TWO)

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

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[all]" --group dev
	touch $@

$(VENV)/.installed-docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
