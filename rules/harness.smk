"""Causal models on tasks of lm-evaluation-harness: base models, and finetuned ones beside them."""

from tpulm.config.harness_tasks import tasks_of
from tpulm.config.runs import Run
from tpulm.workflow.harness import opener, opening_of_base

HARNESS = tasks_of(config)
# What opens each base model: its own run, or for one that was fetched the first that tunes it.
BASES_BY_HARNESS = {name: opener(config, name) for name in BASE} if HARNESS else {}
# The files of a task's description.
HARNESS_FILES = {name: or_exit(getattr, task, "files") for name, task in HARNESS.items()}
# Of its examples: of the user, or artifacts of this workflow.
HARNESS_DATA = {
    name: [file if file.startswith("results/") else PLACE.text(file) for file in or_exit(getattr, task, "data")]
    for name, task in HARNESS.items()
}
HARNESS_STEPS = {
    name: or_exit(
        CheckpointFiles,
        f"{task.key}.checkpoints",
        task.recipe["checkpoints"],
        {chain: run for chain, run in RUN_FOLDERS.items() if run.stage != "mlm"},
        located,
        f"harness/{name}/",
    )
    for name, task in HARNESS.items()
}
SCORES += [
    f"results/evaluation/harness/{task}/{model}/{file}"
    for task in HARNESS
    for model in [f"base-training/{name}" for name in BASES_BY_HARNESS] + [f"finetune/{run}" for run in FINETUNE]
    for file in ("scores.json", "items.parquet")
]
SCORES += [file for steps in HARNESS_STEPS.values() for chain in steps.chains for file in steps.files(chain)]
HARNESS_OVERLAP = "results/evaluation/harness/{task}/overlap/{collection}.json"


rule find_harness_overlap:
    """Find the items of a task of lm-evaluation-harness in the training documents of a text."""
    input:
        documents=lambda w: DOCUMENTS_IN_PLACE[w.collection, "train"],
        task=lambda w: local_files(HARNESS_FILES[w.task]),
        data=lambda w: HARNESS_DATA[w.task],
        code=code_inputs("find_harness_overlap", "harness"),
    output:
        HARNESS_OVERLAP,
    params:
        recipe=lambda w: HARNESS[w.task].items | config["evaluation"]["overlap"],
    log:
        "logs/evaluation/harness/{task}-overlap-{collection}.log",
    wildcard_constraints:
        task=one_of(HARNESS),
    threads: 1
    resources:
        mem_mb=8000,
    conda:
        "../envs/harness.yaml"
    script:
        "../scripts/find_harness_overlap.py"


rule run_harness:
    """Score a causal model on a task of lm-evaluation-harness."""
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=lambda w: FINETUNE[w.run].best,
        task=lambda w: local_files(HARNESS_FILES[w.task]),
        data=lambda w: HARNESS_DATA[w.task],
        overlaps=lambda w: expand(HARNESS_OVERLAP, task=w.task, collection=EVALUATED.trained_on(FINETUNE[w.run])),
        code=code_inputs("run_harness", "harness"),
    output:
        scores="results/evaluation/harness/{task}/finetune/{run}/scores.json",
        by_item="results/evaluation/harness/{task}/finetune/{run}/items.parquet",
    params:
        recipe=lambda w: FINETUNE[w.run].opening() | HARNESS[w.task].asked,
    log:
        "logs/evaluation/harness/{task}-finetune-{run}.log",
    wildcard_constraints:
        task=one_of(HARNESS),
        run=one_of(FINETUNE),
    threads: config["cpu_threads"]
    resources:
        **asks("finetune", "run_harness"),
    conda:
        "../envs/harness.yaml"
    script:
        "../scripts/run_harness.py"


use rule run_harness as run_harness_of_base with:
    input:
        base=ancient("results/base/{name}"),
        fingerprint="results/base/{name}.json",
        best=[],
        task=lambda w: local_files(HARNESS_FILES[w.task]),
        data=lambda w: HARNESS_DATA[w.task],
        overlaps=lambda w: expand(
            HARNESS_OVERLAP, task=w.task, collection=EVALUATED.trained_on(Run("base", w.name, config))
        ),
        code=code_inputs("run_harness", "harness"),
    output:
        scores="results/evaluation/harness/{task}/base-training/{name}/scores.json",
        by_item="results/evaluation/harness/{task}/base-training/{name}/items.parquet",
    params:
        recipe=lambda w: opening_of_base(config, BASES_BY_HARNESS[w.name]) | HARNESS[w.task].asked,
    log:
        "logs/evaluation/harness/{task}-base-{name}.log",
    wildcard_constraints:
        task=one_of(HARNESS),
        name=one_of(BASES_BY_HARNESS),
    resources:
        **resources_of(BASES_BY_HARNESS, "run_harness", PLACE.prefixed("")),
