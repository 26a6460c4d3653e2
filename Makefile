# make run    sets up an environment and runs the main job: FedDP-KMeans and its comparison partners by `flwr run`
# make test   sets up an environment and runs the tests, two files at a time; those that start Ray one by one
# make lint   ruff (lint and format) and mypy --strict
# make docs   the site, in docs/_build
# make bench  the benchmarks, which take some minutes

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export FLWR_TELEMETRY_ENABLED := 0
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO := 0

.PHONY: run test lint docs bench clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade pip
	$(VENV)/bin/pip install --quiet --editable ".[dev]"
	touch $(READY)

run: $(READY)
	flwr run . local --stream --federation-config "num-supernodes=10" --run-config strategies/main-job.toml

test: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m slow

lint: $(READY)
	ruff check .
	ruff format --check .
	mypy

docs: $(READY)
	$(VENV)/bin/sphinx-build -q -W --keep-going docs docs/_build

bench: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/run_all.py

clean:
	rm -rf $(VENV)
