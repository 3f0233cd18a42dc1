# Each target sets up what it needs in .venv; the second time that takes a moment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench docs wheel setup

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

# Trains on walker-walk for a few minutes, then shows the curve and the gait.
demo: setup
	$(BIN)/python -m fastr.demo

test: lint
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright

bench: setup
	$(BIN)/fastr bench humanoid-walk --method ctrl-sr --seeds 0 --updates 3 --repeats 5

# The documentation's site, in build/site: a broken link, anchor or reference is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	$(BIN)/python tools/check_links.py build/site

# The package, in dist, tried in an empty environment of every Python that is found here.
wheel: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tools/try_wheel.py dist 3.11 3.12 3.13
