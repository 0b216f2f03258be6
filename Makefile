# One command each for what a person does here; `make help` lists them. .ci/run calls the same ones.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
SWEEP ?= default
ARGS ?=
SYSTEM ?=
OFFLINE ?=
TORCH_INDEX ?=
EXTRA ?=
WORKERS ?=

# Relative, so that a clone in a folder with spaces in its name works.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/attnbench-setup.stamp
GPU_VENV := build/gpu-wheels

.PHONY: help setup bench test check wheel-test perf perf-diff perf-limits perf-recipes gpu-wheels gpu-check wheelhouse clean

help: ## List the targets and their settings
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name text; do \
	  printf '  make %-12s %s\n' "$$name" "$$text"; done
	@printf '\nSettings, as in `make bench SWEEP=quick ARGS="--threads 2"`:\n'
	@printf '  %-24s %s\n' \
	  'SWEEP=quick' 'quick, default, full, or a TOML file (bench)' \
	  'ARGS="..."' 'more arguments (bench, test, perf, perf-diff, perf-limits, perf-recipes, gpu-check)' \
	  'WORKERS=1' 'how many processes run the tests, at most one a core (test)' \
	  'PYTHON=python3.12' 'the Python to make .venv with, 3.11 or newer (setup)' \
	  'EXTRA=cpu' 'cpu or gpu; else by whether nvidia-smi works (setup)' \
	  'SYSTEM=1' 'use, and never replace, torch, TensorRT and onnxruntime of the system (setup)' \
	  'OFFLINE=wheelhouse/' 'install from a folder that make wheelhouse filled (setup)' \
	  'TORCH_INDEX=URL' 'take torch from another package index (setup)'

setup: $(STAMP) ## Make .venv and install attnbench in it

# Made again when what is to be installed has changed; entry points are read at installation too.
$(STAMP): pyproject.toml constraints.txt setup_env.py
	@python="$(PYTHON)"; \
	for candidate in python3 python3.13 python3.12 python3.11 python3.14; do \
	  test -n "$$python" && break; \
	  "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && python="$$candidate"; \
	done || true; \
	if ! "$${python:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "make setup needs Python 3.11 or newer, and $${python:-python3} is not; install one, or set PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -m venv $(if $(SYSTEM),--system-site-packages) $(VENV); then \
	  echo "make setup: $$python cannot make a virtual environment; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; \
	  exit 1; \
	fi
	$(BIN)/python setup_env.py $(if $(EXTRA),--extra "$(EXTRA)") $(if $(SYSTEM),--system) \
	  $(if $(OFFLINE),--offline "$(OFFLINE)") $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)")
	@touch $(STAMP)

bench: setup ## Compare runtimes over T: SWEEP=quick for a first answer in a minute
	$(BIN)/attnbench bench "$(SWEEP)" $(ARGS)

# Files stay whole, since what the tests of one file share is dear; those marked `alone` wait until nothing else runs.
test: setup ## Run the whole test suite, two files at a time where there are two cores; with ARGS one at a time
	cores="$$(getconf _NPROCESSORS_ONLN)" && workers="$(or $(WORKERS),$(if $(ARGS),1,2))" && \
	workers="$$((workers < cores ? workers : cores))" && \
	$(BIN)/pytest -n "$$((workers > 1 ? workers : 0))" --dist loadfile $(ARGS)

check: setup ## Lint, format, types, direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel-test: setup ## Build the wheel, install it in a clean environment, run a bench from another folder
	rm -rf build/wheel-test && mkdir -p build/wheel-test
	$(BIN)/python -m build --wheel --outdir build/wheel-test .
	$(BIN)/python -m venv build/wheel-test/venv
	build/wheel-test/venv/bin/python -m pip install --quiet --constraint constraints.txt \
	  "$$(ls build/wheel-test/attnbench-*.whl)[cpu]"
	here="$$PWD" && elsewhere="$$(mktemp -d)" && trap 'rm -rf "$$elsewhere"' EXIT && cd "$$elsewhere" && \
	"$$here/build/wheel-test/venv/bin/attnbench" list && \
	"$$here/build/wheel-test/venv/bin/attnbench" bench -s 16 --variants self --runtimes torch-sdpa,ort-cpu \
	  --exporters onnx-decomposed --time-budget 60s -o run -q && \
	"$$here/build/wheel-test/venv/bin/python" -P "$$here/tests/check_run.py" run torch-sdpa onnx-decomposed@ort-cpu
	rm -rf build/wheel-test

perf: setup ## Measure the bars: start-up, report on 10,000 records, repeated peaks, bundles, recipes, the linter, rows of a compiler, then attnbench selftest
	$(BIN)/python -P tests/perf_startup.py
	$(BIN)/python -P tests/perf_report.py
	$(BIN)/python -P tests/perf_memory.py
	$(BIN)/python -P tests/perf_deploy.py
	$(BIN)/python -P tests/perf_recipes.py --timing-s 0.5
	$(BIN)/python -P tests/perf_lint.py
	$(BIN)/python -P tests/perf_compile.py
	$(BIN)/attnbench selftest $(ARGS)

perf-diff: setup ## Show that runs of the same code do not differ: 11 quick runs, each beside the next (10 minutes)
	$(BIN)/python -P tests/perf_diff.py $(ARGS)

perf-limits: setup ## Judge 6,000 right outputs over random masks, heads and seeds: none may be called wrong (5 minutes); ARGS="--runtimes ort-cpu,openvino" asks those
	$(BIN)/python -P tests/perf_numerics.py $(ARGS)

perf-recipes: setup ## Time every recipe of the CPU targets against the plain export, and what --recipe auto picks (20 minutes)
	$(BIN)/python -P tests/perf_recipes.py $(ARGS)

# A copy by hard links: pip replaces files, it never writes into them. Both wheels own the folder onnxruntime.
gpu-wheels: setup ## Ask the real onnxruntime-gpu and tensorrt-rtx without a GPU, in an environment of their own
	rm -rf $(GPU_VENV) && mkdir -p $(dir $(GPU_VENV)) && cp -al $(VENV) $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip uninstall --quiet --yes onnxruntime
	$(GPU_VENV)/bin/python -m pip install --quiet --constraint constraints.txt onnxruntime-gpu tensorrt-rtx
	$(GPU_VENV)/bin/python -m pytest tests/gpu_wheels

gpu-check: setup ## On a machine with a GPU: its tests, then a sweep of all that can use it (8 minutes); ARGS=folder
	$(BIN)/python -P tests/gpu_check.py $(ARGS)

wheelhouse: setup ## Fill wheelhouse/ for make setup OFFLINE=wheelhouse/ on a machine without a network
	$(BIN)/python setup_env.py --wheelhouse wheelhouse $(if $(EXTRA),--extra "$(EXTRA)") \
	  $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)")

clean: ## Remove .venv, caches and builds; results/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find attnbench exporters runtimes tests -name __pycache__ -type d -prune -exec rm -rf {} +
