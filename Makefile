# `make demo` and `make test` do everything on a fresh machine; `make test-long` leaves nothing out.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SANITIZED := build/sanitize/transfuse/backends/cpu/libtransfuse_cpu.so

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-isas test-gpu lint types sanitize format clean
MAKEFLAGS += --no-print-directory

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## the five operators: checked against the oracle, timed beside torch, as a page
	@$(BIN)/transfuse check --random 2
	@mkdir -p out && rm -f out/demo.jsonl
	@$(BIN)/transfuse bench --set cpu --peer 'torch eager' --peer 'torch channels_last' -o out/demo.jsonl
	@$(BIN)/transfuse report out/demo.jsonl -o out/demo.html

# pytest comes last, so that its summary is the last line.
test: lint types ## the quick gate: lint, types, every test that is not marked long
	@echo "tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not long"

test-long: sanitize test-isas ## the rest: sanitizers, every instruction set, the tests marked long
	@echo "long tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m long

# The core's tests once for each instruction set that build and CPU have, with more threads than cores.
ISAS = $(shell $(BIN)/python -c 'from transfuse.backends.cpu import library as l; print(*l.isas(l.load()))')
CPU_TESTS := $(wildcard tests/backends/test_*.py) tests/operators tests/test_errors.py \
	tests/test_front.py tests/test_layouts.py tests/test_real_layers.py tests/test_zero_size.py
test-isas: $(READY) ## the core's tests in each instruction set of this CPU, with 16 threads
	@for isa in $(or $(ISAS),$(error no compiled core in .venv)); do echo "instruction set $$isa"; \
		TRANSFUSE_ISA=$$isa OMP_NUM_THREADS=16 $(BIN)/python -m pytest -q -n 2 $(CPU_TESTS) || exit 1; done

# Each test says why it is skipped where there is no GPU.
test-gpu: $(READY) ## the tests that need an NVIDIA GPU
	@$(BIN)/python -c 'import torch; print("GPU:", torch.cuda.get_device_name() \
		if torch.cuda.is_available() else "no CUDA device, every test is skipped")'
	@$(BIN)/python -m pytest tests/gpu

lint: $(READY) ## ruff: rules and format
	@echo "lint"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check

types: $(READY) ## mypy, strict
	@echo "types"
	@$(BIN)/mypy

# Python is not built with them, so their runtime is loaded before it; leaks are Python's own affair.
# A report goes straight to the terminal: the process ends before pytest could show what it captured.
sanitize: $(SANITIZED) ## the core's tests with the address and undefined-behaviour sanitizers
	@for isa in $(or $(ISAS),$(error no compiled core in .venv)); do echo "sanitize $$isa"; TRANSFUSE_ISA=$$isa OMP_NUM_THREADS=1 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 \
		UBSAN_OPTIONS=print_stacktrace=1 TRANSFUSE_CORE=$(CURDIR)/$(SANITIZED) \
		$(BIN)/python -m pytest -q -n 2 --capture=sys $(SANITIZED_TESTS) || exit 1; done

SANITIZED_TESTS := $(patsubst %,tests/backends/test_cpu_%.py,exact stages digest random)

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

$(SANITIZED): $(READY)
	@echo "core with sanitizers: build/sanitize (under a minute)"
	@CXX=$(CXX) $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --upgrade \
		--target build/sanitize -C build-dir=build/sanitize-objects \
		-C cmake.define.TRANSFUSE_SANITIZE=ON -C install.strip=false .
	@touch $@
