# Everything runs in .venv, which `make install` makes; nothing else needs to be installed or activated.

BIN := .venv/bin
INSTALLED := .venv/.installed
# the first of these that is Python 3.11 or newer; or `make PYTHON=/some/python3.12 ...`
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

# most of what is installed is never imported, and the rest is compiled when it is
export PIP_NO_COMPILE := 1
# with it, each process that the tests start would compile the package anew
unexport PYTHONDONTWRITEBYTECODE

PYTEST_ARGS ?= -m "not slow"
# Tests wait for servers and processes of theirs, so two processors are not kept busy by two tests: one at a time for
# each 2 GB of memory, up to 4. Each of these has servers of its own, so a file's tests stay together.
AT_ONCE := $(shell awk '/^MemTotal/ {n = int($$2 / 2e6); print(n < 1 ? 1 : n > 4 ? 4 : n)}' /proc/meminfo)
PYTEST_PROCESSES ?= -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder
SEED ?= $(shell date +%s)

.DEFAULT_GOAL := help
.PHONY: help install demo real tiny tiny-multi tiny-sql test fuzz check format dist clean

help:  ## print this list
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1\t\2/p' Makefile | expand -t 20

install: $(INSTALLED)  ## make .venv with the tested versions of everything

# PyTorch first and by its bare version: 2.13.0 also accepts a build such as 2.13.0+cpu, so a machine without
# an NVIDIA GPU takes the small CPU build where pip is shown one (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL), and
# elsewhere the default build, which runs with or without a GPU. What follows keeps what it finds.
$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/pip || test -n "$(PYTHON)" || { \
		echo "No Python 3.11 or newer found. Install one, or name it: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "PYTHON=$(PYTHON) is not a program that runs Python 3.11 or newer: $$($(PYTHON) --version 2>&1 | tail -n 1)." \
			"Name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "$(PYTHON) cannot make a virtual environment (Debian, Ubuntu: apt install python3-venv)."; exit 1; }
	$(BIN)/python -m pip install --quiet torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@

demo: install  ## watch GRPO teach a tiny model: CPU only, a few minutes; then open runs/quickstart/report.html
	$(BIN)/accelerate launch --config_file accelerate_configs/cpu.yaml \
		recipes/grpo_dbbench.py --config recipes/quickstart.yaml
	$(BIN)/trl-dbbench report runs/quickstart

MODEL ?= HuggingFaceTB/SmolLM2-135M-Instruct

real: install  ## a pretrained chat model becomes an agent, on a CPU; hours, goes on where it stopped; MODEL=, REAL_ARGS=
	$(BIN)/python benchmarks/real_model.py $(MODEL) $(REAL_ARGS)

MAKE_WORLD := $(BIN)/accelerate launch --config_file accelerate_configs/cpu.yaml benchmarks/worlds/make.py

tiny: install  ## make the demo's model and tasks anew, in recipes/tiny
	$(MAKE_WORLD) tiny

tiny-multi: install  ## make the model and tasks of several turns anew, in recipes/tiny_multi
	$(MAKE_WORLD) multi

tiny-sql: install  ## make the model and tasks over several tables anew, in recipes/tiny_sql
	$(MAKE_WORLD) sql

test: install  ## run the tests but for the slow ones; with PYTEST_ARGS= all
	$(BIN)/pytest $(PYTEST_PROCESSES) $(PYTEST_ARGS)

fuzz: install  ## run the property tests on new inputs, and many more; SEED=... tries those of an earlier time
	$(BIN)/pytest $(PYTEST_PROCESSES) -m "hypothesis or fuzz" --hypothesis-profile fuzz --hypothesis-seed $(SEED)

check: install  ## check format, lint, types and layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## format the code and fix what the linter can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# A wheel's files have the commit's time and the usual modes, so whoever builds a commit gets the same bytes.
dist: install  ## build the wheel, and a bill of materials (CycloneDX) of what it was tested with
	rm -rf dist build
	mkdir -p build/commit
	git -c tar.umask=0022 archive HEAD | tar -xp -C build/commit
	umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(BIN)/python -m build --wheel --no-isolation --outdir dist build/commit
	$(BIN)/python -W ignore -m cyclonedx_py requirements constraints.txt --pyproject pyproject.toml \
		--output-reproducible --output-file dist/sbom.json
	$(BIN)/twine check --strict dist/*.whl

clean:  ## remove .venv and caches; runs/ stays
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
