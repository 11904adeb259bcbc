# `make` lists the targets. A fresh clone needs python3 (3.10 or newer, with venv), make and a package index.

PYTHON ?= python3
VENV ?= .venv
# make BIN=some/venv/bin uses your own environment and installs nothing into it.
BIN ?= $(VENV)/bin

# Commands that tests start would compile 600 modules each: half of their CPU time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-live test test-dev test-lowest audit test-exhaustive fuzz compatibility compatibility-trainings check format docs bench gpu-check golden web clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-23s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

ifeq ($(origin BIN),command line)
DEMO_READY :=
DEV_READY :=
EXTENSION :=
else
DEMO_READY := $(VENV)/.demo-ready
DEV_READY := $(VENV)/.dev-ready
EXTENSION := build/.extension-ready
endif

# The marker files are written last, so an interrupted installation is never mistaken for a finished one.
$(VENV)/.demo-ready: pyproject.toml constraints.txt
	@tools/install.sh '$(VENV)' '$(PYTHON)' demo
	@touch $@

$(VENV)/.dev-ready: pyproject.toml constraints.txt
	@tools/install.sh '$(VENV)' '$(PYTHON)' demo,dev
	@touch $@ $(VENV)/.demo-ready

# The installation builds the extension, this builds it again when its sources have changed. Without a compiler there is
# none, and everything works without it.
build/.extension-ready: $(wildcard native/*) tools/build_hook.py | $(DEMO_READY)
	@$(BIN)/python tools/build_hook.py || true
	@mkdir -p build && touch $@

demo: $(DEMO_READY) $(EXTENSION) ## train a small 4-rank pipeline on this machine, record it, and explain its bubble (writes demo/)
	@$(BIN)/stagescope demo --force -o demo

demo-live: $(DEMO_READY) $(EXTENSION) ## follow a real training: slow a rank, pause recording, hang a rank, each named (writes demo-live/)
	@$(BIN)/python -m tools.demo_live demo-live

# loadfile keeps the tests of a file in one process, because some files share a training run.
# addopts in pyproject.toml has -ra, which lists every failed and skipped test with its reason.
# One worker more than there are cores: a third of the time, tests wait for a training or a browser. Polars gets one
# thread in each, because threads that wait for each other cost a tenth of the CPU time; test-exhaustive has all.
WORKERS = $$(($$($(BIN)/python -c 'import os; print(os.cpu_count())') + 1))
test: $(DEV_READY) $(EXTENSION) ## run the tests, without the exhaustive sweeps, and list what was skipped and why
	@POLARS_MAX_THREADS=1 $(BIN)/python tools/run_tests.py -n $(WORKERS) --dist loadfile -m "not exhaustive"

# In an environment of its own. What starts browsers, trainings or builds does not depend on these versions. The package
# is on the path of the environment, because tests start processes without PYTHONPATH.
LOWEST = build/lowest
LOWEST_TESTS = tests/analysis/test_report.py tests/analysis/graph tests/analysis/prediction/test_what_if.py \
	tests/cli/test_export.py tests/cli/test_foreign_text.py tests/cli/test_report.py tests/clocks \
	tests/exporters/pictures tests/exporters/test_tables.py tests/ingest/kineto tests/ingest/recording \
	tests/ingest/table tests/ingest/test_merge.py tests/model tests/reports tests/viewer/server tests/viewer/tiles
NOT_LOWEST = tests/ingest/kineto/test_native_trace.py tests/viewer/server/test_in_browser.py \
	tests/viewer/server/test_newer_data.py
$(LOWEST)/.ready: pyproject.toml tools/lowest_versions.py
	@rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-input tomli pytest pytest-timeout \
		pytest-xdist hypothesis
	@$(LOWEST)/bin/python tools/lowest_versions.py > $(LOWEST)/requirements.txt
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-input -r $(LOWEST)/requirements.txt
	@$(LOWEST)/bin/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "src.pth").write_text("$(CURDIR)/src\n")'
	@touch $@

test-lowest: $(LOWEST)/.ready ## run most tests with the lowest versions that pyproject.toml allows, in build/lowest
	@$(LOWEST)/bin/python -m pytest -q -n 2 --dist loadfile -m "not exhaustive and not slow" \
		$(LOWEST_TESTS) $(addprefix --ignore=,$(NOT_LOWEST))

# Without -W error, whose filters python -X dev would come before. pip itself warns, so the tests run it without.
TESTS ?= tests
test-dev: $(DEV_READY) $(EXTENSION) ## run tests with Python's development mode and warnings as errors: TESTS=tests/ingest BIN=...
	@PYTHONWARNINGS=error PYTHONPATH=src $(BIN)/python -X dev -m pytest -q -n 2 --dist loadfile -m "not exhaustive" $(TESTS)

audit: $(DEV_READY) ## look up known vulnerabilities of the required packages; skipped without the network
	@$(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-input --retries 1 --timeout 10 pip-audit 2> build/audit/install.log || true
	@$(BIN)/python tools/audit.py build/audit/bin/pip-audit

test-exhaustive: $(DEV_READY) $(EXTENSION) ## run what `make test` leaves out: sweeps and long tests
	@$(BIN)/python tools/run_tests.py -n auto --dist loadfile -m exhaustive

# make fuzz SECONDS=600 SEED=7 FORMAT=nsight; the mutated files of failures are kept in fuzz-failures/.
fuzz: $(DEV_READY) ## mutate samples of every input format for SECONDS (60), and count how the readers responded
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(COUNT),--count $(COUNT)) $(if $(FORMAT),--format "$(FORMAT)") $(if $(ONLY),--only $(ONLY))

compatibility: $(DEV_READY) ## compare the table of signatures with the frameworks' releases on the package index
	@$(BIN)/python -m tools.compatibility check

# Downloads several GB at the first run, and is not part of .ci/run.
compatibility-trainings: $(DEV_READY) ## train with old and new releases of the frameworks, with and without recording
	@$(BIN)/python -m tools.compatibility.matrix

check: $(DEV_READY) ## check format, lint, types, vocabulary, architecture and documents: under a minute
	@$(BIN)/python tools/check_terms.py
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python tools/check_platforms.py
	@if [ -x web/node_modules/.bin/biome ]; then cd web && npm run --silent check; \
	else echo 'skipped the check of web/: run make web once, which needs Node'; fi
	@$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_docs.py

format: $(DEV_READY) ## format the code and apply the safe fixes of the linter
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(DEV_READY) ## regenerate the generated parts of the documents, and the bill of materials
	@$(BIN)/python tools/write_docs.py
	@$(BIN)/python tools/write_sbom.py

bench: $(DEV_READY) $(EXTENSION) ## run every benchmark and print its results
	@tools/each.sh $(BIN)/python benchmark benchmarks/*_speed.py benchmarks/overhead.py benchmarks/recorded_steps.py benchmarks/recorded_ranks.py

# Uses the Python whose torch supports the GPU and installs nothing into it: make gpu-check PYTHON=...
# The + runs it under make --dry-run, too: then on a simulated device.
gpu-check: ## on a machine with a GPU, check what device timing relies on, its accuracy and cost (with --dry-run: simulated)
	+@PYTHONPATH=src $(PYTHON) benchmarks/gpu_check.py $(if $(findstring n,$(firstword -$(MAKEFLAGS))),--dry-run)

golden: $(DEV_READY) ## regenerate the golden files of the tests
	@tools/each.sh $(BIN)/python "golden file script" tools/golden_*.py

web: ## check, test and build the browser viewer into src/stagescope/viewer/assets
	@cd web && npm ci --no-audit --no-fund --loglevel=error && npm run --silent build

clean: ## remove what make made here: the environment, the demo's output, caches
	@rm -rf demo demo-live dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@if [ -f $(VENV)/.stagescope-install ]; then rm -rf $(VENV); fi
