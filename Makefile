# make demo   the main job: a real model, rewritten, answering and measured against stock
# make test   everything that proves it right
# Both set themselves up: virtual environments in the tree, system packages where they may.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3.11
VENV := .venv
VENV_OPTIMUM := .venv-optimum
VENV_OLDEST := .venv-oldest
VENV_CUDA := .venv-cuda
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --no-input
CTEST := $(BIN)/ctest --output-on-failure --parallel $(shell nproc)
# Files side by side, each in one process: their fixtures are made once.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# optimum runs models whose KV heads are as many as their query heads.
OPTIMUM_MODEL := .cache/models/phi-3-mini-128k-small
# Those of the emulated library.
GPU_TESTS := $(addprefix tests/test_gpu_,arguments.py check.py kernels.py operator.py refusals.py)
OPTIMUM_TESTS := tests/test_optimum.py tests/test_sources_optimum.py
# Those of other environments.
OTHER_TESTS := tests/test_cuda_provider.py $(OPTIMUM_TESTS)
OLDEST_TESTS := $(addprefix tests/test_,operator.py operator_errors.py schedules.py sequences.py)
LIBRARIES := $(abspath build/test/tests/cpp/liblean_attention)
SOURCES := $(shell find ops cmake python models -type f -not -path '*/__pycache__/*') \
           CMakeLists.txt pyproject.toml

.PHONY: demo test test-cpp test-emulator-full test-gpu-resources test-gpu-operator test-cuda-provider test-sanitizers test-python test-oldest test-optimum fuzz lint format setup clean

demo: $(VENV)/.package
	$(BIN)/python tools/demo.py

test: test-cpp test-gpu-resources test-gpu-operator test-cuda-provider test-sanitizers test-python test-oldest test-optimum

test-cpp: build/test/.built
	$(CTEST) --test-dir build/test

# The GPU kernel on the emulator: every head size, and many more interleavings.
test-emulator-full: build/test/.built
	LEAN_ATTENTION_EMULATOR_FULL=1 $(CTEST) --test-dir build/test -R gpu_tests

# What the GPU kernels take, where nvcc or hipcc is; none may spill.
test-gpu-resources: build/test/.built
	$(BIN)/python tools/gpu_resources.py --check build/test

# The GPU operator in ONNX Runtime, on the emulator; and the libraries for GPUs where there is none.
test-gpu-operator: build/test/.built $(VENV)/.package
	LEAN_ATTENTION_LIBRARY=$(LIBRARIES)_emulated.so $(BIN)/python -m pytest $(SIDE_BY_SIDE) $(GPU_TESTS)
	for library in $(LIBRARIES)_cuda.so $(LIBRARIES)_rocm.so; do \
	  [ ! -e $$library ] || LEAN_ATTENTION_LIBRARY=$$library $(BIN)/python -m pytest tests/test_operator.py; \
	done

# The GPU operator, on the emulator, in ONNX Runtime's own CUDA provider, over a stand-in for CUDA.
test-cuda-provider: build/test/.built build/stand-in/.built $(VENV_CUDA)/.package
	LEAN_ATTENTION_LIBRARY=$(LIBRARIES)_emulated_cuda.so LD_LIBRARY_PATH=$(abspath build/stand-in) \
	  $(VENV_CUDA)/bin/python -m pytest tests/test_cuda_provider.py

