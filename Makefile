# `make` alone prints the targets. Everything runs in a virtual environment of its own, .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: help setup demo test check unit coverage docs site dist clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(TOOLS)  ## make the virtual environment and install kedge, all extras and the tools, in the tested versions

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) .
	@touch $@

$(TOOLS): $(READY)
	$(PIP) '.[dev]'
	@touch $@

demo: $(READY)  ## compare six algorithms on built-in data: a table, a figure, a report
	$(BIN)/kedge compare

test: check unit  ## all checks: style, types, tests

check: $(TOOLS)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(TOOLS)  ## the tests
	$(BIN)/python -m pytest --numprocesses auto

coverage: $(TOOLS)  ## the tests, with branch coverage: twice as long
	$(BIN)/python -m pytest --numprocesses auto --cov=kedge --cov-report=term:skip-covered

docs: $(TOOLS)  ## rewrite the generated parts of the documents
	$(BIN)/python -m docs.tables.algorithms docs/algorithms.md
	$(BIN)/python -m docs.tables.settings docs/settings.md
	$(BIN)/python -m docs.tables.committed
	$(BIN)/python -m docs.tables.reproduction README.md docs/reproduce.md
	$(BIN)/python -m docs.tables.overview
	$(BIN)/python -m docs.tables.step_or_momentum
	$(BIN)/python -m docs.website.execute

site: $(TOOLS)  ## build the documentation site into site/, which opens from disk
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

dist:  ## build the wheel and the sdist into dist/
	rm -rf dist
	$(PYTHON) -m venv build/hatch
	build/hatch/bin/python -m pip install --quiet --disable-pip-version-check hatchling
	build/hatch/bin/hatchling build --directory dist

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
