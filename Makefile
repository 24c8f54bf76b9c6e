# Two commands do everything: `make` sets up and runs the embedded job, `make test` sets up and runs the tests.
# After that, `. .venv/bin/activate` and plain `snakemake` targets.
PYTHON ?= python3.11
# Which environment of envs/ .venv holds: local, gpu, tpu, tpu-tensorflow. To change it: make -B setup ENVIRONMENT=gpu
ENVIRONMENT ?= local
# The locks that it is made of.
LOCKS := envs/bootstrap.txt $(patsubst %,envs/%,$(shell sed -n 's/^-r //p' envs/$(ENVIRONMENT).txt))
SHELL := /bin/bash

.PHONY: run setup lint check test test-all bench bench-data bench-steps bench-packing bench-plan bench-report pictures lock format

run: setup
	@.venv/bin/snakemake
	@.venv/bin/snakemake --report report.zip --quiet all
	@echo "The report: results/report.html; Snakemake's own: report.zip. The artifacts: results/"

setup: .venv/ready

.venv/ready: envs/$(ENVIRONMENT).txt $(LOCKS) envs/setup.py envs/mend_transformers.py envs/mend_snakemake.py envs/mended_snakemake.py
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on this machine; install Python 3.11, or say which: make PYTHON=..."; exit 1; }
	$(PYTHON) envs/setup.py $(ENVIRONMENT)
	@touch $@

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/snakefmt --check Snakefile rules
	.venv/bin/snakemake --lint
	PYTHONPATH=scripts .venv/bin/lint-imports
	.venv/bin/mypy

# While you work, a minute: lint, types, and the tests that import neither TensorFlow nor JAX.
check: lint
	.venv/bin/pytest -m unit

# Everything that a user relies on.
test: lint
	.venv/bin/pytest -m "not long"

# All tests.
test-all: lint
	.venv/bin/pytest

# All measurements of this machine; an hour and a half with nothing beside it. One that fails is named at the end.
BENCHES := bench-data bench-steps bench-packing
bench: setup
	@failed=; for one in $(BENCHES); do $(MAKE) --no-print-directory $$one || failed="$$failed $$one"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

# Data preparation beside the tools that it replaces; writes the table of README.md and benchmarks/results/data.md.
bench-data: setup
	.venv/bin/python benchmarks/data.py

# Training steps, the start of a training and the embedded job, beside the published `fit` and, with `make bench-steps
# BEFORE=COMMIT`, an earlier version; writes the tables of README.md and benchmarks/results/steps.md.
bench-steps: setup
	.venv/bin/python benchmarks/steps.py $(if $(BEFORE),--before $(BEFORE))

# Documents packed apart beside one a record; writes the table of README.md and benchmarks/results/packing.md.
bench-packing: setup
	.venv/bin/python benchmarks/packing.py

# The time of steps as plans model it, beside what others have measured, how much of a TPU they use, and the plans of the
# recipes; the tables are written to README.md and benchmarks/results/{plan_table,utilisation,recipes}.md. With `make
# bench-plan COMPILE=1` their programs are compiled again: hours.
bench-plan: setup
	$(if $(COMPILE),.venv/bin/python benchmarks/plan_table.py compile)
	.venv/bin/python benchmarks/plan_table.py table
	$(if $(COMPILE),.venv/bin/python benchmarks/utilisation.py compile)
	$(if $(COMPILE),.venv/bin/python benchmarks/utilisation.py compile --before)
	.venv/bin/python benchmarks/utilisation.py table
	$(if $(COMPILE),.venv/bin/python benchmarks/recipes.py plan)
	.venv/bin/python benchmarks/recipes.py table

# How long the report's page takes to write and to open, with 50 runs of 10,000 steps and 1,000 shards.
bench-report: setup
	.venv/bin/python benchmarks/report.py

# The pictures of README.md, from the report of the embedded job; needs Chromium.
pictures: setup
	.venv/bin/snakemake report
	.venv/bin/python tools/pictures.py

# Resolve the locked environments again, after a change of envs/*.in.
lock: setup
	.venv/bin/python envs/lock.py

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/snakefmt Snakefile rules