build/stand-in/.built: $(wildcard tests/cuda_stand_in/*) $(VENV_CUDA)/.requirements
	$(VENV_CUDA)/bin/python tests/cuda_stand_in/build.py $(@D)
	touch $@

# The C++ tests again: memory and undefined behaviour, then races.
test-sanitizers: build/asan/.built build/tsan/.built
	UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) --test-dir build/asan
	TSAN_OPTIONS=halt_on_error=1 $(CTEST) --test-dir build/tsan

test-python: $(VENV)/.package
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) tests $(addprefix --ignore ,$(GPU_TESTS) $(OTHER_TESTS))

# Random calls of the operator against the stock one: FUZZ_EXAMPLES (20,000), FUZZ_SEED.
fuzz: $(VENV)/.package
	PYTHONPATH=tests $(BIN)/python -m fuzz

# The oldest ONNX Runtime that the library supports.
test-oldest: $(VENV_OLDEST)/.package
	$(VENV_OLDEST)/bin/python -m pytest $(SIDE_BY_SIDE) $(OLDEST_TESTS)

test-optimum: $(VENV_OPTIMUM)/.package $(OPTIMUM_MODEL)
	$(VENV_OPTIMUM)/bin/python -m pytest $(OPTIMUM_TESTS)

lint: $(VENV)/.package $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files 'ops/*.h' 'ops/*.cc' 'ops/*.cuh' 'ops/*.cu' 'tests/*.h' 'tests/*.cc' 'tests/*.cuh' 'tests/*.cu' 'tools/*.cc' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python tools/check_walls.py

format: $(VENV)/.lint
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	git ls-files 'ops/*.h' 'ops/*.cc' 'ops/*.cuh' 'ops/*.cu' 'tests/*.h' 'tests/*.cc' 'tests/*.cuh' 'tests/*.cu' 'tools/*.cc' | xargs $(BIN)/clang-format -i

setup: $(VENV)/.package

clean:
	rm -rf build $(VENV) $(VENV_OPTIMUM) $(VENV_OLDEST) $(VENV_CUDA)

# The environments: third-party packages once, our own whenever a source changed.

$(VENV)/.requirements: requirements/main.txt requirements/constraints.txt
	@tools/install_system_packages.sh
	$(PYTHON) -m venv $(VENV)
	@echo "Installing the Python packages (a minute or two)"
	$(BIN)/python $(PIP) install --quiet -c requirements/constraints.txt -r requirements/main.txt
	touch $@

$(VENV)/.lint: requirements/constraints.txt $(VENV)/.requirements
	$(BIN)/python $(PIP) install --quiet -c requirements/constraints.txt clang-format mypy ruff
	touch $@

# One wheel for all environments: the library does not depend on the version of Python.
build/wheel/.built: $(SOURCES) $(VENV)/.requirements
	@echo "Building the library and the package"
	rm -rf build/wheel
	$(BIN)/python $(PIP) wheel --quiet --no-deps --wheel-dir build/wheel .
	touch $@

$(VENV)/.package: build/wheel/.built
	$(BIN)/python $(PIP) install --quiet --no-deps --force-reinstall build/wheel/*.whl
	touch $@

define client_environment
$(1)/.requirements: requirements/$(2).txt requirements/$(2)-constraints.txt
	@tools/install_system_packages.sh
	$(PYTHON) -m venv $(1)
	$(1)/bin/python $(PIP) install --quiet -c requirements/$(2)-constraints.txt -r $$<
	touch $$@

$(1)/.package: build/wheel/.built $(1)/.requirements
	$(1)/bin/python $(PIP) install --quiet --no-deps --force-reinstall build/wheel/*.whl
	touch $$@
endef
$(eval $(call client_environment,$(VENV_OPTIMUM),optimum))
$(eval $(call client_environment,$(VENV_OLDEST),oldest))
$(eval $(call client_environment,$(VENV_CUDA),cuda))

$(OPTIMUM_MODEL): | $(VENV)/.package
	mkdir -p $(@D)
	$(BIN)/lean-attention export phi-3-mini-128k $@ --layers 2 --hidden-scale 0.02

# The C++ tests in build/$(1), with more options for CMake and for its build.
define cpp_tests
build/$(1)/.built: $(SOURCES) $(wildcard tests/cpp/* tools/*.cc) $(VENV)/.requirements
	@tools/install_system_packages.sh tests
	@mkdir -p build
	$(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DLEAN_ATTENTION_TESTS=ON -DLEAN_ATTENTION_WERROR=ON $(2) \
	  -DPython3_EXECUTABLE=$(abspath $(BIN)/python) >build/$(1).log || (cat build/$(1).log; exit 1)
	$(BIN)/cmake --build build/$(1) $(3)
	touch $$@
endef
ONLY_TESTS := --target lean_attention_tests lean_attention_kernel_tests
EMULATOR_TESTS := $(foreach room,emulator gpu launch,lean_attention_$(room)_tests_32 lean_attention_$(room)_tests_64)
SANITIZED := -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-g1 -DLEAN_ATTENTION_SANITIZE
ADDRESS := $(SANITIZED)=address,undefined
$(eval $(call cpp_tests,test,-DLEAN_ATTENTION_CUDA_ARCHITECTURES=90))
$(eval $(call cpp_tests,asan,$(ADDRESS),$(ONLY_TESTS) $(EMULATOR_TESTS)))
$(eval $(call cpp_tests,tsan,$(SANITIZED)=thread,$(ONLY_TESTS)))
