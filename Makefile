# Every target does its own set-up, in .venv, without root; a second run sets nothing up again.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# An environment of its own: what it brings changes what other packages load.
SITE := .venv-docs
# Most tests wait for processes at times: more workers than there are cores. But each worker
# imports all tests.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock"

# Tests and kills start hundreds of processes: without bytecode each compiles the package first.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo serve test smoke prove check format bench docs share deb lock clean

help: ## Show what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.server ## See it whole: a fleet, its guests, maintenance, in half a minute
	@$(BIN)/forewarn demo $(ARGS)

serve: $(VENV)/.server ## Run the service with its defaults (ARGS="--config FILE" for yours)
	@$(BIN)/forewarn serve $(ARGS)

test: $(VENV)/.dev $(VENV)/.collected ## Run the tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

smoke: $(VENV)/.dev ## Run the smallest piece of each lab: replicas, a real guest, relays, kills of agent and service
	@PYTHONPATH=tests $(BIN)/python -m proofs smoke $(AREA)

prove: $(VENV)/.dev ## Run all that is heavy, or an area of it, and write it down (AREA="kills relay" SEED=N; ARGS="--seed 7" for one)
	@PYTHONPATH=tests $(BIN)/python -m proofs $(if $(ARGS),run $(AREA) $(ARGS),prove $(AREA))

check: $(VENV)/.dev ## Format, lint, types, import contracts and the house's rules
	@$(BIN)/ruff format --check --quiet . || { echo "Run 'make format' and look at what it changes."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@report=$$($(BIN)/lint-imports 2>&1) || { echo "$$report"; exit 1; }
	@$(BIN)/python -m pytest -q tests/house
	@PYTHONPATH=tests $(BIN)/python -m proofs stale

format: $(VENV)/.dev ## Format, and mend what the linter can mend
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

bench: $(VENV)/.dev ## Measure it, beside nginx and Go too (ARGS="polling --quick"; benchmarks/README.md names the cases)
	@$(BIN)/python benchmarks $(ARGS)

docs: $(SITE)/.docs ## Build the site of the documentation in site/ (ARGS="serve" shows it while you write)
	@PYTHONPATH=src NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs $(or $(ARGS),build --strict)

share: $(VENV)/.dev ## Write the manual, the shells' completions and the editors' schemas into dist/ (needs go-md2man)
	@$(BIN)/python packaging/write_manual.py dist
	@$(BIN)/python packaging/write_schemas.py dist

deb: $(VENV)/.dev ## Build the Debian packages in dist/ (needs dpkg-dev, debhelper, go-md2man and python3-venv)
	@$(BIN)/python packaging/build_deb.py $(ARGS)

lock: $(VENV)/.dev ## Lock the dependencies anew, with hashes and without an index's address
	@$(PIP) uv
	@$(LOCK) --extra server --extra notify --extra postgresql --group dev pyproject.toml --output-file requirements/dev.txt
	@$(LOCK) --extra server --group build pyproject.toml --constraint requirements/dev.txt \
		--output-file requirements/server.txt
	@$(LOCK) --extra server --extra postgresql pyproject.toml --constraint requirements/dev.txt \
		--output-file requirements/package.txt
	@$(LOCK) pyproject.toml --constraint requirements/dev.txt --output-file requirements/agent.txt
	@$(LOCK) --group docs pyproject.toml --constraint requirements/dev.txt --output-file requirements/docs.txt

clean: ## Remove the environment and every cache
	@rm -rf $(VENV) $(SITE) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache mutants

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Forewarn needs Python 3.11 or newer: install it, or name it with 'make PYTHON=...'."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Forewarn needs Python 3.11 or newer; $(PYTHON) is older. Name another with 'make PYTHON=...'."; exit 1; }
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.server: requirements/server.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing what the service needs (once) ..."
	@$(PIP) --require-hashes --requirement requirements/server.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(VENV)/.server
	@echo "Installing what the tests and checks need (once) ..."
	@$(PIP) --require-hashes --requirement requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# In a fresh clone pytest compiles all tests with their assertions. Once, before each worker would.
$(VENV)/.collected: $(VENV)/.dev
	@echo "Compiling the tests (once) ..."
	@$(BIN)/python -m pytest -q --collect-only >/dev/null
	@touch $@

$(SITE)/.docs: requirements/docs.txt
	@echo "Installing what the site needs (once) ..."
	@$(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --requirement requirements/docs.txt
	@touch $@

