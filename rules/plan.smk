"""Plans: what the TPU compiler says that each run would need, on TPUs that need not be there."""

from importlib.util import find_spec

from snakemake.settings.types import DeploymentMethod

TOPOLOGIES = config["plan"]["topologies"]
# In this environment, or in the one that the job gets.
COMPILER = find_spec("libtpu") is not None or DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
PLANNED = [f"results/plan/{stage}/{run}/{name}.json" for stage, run, _, _ in TRAINED for name in TOPOLOGIES]
SHOWN = [f"{FIGURES}/plan.html", f"{FIGURES}/plan.svg"] if PLANNED and COMPILER else []


rule plan:
    """Say what every run would take on every TPU slice of the config, and what is still to be trained."""
    localrule: True
    input:
        plans=PLANNED if COMPILER else [],
        figures=SHOWN,
        library=library("plan", "controller"),
    params:
        recipe=lambda w: {
            "compiler": COMPILER,
            "topologies": TOPOLOGIES,
            "prices": config["plan"]["prices"],
            "runs": planned_runs(),
            "arguments": SNAKEMAKE_ARGUMENTS,
        },
    log:
        "logs/plan.log",
    threads: 1
    conda:
        "../envs/controller.yaml"
    script:
        "../scripts/plan.py"


rule plan_training:
    """Compile the training step of a run for a TPU slice."""
    input:
        # Vocabulary and special ids, where the config does not say them.
        manifest=lambda w: "results/tfrecords/manifest.json" if needs_manifest(w.stage, w.run) else [],
        library=library("plan_training", "jax"),
    output:
        "results/plan/{stage}/{run}/{topology}.json",
    params:
        recipe=lambda w: plan_recipe(w.stage, w.run)
        | pick(run_of(w.stage, w.run), "cpu_devices", "checkpoint_every")
        | {
            "resources": pick(run_of(w.stage, w.run)["resources"], "hosts"),
            "price_per_hour": config["plan"]["prices"].get(w.topology),
            "changes": config["plan"]["changes"],
        },
    log:
        "logs/plan/{stage}/{run}/{topology}.log",
    wildcard_constraints:
        stage="mlm|base|lora",
        topology=one_of(TOPOLOGIES),
    threads: min(workflow.cores, 8)  # the compiler is hardly faster with more
    resources:
        mem_mb=16000,
        runtime=120,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/plan_training.py"


rule tabulate_plan:
    """Put the plans into a table."""
    input:
        plans=PLANNED,
        library=library("tabulate_plan", "report"),
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
        "../envs/report.yaml"
    script:
        "../scripts/tabulate_plan.py"


rule plot_plan:
    """Draw the memory that each run needs on a device of each TPU slice, against what there is."""
    input:
        plans=PLANNED,
        library=library("plot_plan", "report"),
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
        "../envs/report.yaml"
    script:
        "../scripts/plot_plan.py"
