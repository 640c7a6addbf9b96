# make run: install and train; make test: install and test; make check: formatting, lint, types; make docs: the site.
# make test is for every commit; make test-slow runs what takes long (TESTS=tests/slurm: of a folder); make test-all both.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=30

unexport PYTHONDONTWRITEBYTECODE # tests start many processes: each would compile all modules

.PHONY: run test test-slow test-all check docs format clean

run: $(DONE)
	$(BIN)/python -m trainer.run

test: $(DONE)
	$(PYTEST) -m "not slow and not gpu"

test-slow: $(DONE)
	$(PYTEST) -m slow $(TESTS)

test-all: $(DONE)
	$(PYTEST)

check: $(DONE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(DONE)  # the site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(DONE)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(DONE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[atari,box2d,dev,docs]"
	touch $(DONE)

clean:
	rm -rf $(VENV) build *.egg-info
