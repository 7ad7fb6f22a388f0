# `make demo` and `make test` do everything on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint types format clean
MAKEFLAGS += --no-print-directory

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## the five operators: checked against the oracle, timed beside torch, as a page
	@$(BIN)/transfuse check --random 2
	@mkdir -p out && rm -f out/demo.jsonl
	@$(BIN)/transfuse bench --set cpu --peer 'torch eager' --peer 'torch channels_last' -o out/demo.jsonl
	@$(BIN)/transfuse report out/demo.jsonl -o out/demo.html

# pytest comes last, so that its summary is the last line.
test: lint types ## lint, types, then every test
	@echo "tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(READY) ## ruff: rules and format
	@echo "lint"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check

types: $(READY) ## mypy, strict
	@echo "types"
	@$(BIN)/mypy

format: $(READY) ## mend what ruff can mend
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format

clean: ## remove the environment, caches and build outputs
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for the environment: made again when what it is made from changes.
CORE := CMakeLists.txt $(wildcard src/transfuse/backends/cpu/csrc/*)
$(READY): pyproject.toml constraints.txt $(CORE)
	@echo "environment: .venv ($(PYTHON); about a minute the first time)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
