"""Finetuning of base models: checkpoints, export of the best one, evaluation before and after finetuning."""

from tpulm.config.publications import hub_base

LORA_RUNS = [name for name, run in FINETUNE.items() if run.recipe["method"] == "lora"]
FULL_RUNS = [name for name in FINETUNE if name not in LORA_RUNS]
MERGED_RUNS = [name for name in LORA_RUNS if FINETUNE[name].recipe["merge"]]


rule finetune:
    """Target: every finetuned model, with its metrics and generated text."""
    localrule: True
    input:
        expand("<results>/finetune/{run}/{file}", run=LORA_RUNS, file=ADAPTER_FILES),
        expand("<results>/finetune/{run}/{file}", run=FULL_RUNS + MERGED_RUNS, file=["model", "model.json"]),
        expand(
            "<results>/finetune/{run}/{file}",
            run=FINETUNE,
            file=["history.csv", "metrics.json", "partitioning.json", "generations.json"],
        ),
        [run.prune_marks for run in FINETUNE.values()],


rule train_finetune:
    """Train one segment of a finetuning run, from the previous checkpoint to the next."""
    input:
        base=lambda w: ancient(FINETUNE[w.run].preset),
        fingerprint=lambda w: FINETUNE[w.run].fingerprint,
        records=lambda w: in_place(FINETUNE[w.run].records.manifest),
        mixture=lambda w: mixture_of(FINETUNE[w.run], w),
        start=lambda w: FINETUNE[w.run].start_at(int(w.step)),
        previous=lambda w: previous_checkpoint(FINETUNE[w.run], int(w.step)),
    output:
        **segment_outputs("<results>/finetune/{run}"),
    params:
        recipe=lambda w: FINETUNE[w.run].segment(int(w.step)),
        code=code_digest("finetune/train_finetune", "jax"),
    log:
        "<logs>/finetune/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(FINETUNE),
    threads: config["cpu_threads"]
    resources:
        **training_resources(by_name(FINETUNE)),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/finetune/train_finetune.py"


