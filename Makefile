# `make demo` and `make test` each work as the only command on a fresh machine: they create the
# environment in .venv, and install etcd where it is missing and they may. `make help` lists more.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, each of which would compile us

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
PYTEST_ARGS ?=

.PHONY: help env etcd lint test coverage soak demo bench chaos clean

help: ## show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo '  ARGS="..." goes to demo, bench and chaos, PYTEST_ARGS="..." to test, coverage and soak'

env: $(STAMP) ## create .venv with everything for tests and demo

# The stamp is written last: an installation that broke off is done again.
$(STAMP): pyproject.toml
	@.ci/environment "$(PYTHON)" "$(VENV)"
	@touch $@

etcd: ## install etcd through apt, where it is missing and we may
	@.ci/etcd

lint: $(STAMP) ## ruff, ruff format, import-linter, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# The tests marked `lint` run the commands of `make lint`; once is enough. Clusters of real processes
# share the machine with all other tests: what fails there is told, and tried once more alone.
# mypy keeps one processor busy. Another one finds the tests meanwhile, which compiles them, and
# compiles numba's kernels: on a fresh clone tests would do that while both processors are busy.
DEFAULT := -m 'not soak and not lint'
KERNELS := from resilient_ps.tables.warm_up import warm_up, warm_up_client; warm_up(); warm_up_client()
test: $(STAMP) etcd ## lint, then all tests but the soak tests
	@{ trap 'kill $$(jobs -p); exit 1' TERM; \
	    $(BIN)/pytest $(PYTEST_ARGS) -n0 --collect-only & wait $$!; \
	    RESILIENT_PS_KERNELS=numba $(BIN)/python -c '$(KERNELS)' & wait $$!; \
	  } >/dev/null 2>&1 & finding=$$!; \
	  $(MAKE) lint || { kill $$finding 2>/dev/null; exit 1; }; wait $$finding || true
	$(BIN)/pytest $(DEFAULT) $(PYTEST_ARGS) || { [ $$? = 1 ] && \
	  echo 'FAILED AMONG OTHERS; once more, alone:' && \
	  $(BIN)/pytest $(DEFAULT) $(PYTEST_ARGS) -n0 --maxfail 1 --lf --lfnf none; }

# Tracing every line makes the tests take nearly twice as long.
coverage: $(STAMP) etcd ## the same tests, and which lines they do not reach
	$(BIN)/pytest $(DEFAULT) --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

soak: $(STAMP) etcd ## the long tests: many repetitions
	$(BIN)/pytest -m soak $(PYTEST_ARGS)

demo: $(STAMP) etcd ## train on real data: 3 servers, 4 workers
	$(BIN)/resilient-ps demo $(ARGS)

bench: $(STAMP) ## measure this machine: push and pull beside the raw limit
	$(BIN)/resilient-ps bench $(ARGS)

chaos: $(STAMP) etcd ## hurt real processes for 5 minutes, and judge; a report in build/chaos.html
	@mkdir -p build
	$(BIN)/resilient-ps chaos run --duration 5m --report build/chaos.html $(ARGS)

clean: ## remove the environment, caches and build products
	rm -rf $(VENV) build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find resilient_ps coordinator storage chaos tests -name __pycache__ -type d -prune -exec rm -rf {} +
