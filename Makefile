# Every target sets up what it needs in .venv first; Python 3.11 and a package registry are enough.

PYTHON := $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
TRACKERS_READY := $(VENV)/.trackers-ready
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# Datasets beside the repository, if there are any; else SUTURE_DATA or the cache folder, as always.
DATA := $(patsubst %,--data-root %,$(wildcard ../shared/datasets))

.PHONY: help run check test test-browser test-slow test-trackers test-federation golden golden-rewrite docs bench soak fuzz attacks clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# torch first and alone: a looser range would bring gigabytes of CUDA along.
$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV), once, in a minute or two"
	@test -n "$(PYTHON)" || { echo "Python 3.11 is needed: install it, or give its path with PYTHON=..." >&2; exit 2; }
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) install "$$(grep '^torch==' constraints.txt)"
	@$(PIP) install -c constraints.txt -e '.[dev,federation,index,tables,report,dashboard,tune]'
	@touch $@

$(DOCS_READY): $(READY)
	@$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

$(TRACKERS_READY): $(READY)
	@$(PIP) install -c constraints.txt -e '.[tensorboard,mlflow,wandb]'
	@touch $@

run: $(READY)  ## see what a cut costs, and what federation and mending give back (two minutes)
	$(BIN)/suture demo $(DATA)

check: $(READY)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check  ## everything that takes less than minutes
	$(BIN)/python -m pytest -m "not slow and not federation and not trackers" -n 2

test-browser: $(READY)  ## reports and the dashboard in a real browser; installs Chromium by the system's packages
	@$(PIP) install -c constraints.txt -e '.[browser]'
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y chromium >/dev/null; }
	$(BIN)/python -m pytest -m browser tests/browser

test-slow: $(READY) $(DOCS_READY)  ## the tests that take minutes
	@$(PIP) install -c constraints.txt -e '.[ray]'
	$(BIN)/python -m pytest -m slow

test-trackers: $(READY) $(TRACKERS_READY)  ## runs as TensorBoard, MLflow and Weights & Biases read them back
	$(BIN)/python -m pytest -m trackers tests/trackers

test-federation: $(READY)  ## coordinator and owners as processes with mutual TLS, killed and refused
	$(BIN)/python -m pytest -m federation tests/federation tests/adversary

golden: $(READY)  ## compute the golden curves and compare them with their files, digit for digit
	$(BIN)/python tests/golden/curves.py

golden-rewrite: $(READY)  ## write them anew; say in the CHANGELOG which changed, and why
	$(BIN)/python tests/golden/curves.py --rewrite

docs: $(DOCS_READY)  ## the documents and a reference of the code as a site, in site/
	$(BIN)/python -m sphinx -W --keep-going -q -c docs/site . site
	@echo "open site/index.html"

bench: $(READY)  ## time a round and measure memory
	$(BIN)/python benchmarks/round_time.py $(DATA)
	$(BIN)/python benchmarks/memory.py $(DATA)
	$(BIN)/python benchmarks/dashboard.py

attacks: $(READY)  ## attack every method, and write the matrix of docs/privacy.md; goes on where it was stopped
	$(BIN)/python benchmarks/attack_matrix.py $(DATA)

soak: $(READY)  ## an hour of run after run between eight owners: memory, open files, nothing lost
	$(BIN)/python benchmarks/soak.py

fuzz: $(READY)  ## a million damaged frames, a thousand damaged files
	$(BIN)/python benchmarks/fuzz_frames.py
	$(BIN)/python benchmarks/fuzz_files.py

clean:  ## remove what the above made, except runs/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist site docs/reference *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
