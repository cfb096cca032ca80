# Everything a developer runs. The first target that needs it makes .venv; later ones find it ready.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
DEMO := out/demo
STAMP := .venv/.stamp

# More arguments for pytest, as in: make test PYTEST_ARGS="-k store --seed 7"
PYTEST_ARGS ?=
# Files of tests that run side by side; 0 runs all in one process. On two cores the third one begins a test while
# the others leave a core idle (tests/support/spare_worker.py).
WORKERS ?= 3
# A worker that dies ends the run: pytest-xdist 3.8 hangs after it replaced one (its issues 1323 and 1378).
TESTS := $(BIN)/python -m pytest -m "not gpu" --chaos-rounds 1 -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
  --max-worker-restart 0

# Where Python may not write bytecode, as in many images, each process of a test would compile dray again.
export PYTHONDONTWRITEBYTECODE :=

# How long `make chaos` goes on. PYTEST_ARGS=--record SOAK_ARGS=--record write tests/chaos/RESULTS.md.
ROUNDS ?= 10
RUNS ?= 300
SOAK_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test chaos bench lint format constraints clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv with dray, vLLM on CPU and all that the tests need

$(STAMP): pyproject.toml constraints.txt deployments/environment.sh deployments/overrides.txt
	@PYTHON="$(PYTHON)" deployments/environment.sh install
	@touch $@

demo: $(STAMP)  ## answer 2,000 support tickets with a small model on this machine, and report
	$(BIN)/dray run examples/tickets/requests.jsonl --model examples/tickets/model --output $(DEMO)
	$(BIN)/python -m examples.tickets.score $(DEMO)
	@echo "Report: $(CURDIR)/$(DEMO)/report.html"

test: $(STAMP)  ## run the tests that need no GPU: of the heavy ones one in 150, drawn anew each time
	@# Long files begin first. pytest's 5: PYTEST_ARGS choose none.
	@$(TESTS) tests/acceptance tests/chaos tests/integration tests/unit $(PYTEST_ARGS) || [ $$? -eq 5 ]

chaos: $(STAMP)  ## all heavy and long tests, ROUNDS=10 kills each (90 minutes), then RUNS=300 jobs of the soak
	$(BIN)/python -m pytest tests/chaos --chaos-rounds $(ROUNDS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "long or heavy" tests/acceptance tests/integration tests/unit \
	  --chaos-rounds $(ROUNDS) $(PYTEST_ARGS)
	$(BIN)/python -m tests.chaos.soak --runs $(RUNS) $(SOAK_ARGS)

bench: $(STAMP)  ## measure dray beside vLLM and Ray Data LLM
	$(BIN)/python -m tests.benchmarks

lint: $(STAMP)  ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)  ## mend style and format where a machine can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

constraints:  ## resolve constraints.txt again, to the newest versions that pyproject.toml allows
	@PYTHON="$(PYTHON)" deployments/environment.sh pin

clean:  ## remove what the other targets wrote, except .venv
	rm -rf out build dist .build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find blocks dray examples flows tasks tests deployments -name __pycache__ -type d -prune -exec rm -rf {} +
