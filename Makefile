# Every target sets up what it needs by itself. PYTHON chooses the interpreter; each has its own environment in .venv/.

PYTHON ?= python3
# One more than there are cores: tests wait for the processes and servers that they start.
JOBS   ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)' 2>/dev/null)

# Processes that tests start would compile all of icefloe again, each.
unexport PYTHONDONTWRITEBYTECODE

TAG  = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
BIN  = .venv/$(TAG)/bin
CODE = src tests $(wildcard demo benchmarks)
HOUSE_RULES = $(addprefix tests/test_, \
    layering.py house_rules.py docs.py packaging.py repository_hygiene.py)

.DEFAULT_GOAL := help
MINUTES ?= 30

.PHONY: help setup demo test test-on-spark test-format check lint compat setup-compat test-servers test-samples test-cluster test-spark torture bench wheel clean

help:
	@echo "make demo              set up and run the demonstration: NetCDF files, through Spark, into a repository"
	@echo "make test              set up, then ruff, mypy and every test except compat"
	@echo "make check             ruff, formatting, mypy and the house rules: before each push"
	@echo "make compat            tests against the official icechunk package"
	@echo "make test-servers      tests against SeaweedFS, ministack, rclone, Azurite and HTTP, installed if need be"
	@echo "make test-samples      sample files of other packages, downloaded, against docs/virtual-files.md"
	@echo "make test-cluster      Spark on a local cluster, on a master with two workers, through Connect; faults"
	@echo "make test-spark        the Spark tests with another release: PYSPARK='4.0.*'"
	@echo "make torture           writers against each other for MINUTES=30, in bad weather and killed; figures"
	@echo "make bench             benchmarks against it: one row with ROW=name, figures to a file with JSON=path"
	@echo "make wheel             build dist/icefloe-*.whl"
	@echo "make clean             remove environments, caches and build results"
	@echo
	@echo "PYTHON=$(PYTHON) (Python $(or $(TAG),not found)); the newest on this machine:" \
	    "$$(scripts/newest-python || echo 'none of 3.11 or newer')"

setup:
	@scripts/setup-env $(PYTHON)

setup-compat: setup
	@scripts/setup-env $(PYTHON) compat

demo: setup
	@$(BIN)/python demo/run.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)

# Beside the tests on Spark, which leave half of a small machine idle: types, and then the tests of the format.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint test-on-spark test-format
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --ignore tests/format \
	    -m "not compat and not servers and not spark"

test-format: setup
	$(BIN)/python -m pytest -q -n 0 -m "not compat and not servers and not spark" tests/format

# One process: a Java virtual machine for each costs more than it saves.
test-on-spark: setup
	$(BIN)/python -m pytest -n 0 -m "spark and not cluster"

check: lint
	$(BIN)/python -m pytest -q $(HOUSE_RULES)

compat: setup-compat
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m compat

# One process: two SeaweedFS on one machine get in each other's way.
test-servers: setup
	@scripts/setup-env $(PYTHON) servers
	@scripts/setup-azurite
	PATH="$(CURDIR)/.venv/azurite/node_modules/.bin:$$PATH" $(BIN)/python -m pytest -n 0 -m servers

# The files of docs/virtual-files.md, downloaded once.
test-samples: setup
	scripts/fetch-samples $(BIN)/python .venv/samples
	$(BIN)/python -m tests.virtual.table --check .venv/samples

test-cluster: setup
	@scripts/setup-env $(PYTHON) cluster
	$(BIN)/python -m pytest -n 0 -m cluster

# Another release of PySpark, in an environment of its own: its pin is the only one left out.
test-spark: setup
	@test -n "$(PYSPARK)" || { echo "say which: make test-spark PYSPARK='4.0.*'"; exit 2; }
	$(PYTHON) -m venv --clear .venv/spark-$(TAG)
	grep -v -e '^pyspark==' -e '^py4j==' constraints.txt > .venv/spark-$(TAG)/constraints.txt
	.venv/spark-$(TAG)/bin/python -m pip install -qq -c .venv/spark-$(TAG)/constraints.txt hatchling editables
	.venv/spark-$(TAG)/bin/python -m pip install -qq -c .venv/spark-$(TAG)/constraints.txt "pyspark==$(PYSPARK)"
	.venv/spark-$(TAG)/bin/python -m pip install -qq -c .venv/spark-$(TAG)/constraints.txt \
	    --no-build-isolation --editable ".[test]"
	.venv/spark-$(TAG)/bin/python -m pytest -n 0 -m "spark and not cluster"

torture: setup
	ICEFLOE_KILL_EVERY=1 $(BIN)/python -m pytest -q -n $(JOBS) tests/test_kills.py
	ICEFLOE_KILL_EVERY=7 $(BIN)/python -m pytest -q -n $(JOBS) tests/ingest/test_killed.py
	for mode in native hybrid virtual; do for kind in usual usual-alike odd alike mixed mixed-alike; do \
	    $(BIN)/python -m tests.ingest.fuzz --seeds 0-60 --mode $$mode --kind $$kind || exit 1; done; done
	ICEFLOE_CRASHES=1000 ICEFLOE_DAMAGES=100 $(BIN)/python -m pytest -q -n $(JOBS) tests/maintenance/test_damage.py \
	    tests/proof/test_upkeep_crashes.py tests/proof/test_refs_beside_collections.py
	$(BIN)/python -m tests.proof.torture --minutes $(MINUTES)

bench: setup-compat
	$(BIN)/python benchmarks/run.py $(if $(ROW),--row "$(ROW)") $(if $(JSON),--json "$(JSON)")

wheel: setup
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
