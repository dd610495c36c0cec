# make demo       pretrain with and without StoP on embedded scenes, probe, compare (about 5 minutes)
# make test       lint, types, room order, tests (under 10 minutes on 2 cores)
# make test-all   the same and the slow tests
# make test-oldest  tests with the oldest versions that the package allows, in a folder of their own
PYTHON ?= python3
MINUTES ?= 5
BIN := .venv/bin

.PHONY: demo test test-all test-oldest lint format clean

demo: .venv/ready
	$(BIN)/flexpredict demo --out demo-run --minutes $(MINUTES)

test: lint
	$(BIN)/pytest -n 2

test-all: lint
	$(BIN)/pytest -n 2 -m "not slow and not gpu"
	$(BIN)/pytest -m "slow and not gpu"

test-oldest:
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet -c constraints-oldest.txt torch==2.13.0 pytest pytest-xdist scikit-learn tensorboard -e .
	.venv-oldest/bin/pytest -n 2 --ignore tests/interop --ignore tests/examples --ignore tests/test_benchmarks.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-oldest demo-run

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch .venv/ready
