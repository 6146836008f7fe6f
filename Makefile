# A bare clone needs Python 3.11 or newer, gcc, make and a package registry; the rest is fetched
# into .venv on first use. Another Python: make PYTHON=python3.12 test
PYTHON ?= python3
PY := .venv/bin/python
SOAK_MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help demo test test-nodes lint bench generate soak fuzz clean ready-demo ready-test

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ready-demo ## Train for real, break it on purpose, and see who is told what (under 4 minutes)
	@.venv/bin/sentinel demo

# Every stage runs, so that one call tells all that is wrong.
static = wrong=; \
	$(PY) -m ruff check . || wrong="$$wrong style"; \
	$(PY) -m ruff format --check . || wrong="$$wrong layout"; \
	$(PY) -m mypy || wrong="$$wrong types"; \
	.venv/bin/lint-imports >/dev/null || { .venv/bin/lint-imports; wrong="$$wrong layers"; }; \
	$(PY) -m sentinel.generate --check || wrong="$$wrong generated-files"
verdict = test -z "$$wrong" || { echo "make $@ failed at:$$wrong"; exit 1; }

test: ready-test ## Everything that must hold: style, types, generated files, tests
	@$(static); \
	$(PY) scripts/missing_programs.py || wrong="$$wrong programs"; \
	$(PY) -m pytest -rfEs || wrong="$$wrong tests"; \
	$(verdict)

test-nodes: ready-test ## Nodes as network namespaces on this machine, for root: links cut, nodes killed
	@$(PY) -m pytest -m nodes -rfEs tests/nodes

lint: ready-test ## Style, types and generated files only
	@$(static); $(verdict)

generate: ready-test ## Write rules, dashboards and reference pages anew from the catalogue
	@$(PY) -m sentinel.generate

bench: ready-test ## Measure cost beside other tools; no pass or fail
	@for file in benchmarks/*.py; do echo "== $$file"; $(PY) "$$file" || exit 1; done

soak: ready-test ## Kill processes at random for SOAK_MINUTES (10)
	@$(PY) scripts/soak.py $(SOAK_MINUTES)

fuzz: ready-test ## Try every property with 100 times as many examples as the tests do
	@$(PY) -m pytest -m hypothesis --hypothesis-profile=thorough -rfEs tests

clean: ## Remove everything that make made, .venv too
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find sentinel tests benchmarks examples scripts -name __pycache__ -prune -exec rm -rf {} +

ready-demo:
	@$(PYTHON) scripts/prepare.py demo

ready-test:
	@$(PYTHON) scripts/prepare.py test
