# Every target sets up what it needs. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): requirements.lock pyproject.toml src/millrace/keys/_kernels.c scripts/setup
	@scripts/setup $(PYTHON) $(VENV)
	@touch $@

setup: $(READY)  ## make the virtual environment with pinned packages

java: $(READY)  ## check that a Java is there that Spark can use
	@$(BIN)/python -c "from millrace.cli.java_check import main; main()"

demo: java  ## a job that pays for each call is killed half-way, started again, and finishes
	@$(BIN)/millrace demo

fix: $(READY)  ## format the code and repair what can be repaired
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

check: $(READY)  ## formatting, lint and types
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

test: java  ## all tests but the slow ones, on classic, Connect and a cluster of processes
	@scripts/test

test-slow: java  ## a third of the slow tests, and laws on more examples, about an hour; MILLRACE_TEST_EXAMPLES=1 MILLRACE_TEST_SCALE=1 for all
	@scripts/test slow

test-matrix: java  ## the dataset, job, read and source suites on Spark 4.0, 4.1 and 4.2: hours; FORM=short takes minutes
	@scripts/test-matrix $(or $(FORM),full)

cluster: java  ## a standalone Spark of three hosts that are killed at random: SEEDS=3 so many, FIRST=n from there
	@SPARK_SUBMIT_OPTS="$$(scripts/spark-archive)" SPARK_DAEMON_JAVA_OPTS="$$(scripts/spark-archive)" \
		MILLRACE_CLUSTER_SEEDS=$(or $(SEEDS),3) MILLRACE_CLUSTER_FIRST=$(or $(FIRST),0) \
		$(BIN)/python -m pytest -v tests/standalone

sim: $(READY)  ## simulated worlds of coordinated reads: SEED=n one of them, SEEDS=100000 so many
	@$(BIN)/python -m tests.sim.simulate $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))

histories: $(READY)  ## histories of processes that are killed: LEDGER=sqlite files postgres bucket, SEEDS=30 so many, FIRST=n from there
	@$(BIN)/python -m tests.histories.many_histories $(or $(LEDGER),sqlite) --seeds $(or $(SEEDS),30) --first $(or $(FIRST),1000)

pyspark-methods: $(READY)  ## write the tables of docs/coming-from-pyspark.md
	@$(BIN)/python scripts/pyspark_methods.py
	@PYTHONPATH=. $(BIN)/python -W ignore -m tests.unit.sql.test_function_calls

architecture: $(READY)  ## draw docs/pictures/architecture.svg from the code's own imports
	@$(BIN)/python scripts/architecture.py

scale: $(READY)  ## draw docs/pictures/scale.svg from measured constants, print the table of docs/scale.md
	@$(BIN)/python scripts/scale.py

spark-functions: $(READY)  ## try Spark's own examples here, print and write docs/spark-functions.md: what is native, what runs on Spark
	@PYTHONPATH=. $(BIN)/python -m tests.unit.sql.test_spark_examples

spark-examples: java  ## ask Spark for the answers of its own examples, into tests/spark/spark_examples.jsonl
	@SPARK_SUBMIT_OPTS="$$(scripts/spark-archive)" PYTHONPATH=. $(BIN)/python -m tests.spark.spark_examples

function-calls: java  ## ask Spark for the answers of all functions called in Python, into tests/spark/function_calls.jsonl
	@SPARK_SUBMIT_OPTS="$$(scripts/spark-archive)" PYTHONPATH=. $(BIN)/python -m tests.spark.function_calls

DOCS_READY := build/docs-venv/.ready

$(DOCS_READY): requirements-docs.lock
	@$(PYTHON) -m venv build/docs-venv
	@build/docs-venv/bin/pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	@touch $@

docs: $(DOCS_READY)  ## the site with the API reference, into build/site; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict --clean
	@echo "made build/site: open build/site/index.html"

# All that measure something; the others are called by them.
BENCHMARKS = $(filter-out check cpu_seconds other_work sail_child,$(sort $(basename $(notdir $(wildcard benchmarks/*.py)))))

bench: java  ## all benchmarks, each beside its peer; hours. One alone: make bench BENCHMARKS=tpch
	@failed=; for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || failed="$$failed $$name"; done; \
	  test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

bench-jobs: java  ## the benchmarks of jobs, of their owner and of opening after a crash
	@for file in job owner open; do $(BIN)/python benchmarks/$$file.py; done

GROWTH_SCALES ?= 0.1 0.2 0.4 0.8 1.6
SAIL ?=

bench-plots: java  ## growth of TPC-H 1x to 16x beside Spark and DuckDB, drawn for docs/performance.md; SAIL=python adds Sail
	@for scale in $(GROWTH_SCALES); do $(BIN)/python benchmarks/tpch.py --scale $$scale --form sql --queries 1 3 6 18 \
	  --results benchmarks/.data/growth.jsonl $(if $(SAIL),--sail $(SAIL)); done
	@$(BIN)/python scripts/growth_plots.py

bench-check: java  ## short benchmarks in under five minutes; fails if one is a fifth below all recorded ratios
	@$(BIN)/python benchmarks/check.py

bench-record: java  ## record the ratios that bench-check compares with; on a quiet machine
	@$(BIN)/python benchmarks/check.py --record

wheel:  ## wheels and an sdist in dist/, tried on Python 3.11, 3.12 and 3.13, in empty environments: alone, and with each extra alone
	@scripts/wheel $(PYTHON)

clean:  ## remove what was built, the virtual environment too
	@rm -rf $(VENV) build dist demo-workspace benchmarks/.data .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help histories scale setup java demo fix check test test-slow test-matrix cluster sim spark-functions spark-examples pyspark-methods docs bench bench-jobs bench-plots bench-check bench-record wheel clean
