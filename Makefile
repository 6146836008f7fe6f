# A bare clone needs Python 3.11 or newer, gcc, make and a package registry. The rest is installed
# into .venv on first use. To use another Python: make PYTHON=python3.12 test
PYTHON ?= python3
PY := .venv/bin/python
SOAK_MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help demo check test test-nodes chaos lint bench generate pictures soak fuzz clean ready-demo ready-test

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ready-demo ## Train for real, inject faults, and see which alerts are sent (2 minutes)
	@.venv/bin/sentinel demo

# Three processes on two cores, because many tests wait; a file stays in one process.
pytest = $(PY) -m pytest -n 3 --dist loadfile --durations=10

# Every stage runs, so that one call reports everything that is wrong.
static = wrong=; \
	$(PY) -m ruff check . || wrong="$$wrong style"; \
	$(PY) -m ruff format --check . || wrong="$$wrong layout"; \
	$(PY) -m mypy || wrong="$$wrong types"; \
	.venv/bin/lint-imports >/dev/null || { .venv/bin/lint-imports; wrong="$$wrong layers"; }; \
	$(PY) -m sentinel.generate --check || wrong="$$wrong generated-files"
result = test -z "$$wrong" || { echo "make $@ failed at:$$wrong"; exit 1; }

check: ready-test ## Style, types, layers, generated files and unit tests (about 4 minutes)
	@$(static); \
	$(pytest) -rfEs tests/unit sentinel || wrong="$$wrong tests"; \
	$(result)

test: ready-test ## Everything: what make check does, and the tests that start real processes
	@$(static); \
	$(PY) scripts/missing_programs.py || wrong="$$wrong programs"; \
	$(pytest) -rfEs || wrong="$$wrong tests"; \
	$(result)

test-nodes: ready-test ## Nodes as network namespaces, as root: links cut, nodes killed
	@$(PY) -m pytest -m nodes -rfEs tests/nodes

chaos: ready-test ## Inject every fault of tests/chaos/faults.toml (30 minutes)
	@$(pytest) -rfEs -m '(fault or full) and not nodes'

lint: ready-test ## Style, types, layers and generated files only
	@$(static); $(result)

generate: ready-test ## Write rules, dashboards and reference pages from the catalogue
	@$(PY) -m sentinel.generate

bench: ready-test ## Measure cost and detection beside other tools; no pass or fail
	@for file in benchmarks/*.py; do echo "== $$file"; $(PY) "$$file" || exit 1; done
	@SEEDED_RUNS=60 $(PY) -m pytest -q -m seeded tests/unit/detectors

pictures: ready-test ## Take the pictures of the README and the docs: needs Chromium
	@$(PY) scripts/pictures.py

soak: ready-test ## Kill processes at random for SOAK_MINUTES (10)
	@CHAOS_KILLS=120 $(PY) scripts/soak.py $(SOAK_MINUTES)

fuzz: ready-test ## Try every property with 100 times as many examples
	@$(PY) -m pytest -m hypothesis --hypothesis-profile=thorough -rfEs tests

clean: ## Remove everything that make created, .venv included
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find sentinel tests benchmarks examples scripts -name __pycache__ -prune -exec rm -rf {} +

ready-demo:
	@$(PYTHON) scripts/prepare.py demo

ready-test:
	@$(PYTHON) scripts/prepare.py test
