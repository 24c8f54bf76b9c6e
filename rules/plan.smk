"""Plans: the needs of each run on TPUs, from the TPU compiler, without a TPU."""

from importlib.util import find_spec

from snakemake.settings.types import DeploymentMethod

TOPOLOGIES = config["plan"]["topologies"]
# In this environment, or in the conda environment of the job.
COMPILER = find_spec("libtpu") is not None or DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
PLANNED = [f"results/plan/{run.stage}/{run.name}/{name}.json" for run in RUNS for name in TOPOLOGIES]
SHOWN = [f"{FIGURES}/plan.html", f"{FIGURES}/plan.svg"] if PLANNED and COMPILER else []


rule plan:
    """Target: print the plan of every run on every TPU slice of the config, and totals of what is still to be trained."""
    localrule: True
    input:
        plans=PLANNED if COMPILER else [],
        figures=SHOWN,
        code=code_inputs("plan", "workflow"),
    params:
        recipe=lambda w: {
            "compiler": COMPILER,
            "topologies": TOPOLOGIES,
            "prices": config["plan"]["prices"],
            "runs": START.planned(),
            "arguments": SNAKEMAKE_ARGUMENTS,
        },
    log:
        "logs/plan.log",
    threads: 1
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/plan.py"


rule plan_training:
    """Compile the training step of a run for a TPU slice."""
    input:
        # For the vocabulary size and special ids, if the config does not give them.
        manifest=lambda w: "results/tfrecords/manifest.json" if STAGE_RUNS[w.stage][w.run].needs_manifest else [],
        # Its sizes, if it starts from another model.
        init=lambda w: STAGE_RUNS[w.stage][w.run].init_files[:1],
        code=code_inputs("plan_training", "jax"),
    output:
        "results/plan/{stage}/{run}/{topology}.json",
    params:
        recipe=lambda w: STAGE_RUNS[w.stage][w.run].plan()
        | pick(STAGE_RUNS[w.stage][w.run].recipe, "host_device_count", "checkpoint_every")
        | {
            "resources": pick(STAGE_RUNS[w.stage][w.run].recipe["resources"], "hosts"),
            "price_per_hour": config["plan"]["prices"].get(w.topology),
            "alternatives": config["plan"]["alternatives"],
        },
    log:
        "logs/plan/{stage}/{run}/{topology}.log",
    wildcard_constraints:
        stage=one_of(STAGE_RUNS),
        topology=one_of(TOPOLOGIES),
    # On this machine, all: each compilation takes gigabytes, so one runs at a time. A cluster node may have fewer.
    threads: lambda wildcards: workflow.cores if workflow.local_exec else 8
    resources:
        mem_mb=16000,
        runtime=120,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/plan_training.py"


rule tabulate_plan:
    """Tabulate the plans."""
    input:
        plans=PLANNED,
        code=code_inputs("tabulate_plan", "workflow"),
    output:
        report(
            f"{FIGURES}/plan.html",
            caption="../report/plan.rst",
            category="7. Plan",
            labels={"stage": "plan", "run": "all", "shows": "memory, time and cost on TPUs"},
        ),
    log:
        "logs/figures/plan_table.log",
    threads: 1
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/tabulate_plan.py"


rule plot_plan:
    """Plot the memory that each run needs per device of each TPU slice, against the memory of the device."""
    input:
        plans=PLANNED,
        code=code_inputs("plot_plan", "workflow"),
    output:
        report(
            f"{FIGURES}/plan.svg",
            caption="../report/plan.rst",
            category="7. Plan",
            labels={"stage": "plan", "run": "all", "shows": "memory per device"},
        ),
    log:
        "logs/figures/plan_memory.log",
    threads: 1
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/plot_plan.py"
