"""Plans: memory, time and price of each run on TPU slices, from the TPU compiler, without a TPU."""

from importlib.util import find_spec

from tpulm.compat.snakemake import uses_conda
from tpulm.workflow.budget import plan_recipe

TOPOLOGIES = config["plan"]["topologies"]
PLAN_FILES = [f"<results>/plan/{name}/{slice_}.json" for name in EVALUATED.runs_by_plan for slice_ in TOPOLOGIES]
# The compiler is in this environment, or in the conda environment of the job.
COMPILER = find_spec("libtpu") is not None or uses_conda(workflow)


rule plan:
    """Target: print the plan of every run and task for every TPU slice of the config, and totals of pending steps."""
    localrule: True
    input:
        plans=PLAN_FILES if COMPILER else [],
    params:
        recipe=lambda w: {
            "compiler": COMPILER,
            "topologies": TOPOLOGIES,
            "prices": config["plan"]["prices"],
            "runs": START.runs_to_plan(),
            "arguments": SNAKEMAKE_ARGUMENTS,
        },
        code=code_digest("plan/plan", "workflow"),
    log:
        "<logs>/plan.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/plan/plan.py"


rule plan_training:
    """Compile the training step of a run, or of a model on a task, for a TPU slice."""
    input:
        # These say of vocabulary, model and labels what the config does not.
        unpack(lambda w: EVALUATED.runs_by_plan[w.planned][0].plan_inputs),
    output:
        "<results>/plan/{planned}/{topology}.json",
    params:
        recipe=lambda w: plan_recipe(EVALUATED.runs_by_plan[w.planned])
        | pick(EVALUATED.runs_by_plan[w.planned][0].recipe, "host_device_count", "checkpoint_every")
        | {
            "resources": pick(EVALUATED.runs_by_plan[w.planned][0].recipe["resources"], "hosts"),
            "price_per_hour": config["plan"]["prices"].get(w.topology),
            "alternatives": config["plan"]["alternatives"],
        },
        code=code_digest("plan/plan_training", "plan"),
    log:
        "<logs>/plan/{planned}/{topology}.log",
    wildcard_constraints:
        planned=one_of(EVALUATED.runs_by_plan),
        topology=one_of(TOPOLOGIES),
    # A local job takes all cores, so that one job runs at a time: each needs gigabytes. A cluster node may have fewer.
    threads: lambda wildcards: workflow.cores if workflow.local_exec else 8
    resources:
        mem_mb=16000,
        runtime=120,
    conda:
        "../envs/plan.yaml"
    script:
        "../scripts/plan/plan_training.py"
