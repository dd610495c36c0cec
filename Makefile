# make demo       pretrain with and without StoP on embedded scenes, probe, compare (about 5 minutes)
# make test       lint, types, room order, tests (under 10 minutes on 2 cores)
# make test-all   the same and the slow tests
PYTHON ?= python3
MINUTES ?= 5
BIN := .venv/bin

.PHONY: demo test test-all lint format clean

demo: .venv/ready
	$(BIN)/flexpredict demo --out demo-run --minutes $(MINUTES)

test: lint
	$(BIN)/pytest -n 2

test-all: lint
	$(BIN)/pytest -n 2 -m "not slow and not gpu"
	$(BIN)/pytest -m "slow and not gpu"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv demo-run

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch .venv/ready
