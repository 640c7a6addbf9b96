# make run: install and train; make test: install and test; make check: formatting, lint, types.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed

.PHONY: run test test-all check format clean

run: $(DONE)
	$(BIN)/python -m trainer.run

test: $(DONE)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

test-all: $(DONE)
	$(BIN)/python -m pytest

check: $(DONE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DONE)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(DONE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[atari,box2d,dev]"
	touch $(DONE)

clean:
	rm -rf $(VENV) build *.egg-info
