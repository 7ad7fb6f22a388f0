# `make demo` and `make test` do everything on a fresh machine; `make test-long` leaves nothing out.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SANITIZED := build/sanitize/transfuse/backends/cpu/libtransfuse_cpu.so
EMULATED := build/neon/libtransfuse_cpu.so
KERNELS := build/kernels
# A test that hangs ends its process after ten minutes, which is its failure, and says where it was.
PYTEST := $(BIN)/python -m pytest -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-isas test-neon test-gpu lint types sanitize wheel generate format clean docs kernels
MAKEFLAGS += --no-print-directory

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## the five operators: checked against the oracle, timed beside torch, as a page
	@$(BIN)/transfuse check --random 2
	@mkdir -p out && rm -f out/demo.jsonl
	@$(BIN)/transfuse bench --set cpu --peer 'torch eager' --peer 'torch other layout' -o out/demo.jsonl
	@$(BIN)/transfuse report out/demo.jsonl -o out/demo.html

# pytest comes last, so that its summary is the last line.
test: lint types ## the quick gate: lint, types, every test that is not marked long
	@echo "tests"
	@OMP_NUM_THREADS=1 $(PYTEST) -n 2 -m "not long"

test-long: sanitize test-isas test-neon ## the rest: sanitizers, every instruction set, NEON, tests marked long
	@echo "long tests"
	@OMP_NUM_THREADS=1 $(PYTEST) -n 2 -m long

# The core's tests once for each instruction set that build and CPU have, with more threads than cores.
ISAS = $(shell $(BIN)/python -c 'from transfuse.backends.cpu import library as l; print(*l.isas(l.load()))')
CPU_TESTS := $(wildcard tests/backends/test_*.py) tests/operators tests/test_errors.py \
	tests/test_front.py tests/test_layouts.py tests/test_real_layers.py tests/test_zero_size.py
test-isas: $(READY) ## the core's tests in each instruction set of this CPU, with 16 threads
	@for isa in $(or $(ISAS),$(error no compiled core in .venv)); do echo "instruction set $$isa"; \
		TRANSFUSE_ISA=$$isa OMP_NUM_THREADS=16 $(PYTEST) -q -n 2 $(CPU_TESTS) || exit 1; done

# Each test says why it is skipped where there is no GPU.
test-gpu: $(READY) ## the tests that need an NVIDIA GPU
	@$(BIN)/python -c 'import torch; print("GPU:", torch.cuda.get_device_name() \
		if torch.cuda.is_available() else "no CUDA device, every test is skipped")'
	@$(PYTEST) tests/gpu

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
	@for isa in $(or $(ISAS),$(error no compiled core in .venv)); do echo "sanitize $$isa"; TRANSFUSE_ISA=$$isa $(WATCHED) \
		$(PYTEST) -q -n 2 --capture=sys $(SANITIZED_TESTS) || exit 1; done
	@echo "fuzz"
	@$(WATCHED) $(BIN)/python -m tests.fuzzing --calls 4000 --seed 1

SANITIZED_TESTS := $(patsubst %,tests/backends/test_cpu_%.py,exact stages digest random boundary decide functions maps operands \
	sweeps sweep_boundary sweep_blocks short_rows narrow sideways channel_rows in_place inputs)

# Only the core is emulated, torch is not: the library that the tests load passes every call on.
test-neon: $(EMULATED) ## the core's tests on NEON, emulated; needs qemu-user and g++-aarch64-linux-gnu
	@echo "NEON, emulated"
	@TRANSFUSE_CORE=$(CURDIR)/$(EMULATED) OMP_NUM_THREADS=1 $(PYTEST) -q -n 2 \
		$(patsubst %,tests/backends/test_cpu_%.py,exact stages digest random decide functions maps operands sweeps) \
		tests/emulated

# The wheel is built from the sdist, and both are tried as a user has them. It is for systems as old as its
# symbols allow: what GCC 12 has for half floats comes from the compiler's own archive, not from the
# system's library. OpenMP stays out, since a process must have only one: torch brings it.
# The GPU's kernels are in no repository: whoever releases a wheel makes them first (make kernels). A wheel
# without them is whole, and compiles what it needs where it runs.
wheel: $(READY) ## an sdist and a manylinux wheel, each installed and run in an empty environment
	@echo "wheel: dist (some minutes), with $(words $(wildcard $(KERNELS)/*.kernel)) compiled kernels"
	@rm -rf build/wheel dist && mkdir -p build/wheel
	@{ CXX=$(CXX) $(BIN)/python -m build -o build/wheel -C cmake.define.CMAKE_CXX_STANDARD_LIBRARIES=-lgcc \
		$(if $(wildcard $(KERNELS)/*.kernel),-C cmake.define.TRANSFUSE_KERNELS=$(CURDIR)/$(KERNELS)) && \
		PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --exclude libgomp.so.1 -w dist build/wheel/*.whl; \
	} >build/wheel/log 2>&1 || { cat build/wheel/log; false; }
	@mv build/wheel/*.tar.gz dist
	@DIST=dist $(PYTEST) -q tests/package

# Old ones go first: their sources are others. A wheel may grow by 25 MB.
kernels: $(READY) ## the GPU's kernels that a wheel brings along; needs no GPU, and many cores or patience
	@rm -rf $(KERNELS)
	@TRANSFUSE_KERNELS=$(CURDIR)/$(KERNELS) $(BIN)/transfuse compile --common --for sm_80 --for sm_90
	@bytes=$$(cat $(KERNELS)/*.kernel | wc -c); echo "$$bytes bytes in $(KERNELS)"; test $$bytes -le 25000000

generate: $(READY) ## write the C functions anew from the operators' declarations, then rebuild the core
	@$(BIN)/python -m transfuse.cfunctions
	@$(MAKE) $(READY)

docs: $(READY) ## write the generated pages of docs anew, and build the site: build/site/index.html
	@$(BIN)/python -m transfuse.report.support docs/support.md
	@$(BIN)/python -m transfuse.report.pytorch docs/pytorch.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

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

# The core for aarch64, the program in which it runs emulated, and the library that passes calls on to it.
CSRC := src/transfuse/backends/cpu/csrc
AARCH64 := build/neon/aarch64/transfuse/backends/cpu
$(EMULATED): $(READY) $(wildcard tests/emulated/*.cpp tests/emulated/*.h tests/emulated/*.cmake)
	@echo "core for aarch64: build/neon (under a minute)"
	@cmake --no-warn-unused-cli -S . -B build/neon/objects -DCMAKE_TOOLCHAIN_FILE=tests/emulated/aarch64.cmake \
		-DCMAKE_INSTALL_PREFIX=build/neon/aarch64 >/dev/null
	@cmake --build build/neon/objects -j 2 >/dev/null && cmake --install build/neon/objects >/dev/null
	@aarch64-linux-gnu-g++ -std=c++17 -O2 -Wall -Wextra -I$(CSRC) tests/emulated/serve.cpp \
		$(AARCH64)/libtransfuse_cpu.so -Wl,-rpath,$(CURDIR)/$(AARCH64) -o build/neon/serve
	@$(CXX) -std=c++17 -O2 -Wall -Wextra -fPIC -shared -I$(CSRC) -DSERVE='"$(CURDIR)/build/neon/serve"' \
		tests/emulated/forward.cpp -o $@
