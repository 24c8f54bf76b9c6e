# Two commands do everything: `make` sets up and runs the example run, `make test` sets up and runs the tests.
# After that, `. .venv/bin/activate` and plain `snakemake` targets.
# In place of the oldest supported Python on PATH: make PYTHON=/path/to/python3
PYTHON ?=
# Which environment of envs/ .venv holds: local (CPUs), gpu, tpu, tpu-tensorflow. It stays, without a name.
ENVIRONMENT :=
# Whose plugins it has beside it: slurm, gke, gcs, tpu-vm. They stay, too: make setup PROFILE=slurm
PROFILE :=
SETUP = command -v $(or $(PYTHON),python3) >/dev/null || \
	{ echo "error: $(or $(PYTHON),python3) is not on this machine; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }; \
	$(or $(PYTHON),python3) envs/setup.py $(if $(PYTHON),--python $(PYTHON)) $(ENVIRONMENT) $(PROFILE)
SHELL := /bin/bash

.PHONY: run setup setup-tests lint check test test-all architecture docs first-tpu bench bench-data bench-vocabularies bench-steps bench-plan pictures lock presets format

run: setup
	@echo "building the example run of config.yaml; Snakemake lists its jobs in a moment"
	@.venv/bin/snakemake
	@.venv/bin/snakemake --report report.zip --quiet all
	@echo "$$DONE"

define DONE
The report is results/report.html; Snakemake's own report is report.zip. Three things to try:
    . .venv/bin/activate
    python tools/try.py mlm/tiny --prompt "Return the [MASK] of the list."
    snakemake -n      # after a change in config.yaml: the jobs that it makes stale
    python tools/new_config.py YOUR.txt      # a config for your own text
endef
export DONE

setup:
	@$(SETUP)

# What the tests, and lint, need beside it.
setup-tests:
	@$(SETUP) tests

lint: setup-tests
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/snakefmt --check Snakefile rules
	.venv/bin/snakemake --lint
	PYTHONPATH=scripts .venv/bin/lint-imports
	.venv/bin/mypy

# While you work, some minutes: lint, types, and the quick tests that import no TensorFlow and train nothing.
check: lint
	.venv/bin/pytest -m "unit and not long"

# Everything that a user relies on.
test: lint
	.venv/bin/pytest -m "not long"

# All tests.
test-all: lint
	.venv/bin/pytest

# All measurements of this machine, hours with nothing beside them. One that fails is named at the end.
BENCHES := bench-data bench-vocabularies bench-steps
bench: setup-tests
	@failed=; for one in $(BENCHES); do $(MAKE) --no-print-directory $$one || failed="$$failed $$one"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

# Data preparation beside the tools that it replaces; writes benchmarks/results/data.md.
bench-data: setup-tests
	.venv/bin/python benchmarks/data.py

# Vocabularies, trained and used, beside other libraries; writes benchmarks/results/vocabularies.md.
bench-vocabularies: setup-tests
	.venv/bin/python benchmarks/vocabularies.py --megabytes 36 400

# Training steps beside the published `fit`, and the gap between segments; writes benchmarks/results/steps.md.
bench-steps: setup-tests
	.venv/bin/python benchmarks/steps.py

# The time of steps as plans model it, beside what others have measured, how much of a TPU they use, and the plans of the
# recipes; writes benchmarks/results/{plan_table,utilisation,recipes,steps}.md, and the numbers of planning/estimate.py.
# With `make bench-plan COMPILE=1` their programs are compiled again: hours.
bench-plan: setup-tests
	$(if $(COMPILE),.venv/bin/python benchmarks/plan_table.py compile)
	.venv/bin/python benchmarks/plan_table.py table
	$(if $(COMPILE),.venv/bin/python benchmarks/utilisation.py compile)
	$(if $(COMPILE),.venv/bin/python benchmarks/utilisation.py compile --before)
	.venv/bin/python benchmarks/utilisation.py table
	$(if $(COMPILE),.venv/bin/python benchmarks/recipes.py plan)
	.venv/bin/python benchmarks/recipes.py table
	.venv/bin/python benchmarks/steps.py --plans

# On a TPU, a GPU or CPUs: train, kill and resume, plan and measure; writes experiments/first-tpu/first-tpu.md.
first-tpu: setup
	@.venv/bin/python tools/first_tpu.py

# The pictures of the documentation, from the example run; needs Chromium.
pictures: setup-tests
	.venv/bin/snakemake
	.venv/bin/python tools/pictures.py

# Where every artifact and every key of the config has its code, as tables on the terminal.
architecture: setup
	@.venv/bin/python tools/architecture.py

# The documentation, docs/_build/html/index.html, in an environment of its own. A warning is an error.
docs: setup .venv-docs/ready
	@rm -rf docs/reference docs/_build
	.venv/bin/python tools/reference.py docs/reference
	.venv-docs/bin/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going docs docs/_build/html

.venv-docs/ready: envs/docs.txt | setup
	.venv/bin/uv venv --quiet --clear --python .venv/bin/python .venv-docs
	.venv/bin/uv pip sync --quiet --require-hashes --python .venv-docs/bin/python envs/docs.txt
	@touch $@

# Resolve the locked environments again, after a change of envs/*.in.
lock: setup-tests
	.venv/bin/python envs/lock.py

# The names and sizes of keras-hub's presets, after a change of its version.
presets: setup
	.venv/bin/python tools/presets.py > schemas/presets.txt.partial
	@mv schemas/presets.txt.partial schemas/presets.txt

format: setup-tests
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/snakefmt Snakefile rules
