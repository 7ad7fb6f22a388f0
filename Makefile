# `make demo` and `make test` do everything on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SANITIZED := build/sanitize/transfuse/backends/cpu/libtransfuse_cpu.so

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu lint types sanitize format clean
MAKEFLAGS += --no-print-directory

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## the five operators: checked against the oracle, timed beside torch, as a page
	@$(BIN)/transfuse check --random 2
	@mkdir -p out && rm -f out/demo.jsonl
	@$(BIN)/transfuse bench --set cpu --peer 'torch eager' --peer 'torch channels_last' -o out/demo.jsonl
	@$(BIN)/transfuse report out/demo.jsonl -o out/demo.html

# pytest comes last, so that its summary is the last line.
test: lint types ## lint, types, then every test
	@echo "tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

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

# Python is not built with them, so their runtime is loaded before it, and C++'s, whose exceptions it watches;
# leaks are Python's own affair. The fuzzer asks for more memory than there is: that must fail, not end it.
# A report goes straight to the terminal: the process ends before pytest could show what it captured.
WATCHED = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=512 \
	UBSAN_OPTIONS=print_stacktrace=1 TRANSFUSE_CORE=$(CURDIR)/$(SANITIZED) OMP_NUM_THREADS=1
sanitize: $(SANITIZED) ## the core's tests with the address and undefined-behaviour sanitizers
	@echo "sanitize"
	@$(WATCHED) $(BIN)/python -m pytest -q --capture=sys \
		tests/backends/test_cpu_exact.py tests/backends/test_cpu_stages.py tests/backends/test_cpu_digest.py \
		tests/backends/test_cpu_random.py tests/backends/test_cpu_boundary.py
	@$(WATCHED) $(BIN)/python tests/fuzz.py --calls 4000 --seed 1

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
