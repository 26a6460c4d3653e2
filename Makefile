# make run    sets up an environment and runs the main job: clusters of a health survey at ten schools, at epsilon 1
# make test   sets up an environment and runs the tests of the package, two at a time
# make papers runs the tests of the second distribution, in strategies/
# make check  what the tests cannot hold in four minutes: deployments, the quick tests with other CPUs' kernels,
#             planted faults, audits of every strategy, growth, and every example, command and notebook of the site
# make flower tests of sites, apps and the engine, with deployments, on another Flower: make flower FLOWER=1.41
# make lint   ruff (lint and format) and mypy --strict
# make resolve  whether dependencies and all extras resolve together, as Flower asks before every run
# make docs   the site, in docs/_build
# make bench  the benchmarks, which take some minutes

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export FLWR_TELEMETRY_ENABLED := 0
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO := 0

.PHONY: run test papers check flower lint resolve docs bench clean

$(READY): pyproject.toml strategies/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade pip
	$(VENV)/bin/pip install --quiet --editable ".[dev]" --editable strategies
	touch $(READY)

run: $(READY)
	$(VENV)/bin/python examples/pupils.py results/pupils.csv
	fedclust run --data results/pupils.csv --client-column school --schema examples/pupils.toml --describe \
	  --n-clusters 4 --epsilon 1

test: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m "not long" --numprocesses 2 --dist worksteal

papers: $(READY)
	FEDCLUST_TESTED=papers OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m "not long" --numprocesses 2 --dist worksteal \
	  strategies/tests tests/strategies tests/models tests/engine/test_engine_by_row.py \
	  tests/engine/test_engine_random_clients.py tests/engine/test_engine_secure.py tests/apps/test_apps_run_configs.py

check: test papers
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m long
	for kernel in Haswell Prescott; do \
	  OPENBLAS_CORETYPE=$$kernel OMP_NUM_THREADS=1 \
	  $(VENV)/bin/python -m pytest -m "not slow and not long" --numprocesses 2 --dist worksteal || exit 1; \
	done
	NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" OMP_NUM_THREADS=1 \
	  $(VENV)/bin/python -m pytest -m "not slow and not long" --numprocesses 2 --dist worksteal
	$(VENV)/bin/python tests/faults.py --jobs 2
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/audits.py
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/checking/audit_faults.py
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/site_examples.py
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/growth.py check
	$(MAKE) docs run

FLOWER ?= 1.41
FLOWER_VENV := .venv-flower-$(FLOWER)
flower:
	$(PYTHON) -m venv $(FLOWER_VENV)
	$(FLOWER_VENV)/bin/pip install --quiet --editable ".[dev]" --editable strategies "flwr[simulation]==$(FLOWER).*"
	PATH="$(CURDIR)/$(FLOWER_VENV)/bin:$$PATH" OMP_NUM_THREADS=1 $(FLOWER_VENV)/bin/python -m pytest tests/site tests/apps tests/engine

lint: $(READY)
	ruff check .
	ruff format --check .
	mypy

resolve: $(READY)
	$(VENV)/bin/python -m uv lock --quiet

docs: $(READY)
	$(VENV)/bin/sphinx-build -q -W --keep-going docs docs/_build

bench: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) .venv-flower-*
