# `make demo` and `make test` do all their own set-up. See CONTRIBUTING.md.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Spark starts its Python workers with the system's Python unless it is told otherwise.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Another Spark, or other modules, would take the place of the locked ones. Without bytecode files
# each of the hundreds of processes of a test run would compile all modules again.
unexport SPARK_HOME PYTHONPATH PYTHONDONTWRITEBYTECODE

# For what starts many JVMs.
ON_JAVA := scripts/ensure-java scripts/brief-jvms

# Five processes, for two cores: three have a Spark session each, the others have all else; see
# tests/conftest.py, which also orders them. Tests that wait do not idle a core.
PYTEST_ARGS ?= -n 5 --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo test docs lint format bench bench-engine bench-live bench-exactly-once bench-transactions bench-disorder bench-nexmark figures bench-batch bench-kafka bench-upgrade bench-elastic bench-scaling bench-state bench-versions native soak dist lock ui clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(STAMP) ## only set up: virtual environment, dependencies, Java, Graphviz
	@scripts/ensure-java
	@scripts/ensure-optional

demo: setup ## run the demonstration
	@scripts/ensure-java $(BIN)/python examples/demo.py

test: setup ## run all tests (PYTEST_ARGS=... for some of them)
	@scripts/ensure-postgres
	@scripts/ensure-kafka
	@scripts/ensure-s3
	@scripts/ensure-hadoop
	@scripts/ensure-chromium
	$(ON_JAVA) $(BIN)/python -m pytest $(PYTEST_ARGS)

docs: $(STAMP) ## build the documentation site into build/site; it has to have no broken link
	@scripts/ensure-docs build/docs
	@NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict
	@echo "The site is in build/site: open build/site/index.html"

lint: $(STAMP) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

format: $(STAMP) ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

native: setup ## the compiled loops at length: leaks, AddressSanitizer, every Python from 3.11 to 3.14 that is here
	EMBERFLOW_SOAK=1 $(BIN)/python -m pytest -rs tests/native

soak: setup ## all tests with all their seeds, then many more seeds and kills: make soak SEEDS=100000 CONTRACT=10 FAULTS=10
	@scripts/ensure-postgres
	@scripts/ensure-kafka
	@scripts/ensure-s3
	@scripts/ensure-hadoop
	@scripts/ensure-chromium
	EMBERFLOW_SOAK=1 $(ON_JAVA) $(BIN)/python -m pytest $(PYTEST_ARGS)
	for drawn in "" --crashes --transactions "--transactions --crashes" --queries "--queries --crashes" \
	    --histories "--histories --crashes" --keys "--keys --crashes" --versions --moves --standby --cold --batch; do \
	  $(BIN)/python -m tests.simulation.soak --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0) $$drawn || exit 1; \
	done
	for round in $$(seq 1 $(or $(CONTRACT),3)); do \
	  EMBERFLOW_CONTRACT_ROUND=$$round $(ON_JAVA) $(BIN)/python -m pytest -q tests/contract || exit 1; \
	done
	for round in $$(seq 1 $(or $(FAULTS),3)); do \
	  EMBERFLOW_FAULTS_ROUND=$$round $(ON_JAVA) $(BIN)/python -m pytest -q tests/faults tests/spark/test_kafka_killed.py tests/hadoop || exit 1; \
	done

bench: setup ## run the benchmarks
	@scripts/ensure-bytewax build/bench-bytewax
	@scripts/ensure-java $(BIN)/python bench/run.py

bench-engine: setup ## only the engine, against plain Python loops
	@scripts/ensure-java $(BIN)/python bench/run.py engine

bench-live: setup ## only live queries, against Spark's own and Bytewax (ONLY=throughput for a part)
	@scripts/ensure-bytewax build/bench-bytewax
	@scripts/ensure-java $(BIN)/python bench/run.py live $(addprefix --only ,$(ONLY))

