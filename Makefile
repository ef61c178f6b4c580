PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
FIELD ?= core
WORKERS ?= 2

# One thread a process: two workers then use two cores, and times can be compared.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export NUMBA_NUM_THREADS ?= 1

.PHONY: demo test test-slow check lint bench docs wheel setup clean

setup: $(STAMP)

$(STAMP): requirements/lock-3.11.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/lock-3.11.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: $(STAMP)
	$(BIN)/assay demo --workers $(WORKERS) --output report.html

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(if $(filter command line,$(origin FIELD)),tests/$(FIELD),tests)

check: lint
	$(BIN)/python -m pytest -n $(WORKERS) src docs README.md

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/$(FIELD).py

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

wheel: $(STAMP)
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf build dist site runs report.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
