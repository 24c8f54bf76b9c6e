"""Tuning: a chain of checkpoints from a base model, the best of them as an adapter or a model, before and after."""

LORA_RUNS = [run for run, recipe in LORA.items() if recipe["method"] == "lora"]
FULL_RUNS = [run for run, recipe in LORA.items() if recipe["method"] == "full"]
ADAPTER = ["adapter.lora.h5", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"]


rule lora:
    """Every tuning run, with its figures and samples."""
    localrule: True
    input:
        expand("results/lora/{run}/{file}", run=LORA_RUNS, file=ADAPTER),
        expand("results/lora/{run}/model", run=FULL_RUNS),
        expand(
            "results/lora/{run}/{file}",
            run=LORA,
            file=["history.csv", "metrics.json", "partitioning.json", "generations.json"],
        ),
        [thinned(f"results/lora/{run}", recipe) for run, recipe in LORA.items()],


rule train_lora:
    """Tune one segment of a run: make checkpoint k from checkpoint k-1."""
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        train=tokens_of("tuning", "train"),
        validation=tokens_of("tuning", "validation"),
        previous=lambda w: previous_checkpoint(f"results/lora/{w.run}/checkpoints", LORA[w.run], int(w.step)),
        library=library("train_lora", "jax"),
    output:
        **checkpoint_files("results/lora/{run}/checkpoints/{step}"),
        history="results/lora/{run}/checkpoints/{step}/history.csv",
        timings="results/lora/{run}/checkpoints/{step}/timings.csv",
    params:
        recipe=lambda w: segment("lora", LORA[w.run], int(w.step)),
    log:
        "logs/lora/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(LORA),
    threads: config["cpu_threads"]
    resources:
        **asks("lora", hosts=True),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/train_lora.py"


rule export_lora:
    """Save the LoRA weights of the best checkpoint, as Keras and as PEFT read them."""
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=best_of,
        library=library("export_lora", "jax"),
    output:
        keras="results/lora/{run}/adapter.lora.h5",
        peft="results/lora/{run}/adapter/adapter_model.safetensors",
        peft_config="results/lora/{run}/adapter/adapter_config.json",
    params:
        recipe=lambda w: tuned(w.run) | hub_model(BASE[LORA[w.run]["base"]]),
    log:
        "logs/lora/{run}/export.log",
    wildcard_constraints:
        run=one_of(LORA_RUNS),
    threads: config["cpu_threads"]
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/export_lora.py"


rule export_full:
    """Save the best checkpoint of a run that tuned every parameter, as a Keras preset folder."""
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=best_of,
        library=library("export_full", "jax"),
    output:
        directory("results/lora/{run}/model"),
    params:
        recipe=lambda w: tuned(w.run),
    log:
        "logs/lora/{run}/export.log",
    wildcard_constraints:
        run=one_of(FULL_RUNS),
    threads: config["cpu_threads"]
    resources:
        **asks("lora"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/export_full.py"


rule generate:
    """Let the base model and the tuned one continue the same prompts."""
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=best_of,
        library=library("generate", "jax"),
    output:
        "results/lora/{run}/generations.json",
    params:
        recipe=lambda w: tuned(w.run) | {"prompts": config["prompts"]["generate"], "sampling": sampling()},
    log:
        "logs/lora/{run}/generate.log",
    wildcard_constraints:
        run=one_of(LORA),
    threads: config["cpu_threads"]
    resources:
        **asks("lora"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/generate.py"


rule evaluate_lora:
    """Measure a tuned model against its base, and write how its variables lie on the devices."""
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=best_of,
        validation=tokens_of("tuning", "validation"),
        test=tokens_of("tuning", "test"),
        corpus=tokens_of("corpus", "validation"),
        library=library("evaluate_lora", "jax"),
    output:
        evaluation="results/lora/{run}/evaluation.json",
        partitioning="results/lora/{run}/partitioning.json",
    params:
        recipe=lambda w: tuned(w.run, "sequence_length", "batch_size", "accumulate"),
    log:
        "logs/lora/{run}/evaluate.log",
    wildcard_constraints:
        run=one_of(LORA),
    threads: config["cpu_threads"]
    resources:
        **asks("lora"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/evaluate_lora.py"


rule summarize_lora:
    """Put a run's figures together: its losses, and how much its samples look like Python."""
    input:
        evaluation="results/lora/{run}/evaluation.json",
        state=lambda w: last_checkpoint(f"results/lora/{w.run}/checkpoints", LORA[w.run], "state.json"),
        generations="results/lora/{run}/generations.json",
        library=library("summarize_lora", "report"),
    output:
        "results/lora/{run}/metrics.json",
    log:
        "logs/lora/{run}/metrics.log",
    wildcard_constraints:
        run=one_of(LORA),
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/summarize_lora.py"
