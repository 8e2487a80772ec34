# Two commands do everything on a machine with Python 3.11 or later:
#   make train   set up, and run the flagship: a small model learns to search its own memory
#   make test    set up, and pass lint, types and tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup train test lint types check format clean

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

types: setup
	$(BIN)/basedpyright

check: setup
	$(BIN)/python -m pytest

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
