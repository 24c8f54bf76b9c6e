"""Causal models as folders that transformers loads: those that are whole, and not adapters."""

# By stage and name, the preset folder; of a base model, its fingerprint tells whether that has changed.
PRESETS = {
    "base": {name: [ancient(f"results/base/{name}"), f"results/base/{name}.json"] for name in BASE},
    "finetune": {run: [f"results/finetune/{run}/model"] for run in FULL_RUNS + MERGED_RUNS},
}
MADE_HERE = [f"base/{name}" for name in TRAINED_BASES] + [f"finetune/{run}" for run in PRESETS["finetune"]]


rule transformers:
    """Target: every causal model that is whole, as a folder of transformers; `all` leaves out base models that were fetched."""
    localrule: True
    input:
        [f"results/transformers/{stage}/{name}" for stage, names in PRESETS.items() for name in names],


rule export_transformers:
    """Save a causal model as a folder that transformers loads."""
    input:
        preset=lambda w: PRESETS[w.stage][w.name],
        code=code_inputs("export_transformers", "jax"),
    output:
        directory("results/transformers/{stage}/{name}"),
    params:
        recipe={"cpu_threads": config["cpu_threads"]},
    log:
        "logs/transformers/{stage}-{name}.log",
    wildcard_constraints:
        stage=one_of(PRESETS),
    threads: 1
    resources:
        mem_mb=lambda w: memory_asked(STAGE_RUNS[w.stage], w.name),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/export_transformers.py"
