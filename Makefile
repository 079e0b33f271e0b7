# make demo: set up and run the main job.  make test: set up and run the tests.
# make sanitize: the kernels' tests under sanitizers.  make wheel: build a wheel and look into it.
# make faults: kill runs at 24 random moments and compare what they end with, about 10 minutes.
PYTHON ?= python3
VENV := .venv
RUN := OMP_NUM_THREADS=1 $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: install demo test sanitize wheel faults gpu lint types clean

install: $(INSTALLED)

# torch first and by name: on a machine without CUDA a later unpinned torch would bring CUDA's packages.
$(INSTALLED): requirements.lock pyproject.toml CMakeLists.txt $(shell find csrc -type f)
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "error: Python 3.11 to 3.13 is needed, $(PYTHON) is " + sys.version.split()[0] + "; use make PYTHON=python3.11")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: $(INSTALLED)
	$(RUN) run.py sweeps=demo size=tiny

# Two processes, each with workers of its own: TEST_PROCESSES=1 on a machine with little memory. Files in their
# own order: xdist's, by number of tests, would leave those that start whole runs to the end, all at once.
TEST_PROCESSES ?= 2
test: $(INSTALLED)
	$(RUN) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# The kernels, those for CUDA emulated, under AddressSanitizer and UndefinedBehaviorSanitizer: GCC's, which have
# to be there before Python is. Threads in reverse order show other faults than these.
SANITIZED := build/sanitized
SANITIZERS = $(foreach name,asan ubsan,$(shell $(CXX) -print-file-name=lib$(name).so))
sanitize: $(INSTALLED)
	$(VENV)/bin/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja \
	  -DGRADWIRE_SANITIZE=ON -DGRADWIRE_EMULATION=ON
	$(VENV)/bin/cmake --build $(SANITIZED)
	$(VENV)/bin/cmake --install $(SANITIZED) --prefix $(SANITIZED)
	rm -f $(SANITIZED)/report.*
	LD_PRELOAD="$(SANITIZERS)" GRADWIRE_LIBRARIES=$(CURDIR)/$(SANITIZED)/gradwire/lib \
	  ASAN_OPTIONS=detect_leaks=0:log_path=$(SANITIZED)/report \
	  UBSAN_OPTIONS=print_stacktrace=1:log_path=$(SANITIZED)/report \
	  $(RUN) -m pytest -n $(TEST_PROCESSES) --dist loadfile -k "not reversed" tests/kernels \
	  || { cat $(SANITIZED)/report.*; exit 1; }

# As for the world outside: in an environment of its own, without PyTorch.
wheel: $(INSTALLED)
	rm -rf build/wheels
	$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheels \
	  --config-settings=build-dir=build/wheel .
	$(VENV)/bin/python tests/kernels/wheel_contents.py build/wheels

faults: $(INSTALLED)
	$(RUN) tests/harness/launch/faults.py --points 24

# On a machine with a GPU whose Python ($(PYTHON)) has torch and the other packages; needs no network, but nvcc.
# What it measures is left in $(GPU_RESULTS), with device, driver and date, to be committed.
GPU_RESULTS ?= results/gpu/$(shell date +%F)
gpu:
	GRADWIRE_CUDA=ON $(PYTHON) -m pip install --quiet --no-build-isolation --no-deps -e .
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests/gpu
	OMP_NUM_THREADS=1 $(PYTHON) run.py task=bench kernels=cuda cluster.device=cuda \
	  "bench.sizes=[16777216,134217728]" hydra.run.dir=$(GPU_RESULTS)

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(INSTALLED)
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build
