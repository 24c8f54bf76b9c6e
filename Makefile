# Two commands do everything: `make` sets up and runs the embedded job, `make test` sets up and runs the tests.
# After that, `. .venv/bin/activate` and plain `snakemake` targets.
PYTHON ?= python3.11
# Which lock of envs/ .venv holds: local, gpu, tpu, tpu-tensorflow. To change it: make -B setup ENVIRONMENT=gpu
ENVIRONMENT ?= local
SHELL := /bin/bash

.PHONY: run test setup lock format

run: setup
	@.venv/bin/snakemake
	@.venv/bin/snakemake --report report.zip --quiet all
	@echo "The report: report.zip (unpack it and open report.html). The artifacts: results/"

test: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/snakefmt --check Snakefile rules
	.venv/bin/snakemake --lint
	.venv/bin/pytest

setup: .venv/ready

.venv/ready: envs/bootstrap.txt envs/$(ENVIRONMENT).txt envs/mend_transformers.py
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on this machine; install Python 3.11, or say which: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --require-hashes -r envs/bootstrap.txt
	.venv/bin/uv pip sync --quiet --require-hashes --compile-bytecode --python .venv/bin/python envs/bootstrap.txt envs/$(ENVIRONMENT).txt
	.venv/bin/python envs/mend_transformers.py
	@touch $@

# Resolve the locked environments again, after a change of envs/*.in.
lock: setup
	envs/lock

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/snakefmt Snakefile rules