bench-disorder: setup ## only disorder: partitions, late elements, contention (ONLY=partitions for a part)
	@scripts/ensure-kafka
	@scripts/ensure-java $(BIN)/python bench/run.py disorder $(addprefix --only ,$(ONLY))

bench-nexmark: setup ## NEXMark, against Spark's own streaming and Flink SQL (ONLY=throughput, QUERIES="q3 q4", QUICK=1)
	@scripts/ensure-flink build/bench-flink
	@scripts/ensure-java $(BIN)/python bench/run.py nexmark $(addprefix --only ,$(ONLY)) $(addprefix --query ,$(QUERIES)) $(if $(QUICK),--quick)

figures: setup ## draw the figures of the determinism paper: optimistic, conservative, adaptive (EMBERFLOW_DATA=folder)
	@scripts/ensure-java $(BIN)/python bench/run.py speculation $(addprefix --only ,$(ONLY))

bench-batch: setup ## only batch on Spark, against PySpark written by hand (EMBERFLOW_DATA=folder)
	@scripts/ensure-java $(BIN)/python bench/run.py batch

bench-exactly-once: setup ## what exactly-once costs, against markers (ONLY=latency, QUICK=1)
	@scripts/ensure-java $(BIN)/python bench/run.py exactly_once $(addprefix --only ,$(ONLY)) $(if $(QUICK),--quick)

bench-transactions: setup ## transactions, against PostgreSQL and by what they depend on (ONLY=bank, QUICK=1)
	@scripts/ensure-postgres
	@scripts/ensure-java $(BIN)/python bench/run.py transactions $(addprefix --only ,$(ONLY)) $(if $(QUICK),--quick)

bench-upgrade: setup ## how long output stands still while a new version takes over (ONLY=index, QUICK=1)
	@scripts/ensure-java $(BIN)/python bench/run.py upgrade $(addprefix --only ,$(ONLY)) $(if $(QUICK),--quick)

bench-elastic: setup ## what is late while workers come, go, are killed, and keys move (QUICK=1)
	@scripts/ensure-java $(BIN)/python bench/run.py elastic $(if $(QUICK),--quick)

bench-versions: setup ## latency in order of this version and of another one, by turns (OTHER=folder, ROUNDS=9)
	@scripts/ensure-java $(BIN)/python bench/versions.py $(OTHER) $(addprefix --rounds ,$(ROUNDS))

bench-scaling: setup ## what an element costs by the number of workers (ONLY="workers rates sampling ranges acks driver model", QUICK=1, EMBERFLOW_DATA=folder)
	@scripts/ensure-java $(BIN)/python bench/run.py scaling $(addprefix --only ,$(ONLY)) $(if $(QUICK),--quick)

bench-state: setup ## memory a key, more keys than fit, cuts, restarts, transformWithState (ONLY="memory 1 5 20 cuts restore spark", QUICK=1)
	@scripts/ensure-java $(BIN)/python bench/run.py state $(addprefix --only ,$(ONLY)) $(if $(QUICK),--quick)

bench-kafka: setup ## only Kafka, topic to topic
	@scripts/ensure-kafka
	@scripts/ensure-java $(BIN)/python bench/kafka.py

dist: setup ## build what is released: an sdist, and wheels with the compiled loops for every Python that is here
	PYTHON=$(BIN)/python scripts/build-dist dist

lock: ## pin the newest dependencies in requirements.lock
	scripts/lock

ui: ## build the page of a live query from ui/ (needs npm)
	npm --prefix ui ci --no-audit --no-fund --ignore-scripts
	npm --prefix ui run build

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist spark-warehouse metastore_db .mypy_cache .pytest_cache .ruff_cache .hypothesis ui/node_modules
	rm -rf src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed anew only when what is to be installed has changed.
$(STAMP): requirements.lock pyproject.toml setup.py $(wildcard src/emberflow/native/*.c src/emberflow/native/headers/*.h)
	@scripts/ensure-venv $(VENV)
	@touch $@
