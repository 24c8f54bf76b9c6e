"""Evaluation of base models and finetuned models on tasks of lm-evaluation-harness."""

HARNESS = EVALUATED.harness
# The files that describe a task.
HARNESS_FILES = {name: or_exit(getattr, task, "files") for name, task in HARNESS.items()}
# The files with its examples: those of the user, or artifacts of this workflow.
HARNESS_DATA = {
    name: [
        f"<results>/{file.removeprefix('results/')}" if file.startswith("results/") else PATHS.text(file)
        for file in or_exit(getattr, task, "data")
    ]
    for name, task in HARNESS.items()
}
# Every model that is evaluated, as in SCORED: exported models of runs, existing base models, and checkpoints.
HARNESS_MODELS = EVALUATED.harness_models


rule read_harness_task:
    """Read the items of a task of lm-evaluation-harness, for the search for overlap with training text."""
    input:
        task=lambda w: local_files(HARNESS_FILES[w.task]),
        data=lambda w: HARNESS_DATA[w.task],
    output:
        "<results>/evaluation/harness/{task}/items.json",
    params:
        recipe=lambda w: HARNESS[w.task].items,
        code=code_digest("harness/read_harness_task", "harness"),
    log:
        "<logs>/evaluation/harness/{task}/read.log",
    wildcard_constraints:
        task=one_of(HARNESS),
    resources:
        mem_mb=8000,
    conda:
        "../envs/harness.yaml"
    script:
        "../scripts/harness/read_harness_task.py"


rule run_harness:
    """Evaluate a causal model on a task of lm-evaluation-harness."""
    input:
        **opening_inputs(lambda w: HARNESS_MODELS[w.model]),
        tokenizer=lambda w: HARNESS_MODELS[w.model].vocabulary.files,
        task=lambda w: local_files(HARNESS_FILES[w.task]),
        data=lambda w: HARNESS_DATA[w.task],
        overlaps=lambda w: overlaps_of(HARNESS_MODELS[w.model], f"harness/{w.task}"),
    output:
        scores="<results>/evaluation/harness/{task}/{model}/scores.json",
        by_item="<results>/evaluation/harness/{task}/{model}/items.parquet",
    params:
        recipe=lambda w: HARNESS_MODELS[w.model].job_recipe | HARNESS[w.task].job_recipe,
        code=code_digest("harness/run_harness", "harness"),
    log:
        "<logs>/evaluation/harness/{task}/{model}.log",
    wildcard_constraints:
        task=one_of(HARNESS),
        model=one_of(HARNESS_MODELS),
    threads: config["cpu_threads"]
    resources:
        **job_resources(lambda w: OUTLINE.opener(HARNESS_MODELS[w.model]), "run_harness"),
    conda:
        "../envs/harness.yaml"
    script:
        "../scripts/harness/run_harness.py"