rule export_lora:
    """Export the LoRA weights of the best checkpoint in the formats of Keras and PEFT."""
    input:
        **opening_inputs(by_name(FINETUNE)),
    output:
        keras="<results>/finetune/{run}/adapter.lora.h5",
        keras_config="<results>/finetune/{run}/adapter.lora.json",
        peft="<results>/finetune/{run}/adapter/adapter_model.safetensors",
        peft_config="<results>/finetune/{run}/adapter/adapter_config.json",
    params:
        recipe=lambda w: FINETUNE[w.run].opening | hub_base(FINETUNE[w.run]),
        code=code_digest("finetune/export_lora", "jax"),
    log:
        "<logs>/finetune/{run}/export.log",
    wildcard_constraints:
        run=one_of(LORA_RUNS),
    threads: config["cpu_threads"]
    resources:
        mem_mb=lambda w: mem_mb(FINETUNE[w.run], "export_lora"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/finetune/export_lora.py"


rule export_finetune:
    """Export the best checkpoint as a Keras preset folder, with LoRA weights merged into the base model."""
    input:
        **opening_inputs(by_name(FINETUNE)),
    output:
        folder=directory("<results>/finetune/{run}/model"),
        fingerprint="<results>/finetune/{run}/model.json",
    params:
        recipe=lambda w: FINETUNE[w.run].opening,
        code=code_digest("finetune/export_finetune", "jax"),
    log:
        "<logs>/finetune/{run}/model.log",
    wildcard_constraints:
        run=one_of(FINETUNE),
    threads: config["cpu_threads"]
    resources:
        **job_resources(by_name(FINETUNE), "export_finetune"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/finetune/export_finetune.py"


# What the base model and the finetuned model respond to held-out prompts; nothing without responses in the text.
RESPONSES = {
    name: f"<results>/evaluation/responses/finetune/{{run}}/{file}"
    for name, file in {"scores": "scores.json", "by_item": "items.parquet", "responses": "responses.json"}.items()
    if EVALUATED.generating
}


rule generate:
    """Generate text with the base model and the finetuned model from the same prompts, held-out ones included."""
    input:
        **opening_inputs(by_name(FINETUNE)),
        tokenizer=lambda w: FINETUNE[w.run].vocabulary.files if RESPONSES else [],
        material=lambda w: [EVALUATED.text_files["finetune-text"]] if RESPONSES else [],
    output:
        **RESPONSES,
        generations="<results>/finetune/{run}/generations.json",
    params:
        recipe=lambda w: FINETUNE[w.run].opening
        | {"prompts": config["prompts"]["generate"], "sampling": sampling_of(config)}
        | (EVALUATED.generation(FINETUNE[w.run]) if RESPONSES else {}),
        code=code_digest("finetune/generate", "jax"),
    log:
        "<logs>/finetune/{run}/generate.log",
    wildcard_constraints:
        run=one_of(FINETUNE),
    threads: config["cpu_threads"]
    resources:
        **job_resources(by_name(FINETUNE), "generate"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/finetune/generate.py"


rule evaluate_finetune:
    """Evaluate a finetuned model and its base model, and record how the variables are sharded."""
    input:
        **opening_inputs(by_name(FINETUNE)),
        records=lambda w: in_place(FINETUNE[w.run].records.manifest),
        corpus_records=lambda w: [in_place(FINETUNE[w.run].forgotten.manifest)] if FINETUNE[w.run].forgotten else [],
        by_source=lambda w: manifests_by_source(FINETUNE[w.run]),
        state=lambda w: FINETUNE[w.run].state,
    output:
        metrics="<results>/finetune/{run}/metrics.json",
        partitioning="<results>/finetune/{run}/partitioning.json",
    params:
        recipe=lambda w: FINETUNE[w.run].opening
        | pick(FINETUNE[w.run].recipe, "batch_size", "microbatches")
        | measured_sources(FINETUNE[w.run]),
        code=code_digest("finetune/evaluate_finetune", "jax"),
    log:
        "<logs>/finetune/{run}/evaluate.log",
    wildcard_constraints:
        run=one_of(FINETUNE),
    threads: config["cpu_threads"]
    resources:
        **job_resources(by_name(FINETUNE), "evaluate_finetune"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/finetune/evaluate_finetune.py"


# Preset folders by stage and name. Their fingerprints show changes, and that the upload of a folder has ended.
PRESETS = {
    "base": {name: [ancient(f"<results>/base/{name}/preset"), f"<results>/base/{name}/preset.json"] for name in BASES},
    "finetune": {
        run: [f"<results>/finetune/{run}/model", f"<results>/finetune/{run}/model.json"]
        for run in FULL_RUNS + MERGED_RUNS
    },
}
MADE_HERE = [f"base/{name}" for name in TRAINED_BASES] + [f"finetune/{run}" for run in PRESETS["finetune"]]


rule transformers:
    """Target: every whole causal model as a transformers folder; `all` builds only those trained here."""
    localrule: True
    input:
        [
            f"<results>/transformers/{stage}/{name}{end}"
            for stage, names in PRESETS.items()
            for name in names
            for end in ("", ".json")
        ],


rule export_transformers:
    """Export a causal model as a transformers folder."""
    input:
        preset=lambda w: PRESETS[w.stage][w.run],
        chat=lambda w: (
            [f"<results>/{TRAINED_ON[w.stage]}/chat_template.json"]
            if TRAINED_ON[w.stage] in CHATS and f"{w.stage}/{w.run}" in MADE_HERE
            else []
        ),
        tokenizer=lambda w: OUTLINE.models[f"{w.stage}/{w.run}"].vocabulary.files,
    output:
        folder=directory("<results>/transformers/{stage}/{run}"),
        fingerprint="<results>/transformers/{stage}/{run}.json",
    params:
        recipe={"cpu_threads": config["cpu_threads"]},
        code=code_digest("finetune/export_transformers", "jax"),
    log:
        "<logs>/transformers/{stage}-{run}.log",
    wildcard_constraints:
        stage=one_of(PRESETS),
        run=one_of({name for names in PRESETS.values() for name in names}),
    resources:
        mem_mb=lambda w: mem_mb(OUTLINE.models[f"{w.stage}/{w.run}"], "export_transformers"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/finetune/export_transformers.py"


rule gguf:
    """Target: every whole causal model that is trained here as GGUF files, which llama.cpp reads."""
    localrule: True
    input:
        [f"<results>/gguf/{model}-{kind}.gguf" for model in MADE_HERE for kind in GGUF_TYPES],


rule export_gguf:
    """Export a causal model as a GGUF file."""
    input:
        folder="<results>/transformers/{model}",
        fingerprint="<results>/transformers/{model}.json",
    output:
        "<results>/gguf/{model}-{kind}.gguf",
    params:
        code=code_digest("finetune/export_gguf", "gguf"),
    log:
        "<logs>/gguf/{model}-{kind}.log",
    wildcard_constraints:
        model=one_of(MADE_HERE),
        kind=one_of(GGUF_TYPES),
    resources:
        mem_mb=lambda w: mem_mb(RUNS[w.model], "export_gguf"),
    conda:
        "../envs/gguf.yaml"
    script:
        "../scripts/finetune/export_gguf.py"
