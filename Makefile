# The commands of README.md; `make help` lists them. Each makes .venv when it is missing.
PYTHON ?= python3
PIP_FLAGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
TEST_FLAGS ?=
# One process a core, one thread each; those that start the launcher come one after the other.
SIDE_BY_SIDE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install demo check format lint types fast test test-slurm test-long fix clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv and install the project and its tools into it

$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is too old: Python 3.10 or newer is needed (make PYTHON=python3.11 …)"; exit 2; }
	@command -v c++ >/dev/null || echo "note: no C++ compiler found: DeepSpeed will go on without its shared-memory collectives, slower"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED) ## train and compare small encoders and translation models (under 15 minutes, 2 cores)
	$(BIN)/python -m pipelines.demo

check: format lint types fast ## formatting, lint, types and the fast tests

format: $(INSTALLED)
	$(BIN)/ruff format --check .

lint: $(INSTALLED)
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

fast: $(INSTALLED)
	$(SIDE_BY_SIDE) -m "not slow and not launch and not cluster" $(TEST_FLAGS)

test: $(INSTALLED) ## every test but the long ones (under 8 minutes, 2 cores)
	$(SIDE_BY_SIDE) -m "not slow and not launch and not cluster" $(TEST_FLAGS)
	$(BIN)/python -m pytest -q -m "launch and not slow" $(TEST_FLAGS)

test-slurm: $(INSTALLED) ## jobs on an emulated Slurm cluster (root on Debian; under 12 minutes, 2 cores)
	tests/slurm/run.sh $(TEST_FLAGS)

test-long: test ## every test
	$(BIN)/python -m pytest -q -m slow $(TEST_FLAGS)

fix: $(INSTALLED) ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## delete caches (not runs, data or .venv)
	rm -rf .pytest_cache .mypy_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
