# Every target sets up what it needs by itself. PYTHON chooses the interpreter; each has its own environment in .venv/.

PYTHON ?=
INTERPRETER := $(shell scripts/find-python "$(PYTHON)" 2>/dev/null)
TAG  := $(if $(INTERPRETER),$(shell "$(INTERPRETER)" -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN  = .venv/$(TAG)/bin
CORE = .venv/$(TAG)-core/bin
# Two more than there are cores: tests wait for the processes and servers that they start.
JOBS ?= $(if $(INTERPRETER),$(shell "$(INTERPRETER)" -c 'import os; print((os.cpu_count() or 1) + 2)'))
MINUTES ?= 30

# Installs dependency groups of pyproject.toml: $(call install,demo lint)
install = @python=$$(scripts/find-python "$(PYTHON)") && "$$python" scripts/setup-env $(1)

# Otherwise every process that a test starts would compile icefloe again.
unexport PYTHONDONTWRITEBYTECODE

CODE = src tests docs/_site $(wildcard demo benchmarks)
HOUSE_RULES = $(addprefix tests/test_, \
    layering.py house_rules.py docs.py packaging.py repository_hygiene.py)

.DEFAULT_GOAL := help

.PHONY: help setup setup-demo setup-compat demo test test-core test-setup test-on-spark test-without-spark check lint ruff codespell house-rules compat \
    test-servers test-samples test-web test-cluster test-spark torture bench coverage docs docs-site docs-serve wheel dist clean

help:
	@echo "make demo              turn NetCDF files into a versioned repository with Spark, and query it"
	@echo "make test-core         the tests that need only the core dependencies: a quick start"
	@echo "make test              ruff, mypy and every test except those below"
	@echo "make check             ruff, mypy, spelling and the house rules: run it before each push"
	@echo "make compat            tests against the official icechunk package"
	@echo "make test-setup        set-up itself: interrupted, offline, full disk, another user"
	@echo "make test-servers      tests against SeaweedFS, ministack, rclone, Azurite and HTTP"
	@echo "make test-samples      sample files of other packages, compared with docs/reference/virtual-files.md"
	@echo "make test-web          the pages of icefloe serve in Chromium: drawing, keyboard, accessibility, budgets"
	@echo "make test-cluster      Spark on a local cluster, on a master with two workers, through Connect; faults"
	@echo "make test-spark        the Spark tests with another release: PYSPARK='4.0.*'"
	@echo "make torture           concurrent writers, faults and kills for MINUTES=30"
	@echo "make coverage          line coverage of make test, in build/coverage"
	@echo "make docs              build the documentation in build/site, run its examples, open it in Chromium without network"
	@echo "make docs-serve        serve the documentation while you write it, on http://127.0.0.1:8000"
	@echo "make bench             benchmarks against the official package: ROW=name for one, JSON=path for the figures"
	@echo "make wheel             build dist/icefloe-*.whl"
	@echo "make dist              release dry run: wheel, sdist, twine check, installation into an empty environment"
	@echo "make clean             remove environments, caches and build results"
	@echo
	@echo "Python: $(or $(INTERPRETER),none found) ($(or $(TAG),install 3.11 or newer));" \
	    "choose another one with PYTHON=..., the newest here is $$(scripts/newest-python || echo 'none of 3.11 or newer')"

setup:
	$(call install,test lint)

setup-demo:
	$(call install,demo)

setup-compat: setup
	$(call install,compat)

demo: setup-demo
	@$(BIN)/python demo/run.py

test-core:
	$(call install,core)
	scripts/in-memory $(CORE)/python -m pytest -q -n $(JOBS) --dist worksteal --only-installed -m "not servers and not setup and not docs and not web"

# The hooks of .pre-commit-config.yaml are these three targets.
ruff: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

codespell: setup
	$(BIN)/codespell

house-rules: setup
	$(BIN)/python -m pytest -q -m "not docs" $(HOUSE_RULES)

lint: ruff codespell
	$(BIN)/mypy $(CODE)

# All at once: each of them leaves a core idle now and then.
test: setup
	@$(MAKE) --no-print-directory -j 3 test-on-spark test-without-spark lint

test-without-spark: setup
	scripts/in-memory $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not compat and not servers and not spark and not setup and not docs and not web"

# One process: a Java virtual machine for each costs more than it saves.
test-on-spark: setup
	scripts/in-memory $(BIN)/python -m pytest -q -n 0 -m "spark and not cluster" $$(grep -rlw --include='test_*.py' --exclude-dir=compat mark.spark tests)

check: lint house-rules

compat: setup-compat
	scripts/in-memory $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "compat and not cluster"

# Two processes: most of the time goes into downloads.
test-setup: setup
	$(BIN)/python -m pytest -n 2 -m setup tests/setup

# One process: two SeaweedFS on one machine get in each other's way.
test-servers: setup
	$(call install,servers)
	@scripts/setup-azurite
	PATH="$(CURDIR)/.venv/azurite/node_modules/.bin:$$PATH" $(BIN)/python -m pytest -n 0 -m servers

# The files of docs/reference/virtual-files.md, downloaded once.
test-samples: setup
	scripts/fetch-samples $(BIN)/python .venv/samples
	$(BIN)/python -m tests.support.virtual.table --check .venv/samples

# One process: the pages are measured, too.
test-web: setup
	$(call install,web)
	@scripts/setup-web
	$(BIN)/python -m pytest -n 0 -m web tests/web

test-cluster: setup-compat
	$(call install,cluster)
	$(BIN)/python -m pytest -n 0 -m cluster

# Another release of PySpark, in an environment of its own: its pin is the only one that does not apply.
test-spark: setup
	@test -n "$(PYSPARK)" || { echo "choose a release: make test-spark PYSPARK='4.0.*'"; exit 2; }
	$(BIN)/uv venv -q --clear --python $(BIN)/python .venv/spark-$(TAG)
	grep -v -e '^pyspark==' -e '^py4j==' constraints.txt > .venv/spark-$(TAG)/constraints.txt
	$(BIN)/uv pip install -q --python .venv/spark-$(TAG)/bin/python -c .venv/spark-$(TAG)/constraints.txt \
	    --editable . --group test "pyspark==$(PYSPARK)"
	.venv/spark-$(TAG)/bin/python -m pytest -n 0 -m "spark and not cluster"

torture: setup-compat
	ICEFLOE_KILL_EVERY=1 $(BIN)/python -m pytest -q -n $(JOBS) tests/storage/local/test_kills.py
	ICEFLOE_HISTORIES=100 ICEFLOE_BREAK_EVERY=1 ICEFLOE_FLIPS=100000 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal \
	    tests/proof/test_simulation.py tests/proof/test_shortened_histories.py tests/legacy/test_upgrade.py tests/format/test_damage.py
	ICEFLOE_EXAMPLES=500 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal \
	    -m "not compat and not servers and not spark and not docs" $$(grep -rlw --include='test_*.py' given tests)
	ICEFLOE_KILL_EVERY=7 $(BIN)/python -m pytest -q -n $(JOBS) tests/ingest/test_killed.py
	ICEFLOE_EVERY_MODE=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not spark" $$(grep -rl --include='test_*.py' support.ingest.modes tests)
	ICEFLOE_KILL_EVERY=1 $(BIN)/python -m pytest -q -n $(JOBS) tests/derive/test_killed.py
	ICEFLOE_SERVED_COMMITS=200 ICEFLOE_SERVED_SECONDS=600 ICEFLOE_SERVED_BYTES=1073741824 $(BIN)/python -m pytest -q \
	    -n $(JOBS) tests/serve/test_load.py
	for mode in native hybrid virtual; do for kind in usual usual-alike odd alike mixed mixed-alike; do \
	    $(BIN)/python -m tests.support.ingest.fuzz --seeds 0-60 --mode $$mode --kind $$kind || exit 1; done; done
	ICEFLOE_CRASHES=1000 ICEFLOE_DAMAGES=100 $(BIN)/python -m pytest -q -n $(JOBS) tests/maintenance/integrity/test_damage.py \
	    tests/proof/test_maintenance_crashes.py tests/proof/test_refs_beside_collections.py
	ICEFLOE_STATEMENTS=300 $(BIN)/python -m pytest -q -n 0 tests/spark/test_run_statements.py
	ICEFLOE_DRIVER_KILLS=50 $(BIN)/python -m pytest -q -n 0 -m cluster -k "any_time or stream_survives" tests/spark/test_faults.py \
	    tests/compat/test_stream_kills.py
	ICEFLOE_STREAMS=100 $(BIN)/python -m pytest -q -n $(JOBS) tests/query/stream/test_rows.py
	ICEFLOE_APPENDS=300 ICEFLOE_FEEDS=300 ICEFLOE_FEED_PROCESSES=100 ICEFLOE_FEED_DAYS=365 $(BIN)/python -m pytest -q -n $(JOBS) tests/core/merge/test_concurrent_appends.py \
	    tests/proof/test_feeds.py
	ICEFLOE_STATISTICS_HISTORIES=200 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests/maintenance/statistics
	ICEFLOE_STATISTICS=100 $(BIN)/python -m pytest -q -n $(JOBS) -m compat tests/compat/test_statistics.py
	ICEFLOE_QUERIES=300 $(BIN)/python -m pytest -q -n 0 tests/spark/test_statistics.py
	ICEFLOE_DERIVATIONS=60 ICEFLOE_DERIVATION_STEPS=8 $(BIN)/python -m pytest -q -n $(JOBS) tests/derive/test_histories.py tests/derive/test_counts.py
	$(BIN)/python -m tests.support.simulation.torture --minutes $(MINUTES)

bench: setup-compat
	$(BIN)/python benchmarks/run.py $(if $(ROW),--row "$(ROW)") $(if $(JSON),--json "$(JSON)")

# Strict: a broken link, a public name without documentation or an example that fails ends it with an error.
docs: docs-site
	$(BIN)/python -m pytest -q -n $(JOBS) -m docs $$(grep -rlw --include='test_docs*.py' mark.docs tests)

docs-site: setup
	$(call install,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

docs-serve: setup
	$(call install,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --watch src

# Worker processes of pytest and of the tests are measured, too: see [tool.coverage] in pyproject.toml. For those of Spark
# each Python process imports tests/support/spark/measured/sitecustomize.py.
coverage: setup
	$(call install,coverage)
	$(BIN)/coverage erase
	PYTHONPATH="$(CURDIR)/tests/support/spark/measured" $(BIN)/coverage run -m pytest -q -n 0 -m "spark and not cluster"
	$(BIN)/coverage run -m pytest -q -n $(JOBS) --dist worksteal -m "not compat and not servers and not spark and not setup and not docs and not web"
	$(BIN)/coverage combine -q
	$(BIN)/coverage html -q
	$(BIN)/coverage report --skip-covered --sort=cover | tail -n 40

wheel:
	$(call install,release)
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist . >/dev/null
	@ls dist

# What RELEASING.md describes, without publishing anything.
dist: wheel
	$(BIN)/python -m build --sdist --outdir dist . >/dev/null
	$(BIN)/twine check --strict dist/*
	scripts/check-dist $(BIN)/python dist

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
