# The two commands of the README are `make run` and `make test`; each does all the set-up it needs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The release that development and CI use. The project itself accepts torch >= 2.11.
TORCH  ?= torch==2.13.0
# Makes the lock; nothing else needs it.
UV     := 0.13.9
PORT   ?= 8000
OUT    ?= out
# Processes of `make test`; auto is one for each core. Tests wait for a good part of their time, so
# WORKERS=3 may be quicker on two cores, and a test that holds a time to a bound has more neighbours.
WORKERS ?= auto
# Half of what is installed, of which tests import little or nothing: not compiled before it is.
SELDOM := /tests?/|/testing/|/transformers/models/|/torch/_inductor/|/networkx/algorithms/
SELDOM := $(SELDOM)|/sympy/(physics|stats|plotting)/|/pygments/lexers/|/mypyc?/|/setuptools/
# Where torch for CUDA is installed already, there is no need for another environment.
GPU_PYTHON := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.PHONY: help install lock run test quick acceptance nightly durations hostile check lint types layers format bench wheel \
  docs pictures clean gpu gpu-all gpu-first gpu-kit gpu-probe

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

# Twice: errors are shown, and no warnings. A second index warns of each package that it lacks.
QUIET  := --quiet --quiet --disable-pip-version-check
PIP    := $(BIN)/python -m pip install $(QUIET) --no-compile
FETCH  := $(BIN)/python -m pip download $(QUIET)

# Recreated when the dependencies change. All files but torch's are those of the lock, by their
# hashes; torch's build is the machine's. What it asks for is in the lock, less what only one for
# CUDA does. Nothing is built but this project, by what the lock has.
$(VENV)/.installed: pyproject.toml etc/lock/dev.txt etc/lock/gpu.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps --only-binary :all: --requirement etc/lock/dev.txt
	$(PIP) $(TORCH)
	$(PIP) --no-deps --no-build-isolation --editable .
	@# FlashInfer is not installed: tests compare its signatures with our calls, make gpu-kit packs it.
	@sed -n '/^flashinfer-python==/,/[^\]$$/p' etc/lock/gpu.txt >$(VENV)/flashinfer.txt
	$(FETCH) --require-hashes --no-deps --only-binary :all: \
	  --dest $(VENV)/wheels --requirement $(VENV)/flashinfer.txt
	@# pip would compile on one core. Some packages bring files that are no Python of this version.
	@$(BIN)/python -m compileall -qq -j 0 -x '$(SELDOM)' $(VENV)/lib || true
	@touch $@

install: $(VENV)/.installed ## create .venv with an editable install, and set git's hook for commit messages
	@test ! -e .git || git config --get core.hooksPath >/dev/null || git config core.hooksPath etc/hooks

lock: ## regenerate etc/lock: the newest versions that pyproject.toml allows, with hashes
	@test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && build/lock/bin/pip install $(QUIET) uv==$(UV); }
	etc/lock/make.sh build/lock/bin/uv $(TORCH) etc/lock

run: install ## start the daemon with the embedded model, and send a first request with curl
	@VENV=$(VENV) PORT=$(PORT) etc/first-answer.sh

# What a file of tests shares is made once: files are not split among processes.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
REPORT := $(OUT)/tests.xml

test: install ## run the small and medium tests; no GPU, seven minutes on two cores
	$(PYTEST) --sizes small,medium

quick: install ## run the small tests, for the inner loop; two minutes on two cores
	$(PYTEST) --sizes small

acceptance: install ## run the large tests: random campaigns, daemons, wheel, third-party plugins, noisy neighbours
	$(PYTEST) --sizes large --durations=30 --durations-min=1

nightly: install ## run all tests, the slow ones too, with 500 random cases where `make test` has 25
	GATEWAYD_RANDOM_CASES=500 $(BIN)/python -m pytest -m "not gpu and not bench"

durations: install ## run all tests, and record in tests/durations.txt how long each took
	$(PYTEST) --durations=30 --durations-min=1 --junitxml=$(REPORT)
	$(BIN)/python -m tests.durations $(REPORT)

hostile: install ## test tenant isolation: latency of one tenant under load from others; minutes, on a quiet machine
	GATEWAYD_HOSTILE_SECONDS=60 $(BIN)/python -m pytest -s tests/security/hostile

check: lint types layers ## check style, types and the direction of imports

lint: install ## check style and formatting with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## check types with mypy --strict
	$(BIN)/mypy

layers: install ## check the direction of imports with import-linter
	$(BIN)/lint-imports

format: install ## format the code with ruff
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: install ## build llama.cpp, run the CPU benchmarks of docs/benchmarks.md; four hours, on a quiet machine
	$(BIN)/python tests/bench/gateway_cost.py
	$(BIN)/python tests/bench/plugin_cost.py
	$(BIN)/python tests/bench/prefix_sharing.py
	$(BIN)/python tests/bench/prefix_match.py
	$(BIN)/python tests/bench/cache_traces.py
	$(BIN)/python tests/bench/batching.py
	$(BIN)/python tests/bench/grammar_mask_cost.py
	$(BIN)/python -m tests.bench.guided_decoding_throughput
	$(BIN)/python tests/bench/protocol_cost.py
	-$(BIN)/python tests/bench/llama_cpp.py
	@# Continues where it was cut, as long as the commit is the same.
	@mkdir -p $(OUT)
	$(BIN)/python -m tests.bench.cpu --parts speed,busy,start,quality --markdown $(OUT)/cpu.md

gpu-kit: install ## pack the dependencies of a GPU machine without network into .gpu
	$(BIN)/python -m tests.gpu.kit.pack

gpu-first: ## smoke-test a new GPU machine; 9 minutes, results in OUT=out, dry run with FIRST_DEVICE=cpu
	OUT=$(OUT) $(GPU_PYTHON) tests/gpu/kit first

gpu: ## run the GPU benchmarks of docs/benchmarks.md, then the fast tests of tests/gpu; ten minutes
	OUT=$(OUT) $(GPU_PYTHON) tests/gpu/kit gpu

gpu-all: ## run the GPU benchmarks and all tests of tests/gpu, including those that compile for minutes
	OUT=$(OUT) $(GPU_PYTHON) tests/gpu/kit all

gpu-probe: ## time each kernel of a decode step and its alternatives on a GPU; 2 minutes
	@mkdir -p $(OUT)
	eval "$$($(GPU_PYTHON) -m tests.gpu.kit.environment)" && \
	  OUT=$(OUT) $(GPU_PYTHON) tests/gpu/probe.py | tee $(OUT)/probe.log

wheel: install ## build the sdist and the wheel in dist/
	$(BIN)/python -m build --no-isolation

docs: install ## build the site of docs/ in build/site, and check links and anchors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

pictures: install ## regenerate docs/pictures: screenshots of the console with a daemon under load; a minute
	$(BIN)/python tests/tui/pictures.py docs/pictures

clean: ## remove the virtual environment, builds and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
