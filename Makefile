# Each target sets up what it needs in .venv; the second time that takes a moment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench setup

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

# Trains on walker-walk for a few minutes, then shows the curve and the gait.
demo: setup
	$(BIN)/python -m fastr.demo

test: lint
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright

bench: setup
	$(BIN)/fastr bench humanoid-walk --method ctrl-sr --seeds 0 --updates 3 --repeats 5
