# Everything a person does here, one target each. `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST_ARGS ?=
# Processes of `make test`: many tests wait for another process, so two a core.
JOBS   ?= $(shell echo $$((2 * $$(nproc))))

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench cluster cluster-down test-cluster test-clients test-page lock release clean

help:      ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+: .*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/run  ## serve the example model, ask it a question, watch it go back to zero
	@$(BIN)/wisp demo

test: $(VENV)/dev  ## every test that needs no GPU and no cluster
	@command -v helm >/dev/null || tests/cluster/node/build.sh helm >/dev/null || \
	  { [ -z "$${CI:-}" ] && echo "the chart's tests will be skipped: no helm here" >&2; }
	$(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

cluster:   ## a real one-node Kubernetes on this machine, with Wisp's images on it (root and Go; first time: 15 minutes on two idle cores)
	@tests/cluster/node/build.sh >/dev/null
	@tests/cluster/node/up.sh
	@tests/cluster/images.sh
	@tests/cluster/node/next.sh

cluster-down:  ## end that cluster, and remove every trace of it but packages and caches
	@tests/cluster/node/down.sh

test-cluster: $(VENV)/dev  ## the tests of the whole on a real cluster: the one of KUBECONFIG, or one of its own
	@tests/cluster/run.sh $(PYTEST_ARGS)

test-clients: $(VENV)/dev  ## the clients that people have (LiteLLM, LangChain, agents, …), unmodified, against our server
	@tests/clients/run.sh $(PYTEST_ARGS)

test-page: $(VENV)/dev  ## the gateway's page in headless Chromium: wakes, chat, keys, phone, dark, budgets
	@tests/browser/run.sh $(PYTEST_ARGS)

check: $(VENV)/dev  ## ruff, mypy --strict, import-linter, the lock, clang-format, helm lint
	$(BIN)/python .ci/release/lock.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@sources=$$(git ls-files '*.cu' '*.cuh' '*.cpp' '*.h'); [ -z "$$sources" ] || $(BIN)/clang-format --dry-run --Werror $$sources
	@helm=$$(command -v helm || ls -d $(HOME)/.cache/wisp/node-*/helm 2>/dev/null | tail -n 1); \
	  if [ -n "$$helm" ]; then $$helm lint --strict --quiet charts/wisp; else echo "helm lint skipped: no helm here" >&2; fi

format: $(VENV)/dev  ## rewrite sources the way `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@sources=$$(git ls-files '*.cu' '*.cuh' '*.cpp' '*.h'); [ -z "$$sources" ] || $(BIN)/clang-format -i $$sources

bench: $(VENV)/dev  ## measure the gateway and the CPU engine; records go to tests/bench/records/
	$(BIN)/python tests/bench/bench_gateway.py
	$(BIN)/python tests/bench/bench_cpu_engine.py

lock: $(VENV)/release  ## pin every dependency in .ci/requirements/ again (UPGRADE=1: the newest of everything)
	$(VENV)/release/bin/python .ci/release/lock.py $(if $(UPGRADE),--upgrade)

release: $(VENV)/release  ## build dist/ (wheel, sdist, chart, locks, SBOMs), install it afresh and try it
	$(VENV)/release/bin/python .ci/release/build.py
	.ci/release/try_out.sh dist

clean:     ## remove the virtual environment and every cache of the tools
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# What `make demo` needs, and what `make test` needs on top of it.
$(VENV)/run: pyproject.toml .ci/requirements/run.txt .ci/requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "wisp needs Python 3.11 or newer; this is $$($(PYTHON) --version). Set PYTHON=python3.12, say." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: trying to install python3-venv" >&2; \
	  [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; } || { \
	  echo "Install it by hand: sudo apt-get install python3-venv" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "installing wisp into $(VENV) (first time: about a minute)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/run.txt -r .ci/requirements/build.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev: $(VENV)/run .ci/requirements/dev.txt
	@echo "installing the development tools into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/dev.txt
	@touch $@

# The tools of a release have an environment of their own: nothing of them is beside what is tested.
$(VENV)/release: $(VENV)/run .ci/requirements/release.txt
	@$(PYTHON) -m venv $@
	@$@/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/release.txt
	@touch $@
