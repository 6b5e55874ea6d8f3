# Development in one virtual environment, .venv. Everything here is a short command that can be typed by hand as well.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup check test slow fast format lint types layers docs bench clean

help: ## show this
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: .venv/ready ## make .venv with costir and everything that development needs, in the tested versions

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

check: format lint types layers fast ## before a commit: format, lint, types, import layers, the fast tests

test: setup ## all tests, as CI runs them (lint, types and layers are among them)
	$(BIN)/pytest -n 2

slow: setup ## all tests, those too that take long and say little more
	$(BIN)/pytest -n 2 --slow

fast: setup ## the tests that take seconds
	$(BIN)/pytest -n 2 tests/test_cli.py tests/test_render.py tests/test_report.py tests/test_solve.py tests/test_formula.py \
	  tests/test_hardware.py tests/test_notation.py tests/test_roofline.py tests/test_counting_doc.py

format: setup ## put the code into shape
	$(BIN)/ruff check -q --fix . || true
	$(BIN)/ruff format -q .

lint: setup ## ruff
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .

types: setup ## mypy --strict
	$(BIN)/mypy --strict

layers: setup ## the import contracts
	$(BIN)/lint-imports

docs: setup ## refresh what is generated: outputs in README and docs, the table of docs/counting.md, pictures, golden files
	$(BIN)/python -m costir.ops.table
	$(BIN)/pytest -q -n 0 tests/test_docs.py tests/test_render.py tests/test_report.py --update-golden

bench: setup ## run the benchmarks and write benchmarks/README.md
	$(BIN)/python benchmarks/measure.py --write

clean: ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build *.egg-info
