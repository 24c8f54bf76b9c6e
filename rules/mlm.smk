"""Masked language models: checkpoints, export of the best one as a transformers folder, evaluation."""

# Suffixes of the files in a local model folder that may be read.
MODEL_SOURCES = (".h5", ".json", ".model", ".safetensors", ".txt")
# Existing models: those that are evaluated, and those that runs start from.
FETCHED = {model.fetch_folder: model for model in MASKED.values() if model.origin}


rule mlm:
    """Target: every masked language model, with its metrics and predictions."""
    localrule: True
    input:
        expand("<results>/mlm/{run}/model/{file}", run=MASKED, file=MODEL_FILES),
        expand("<results>/mlm/{run}/history.csv", run=MLM),
        expand("<results>/mlm/{run}/metrics.json", run=[name for name, model in MASKED.items() if model.records]),
        expand("<results>/mlm/{run}/fill_mask.json", run=MASKED),
        [run.prune_marks for run in MLM.values()],


rule fetch_mlm:
    """Fetch a masked language model from a local folder or from the Hugging Face Hub."""
    input:
        files=lambda w: preset_files(FETCHED[w.fetched].origin["pretrained"], MODEL_SOURCES),
    output:
        [f"<results>/{{fetched}}/{file}" for file in MODEL_FILES],
    params:
        recipe=lambda w: FETCHED[w.fetched].origin
        | {"key": FETCHED[w.fetched].key, "backend": FETCHED[w.fetched].backend},
        code=code_digest("mlm/fetch_mlm", "data"),
    log:
        "<logs>/{fetched}/fetch.log",
    wildcard_constraints:
        fetched=one_of(FETCHED),
    resources:
        mem_mb=lambda w: mem_mb(FETCHED[w.fetched], "fetch_mlm"),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/mlm/fetch_mlm.py"


rule train_mlm_tensorflow:
    """Train one segment with transformers and TensorFlow, from the previous checkpoint to the next."""
    input:
        records=lambda w: in_place(RECORDS["tfrecords"].manifest),
        init=lambda w: MLM[w.run].init_at(int(w.step)),
        previous=lambda w: previous_checkpoint(MLM[w.run], int(w.step)),
    output:
        **segment_outputs("<results>/mlm/{run}"),
    params:
        recipe=lambda w: MLM[w.run].segment(int(w.step)),
        code=code_digest("mlm/train_mlm_tensorflow", "tensorflow"),
    log:
        "<logs>/mlm/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(name for name, run in MLM.items() if run.backend == "tensorflow"),
    threads: config["cpu_threads"]
    resources:
        **training_resources(by_name(MLM), hosts=False),
    conda:
        "../envs/tensorflow.yaml"
    script:
        "../scripts/mlm/train_mlm_tensorflow.py"


rule train_mlm_jax:
    """Train one segment with Keras on JAX, from the previous checkpoint to the next."""
    input:
        records=lambda w: in_place(RECORDS["tfrecords"].manifest),
        mixture=lambda w: mixture_of(MLM[w.run], w),
        init=lambda w: MLM[w.run].init_at(int(w.step)),
        previous=lambda w: previous_checkpoint(MLM[w.run], int(w.step)),
    output:
        **segment_outputs("<results>/mlm/{run}"),
    params:
        recipe=lambda w: MLM[w.run].segment(int(w.step)),
        code=code_digest("mlm/train_mlm_jax", "jax"),
    log:
        "<logs>/mlm/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(name for name, run in MLM.items() if run.backend == "jax"),
    threads: config["cpu_threads"]
    resources:
        **training_resources(by_name(MLM)),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/mlm/train_mlm_jax.py"


rule export_mlm:
    """Export the best checkpoint as a transformers folder."""
    input:
        manifest=lambda w: RECORDS["tfrecords"].manifest,
        tokenizer=lambda w: list(TOKENIZER.values()),
        init=lambda w: MLM[w.run].init_config,
        best=lambda w: at_step(MLM[w.run], w).weights,
    output:
        [f"<results>/mlm/{{run}}/model/{file}" for file in MODEL_FILES],
    params:
        recipe=lambda w: pick(recipe_at_step(MLM[w.run], w), "backend", "init" if MLM[w.run].init else "model"),
        code=code_digest("mlm/export_mlm", "data"),
    log:
        "<logs>/mlm/{run}/export.log",
    wildcard_constraints:
        run=one_of(MLM),
    resources:
        mem_mb=lambda w: mem_mb(MLM[w.run], "export_mlm"),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/mlm/export_mlm.py"


rule evaluate_mlm:
    """Evaluate a masked language model on the held-out splits."""
    input:
        records=lambda w: in_place(RECORDS["tfrecords"].manifest),
        counts=lambda w: RECORDS["tfrecords"].token_counts,
        model=expand("<results>/mlm/{{run}}/model/{file}", file=MODEL_FILES),
        state=lambda w: MLM[w.run].state if w.run in MLM else [],
        by_source=lambda w: manifests_by_source(MLM[w.run]) if w.run in MLM else [],
    output:
        "<results>/mlm/{run}/metrics.json",
    params:
        recipe=lambda w: MASKED[w.run].opening | (measured_sources(MLM[w.run]) if w.run in MLM else {}),
        code=code_digest("mlm/evaluate_mlm", lambda w: MASKED[w.run].backend),
    log:
        "<logs>/mlm/{run}/evaluate.log",
    wildcard_constraints:
        run=one_of(MASKED),
    threads: config["cpu_threads"]
    resources:
        **job_resources(by_name(MASKED), "evaluate_mlm"),
    conda:
        lambda w: f"../envs/{MASKED[w.run].backend}.yaml"
    script:
        "../scripts/mlm/evaluate_mlm.py"
