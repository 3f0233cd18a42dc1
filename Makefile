# Each target sets up what it needs in .venv; the second time that takes a moment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := pip install --quiet --disable-pip-version-check
TOOLS := build/tools/bin

.PHONY: demo test lint bench docs wheel setup lock audit fuzz

setup: $(VENV)/installed

# Exactly what requirements/ci.txt names, every file by its hash; then fastr itself.
$(VENV)/installed: pyproject.toml requirements/ci.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) --no-deps --require-hashes --requirement requirements/ci.txt
	$(BIN)/$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

# Trains on walker-walk for a few minutes, then shows the curve and the gait.
demo: setup
	run=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	  $(BIN)/fastr train walker-walk --preset laptop --out $$run && \
	  $(BIN)/fastr play $$run --video $$run/gait.mp4

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

# After a change of dependencies in pyproject.toml: requirements/ci.txt anew, for every platform and Python.
# What it holds already stays at its version; `make lock UPGRADE=--upgrade` takes the newest of all.
lock:
	$(PYTHON) -m venv build/tools
	$(TOOLS)/$(PIP) uv==0.13.7
	$(TOOLS)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra dev $(UPGRADE) \
	  --custom-compile-command "make lock" --output-file requirements/ci.txt pyproject.toml

# Known vulnerabilities in what is locked; asks pypi.org.
audit:
	$(PYTHON) -m venv build/tools
	$(TOOLS)/$(PIP) pip-audit==2.10.1
	$(TOOLS)/pip-audit --strict --require-hashes --disable-pip --requirement requirements/ci.txt

# Every loader with inputs found by coverage, MINUTES for each (docs/security.md).
MINUTES ?= 5
fuzz: setup
	$(BIN)/$(PIP) atheris==3.0.0
	$(BIN)/python fuzz/campaign.py --minutes $(MINUTES)
