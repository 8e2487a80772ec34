# All that is needed on a machine with Python 3.11 or later:
#   make train   set up, and run the flagship: a small model learns to search its own memory
#   make test    set up, and pass lint, types and tests
#   make mutants set up, and see which small faults in blocks the tests find
#   make torture set up, and kill, fill, break and misuse runs by the hundred
#   make cluster-demo  set up, and run GRPO and SSRL on Ray on this machine, with every kind of process killed
#   make docs    set up, and build the documents as a site: build/site/index.html

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# one more than there are cores, for some tests wait for processes that they started
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

.PHONY: help setup train test lint types check fingerprints mutants torture cluster-demo docs format clean

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/.installed: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "selfteach needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(BIN)/.installed

train: setup
	$(BIN)/selfteach train ssrl

test: lint types check

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/method_stub.py --check
	$(BIN)/python scripts/metrics_page.py --check

types: setup
	$(BIN)/basedpyright

check: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

fingerprints: setup
	PYTHONPATH=tests $(BIN)/python -m support.fingerprints

mutants: setup
	$(BIN)/python scripts/mutants.py

torture: setup
	$(BIN)/python scripts/torture.py

cluster-demo: setup
	$(BIN)/python scripts/cluster_demo.py

docs: setup
	$(BIN)/sphinx-build -q -W -b html docs build/site

format: setup
	$(BIN)/python scripts/method_stub.py
	$(BIN)/python scripts/metrics_page.py
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
