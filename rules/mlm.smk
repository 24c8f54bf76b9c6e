"""Masked language models: a chain of checkpoints, the best of them as a Hugging Face folder, what it can do."""

MLM_TENSORFLOW = [name for name, recipe in MLM.items() if recipe["backend"] == "tensorflow"]
MLM_JAX = [name for name, recipe in MLM.items() if recipe["backend"] == "jax"]
MODEL_FOLDER = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
]


rule mlm:
    """Every masked language model, with its figures and predictions."""
    localrule: True
    input:
        expand("results/mlm/{run}/model/{file}", run=MLM, file=[*MODEL_FOLDER, "README.md"]),
        expand("results/mlm/{run}/{file}", run=MLM, file=["history.csv", "metrics.json", "fill_mask.json"]),
        [thinned(f"results/mlm/{run}", recipe) for run, recipe in MLM.items()],


rule train_mlm_tensorflow:
    """Train one segment with transformers and TensorFlow: make checkpoint k from checkpoint k-1."""
    input:
        manifest="results/tfrecords/manifest.json",
        shards=ancient(in_place(shard_files("train") + shard_files("validation"))),
        previous=lambda w: previous_checkpoint(f"results/mlm/{w.run}/checkpoints", MLM[w.run], int(w.step)),
        library=library("train_mlm_tensorflow", "tensorflow"),
    output:
        **checkpoint_files("results/mlm/{run}/checkpoints/{step}"),
        history="results/mlm/{run}/checkpoints/{step}/history.csv",
        timings="results/mlm/{run}/checkpoints/{step}/timings.csv",
    params:
        recipe=lambda w: segment("mlm", MLM[w.run], int(w.step)),
    log:
        "logs/mlm/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(MLM_TENSORFLOW),
    threads: config["cpu_threads"]
    resources:
        **asks("mlm"),
    conda:
        "../envs/tensorflow.yaml"
    script:
        "../scripts/train_mlm_tensorflow.py"


rule train_mlm_jax:
    """Train one segment with Keras on JAX: make checkpoint k from checkpoint k-1."""
    input:
        manifest="results/tfrecords/manifest.json",
        shards=ancient(in_place(shard_files("train") + shard_files("validation"))),
        previous=lambda w: previous_checkpoint(f"results/mlm/{w.run}/checkpoints", MLM[w.run], int(w.step)),
        library=library("train_mlm_jax", "jax"),
    output:
        **checkpoint_files("results/mlm/{run}/checkpoints/{step}"),
        history="results/mlm/{run}/checkpoints/{step}/history.csv",
        timings="results/mlm/{run}/checkpoints/{step}/timings.csv",
    params:
        recipe=lambda w: segment("mlm", MLM[w.run], int(w.step)),
    log:
        "logs/mlm/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(MLM_JAX),
    threads: config["cpu_threads"]
    resources:
        **asks("mlm", hosts=True),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/train_mlm_jax.py"


rule export_mlm:
    """Turn the best checkpoint into a Hugging Face model folder."""
    input:
        manifest="results/tfrecords/manifest.json",
        tokenizer=multiext("results/tokenizer/", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        best=lambda w: last_checkpoint(f"results/mlm/{w.run}/checkpoints", MLM[w.run], "best.safetensors"),
        state=lambda w: last_checkpoint(f"results/mlm/{w.run}/checkpoints", MLM[w.run], "state.json"),
        library=library("export_mlm", "tensorflow"),
    output:
        [f"results/mlm/{{run}}/model/{file}" for file in MODEL_FOLDER],
        card="results/mlm/{run}/model/README.md",
    params:
        recipe=lambda w: pick(MLM[w.run], "backend", "model"),
    log:
        "logs/mlm/{run}/export.log",
    threads: 1
    conda:
        "../envs/tensorflow.yaml"
    script:
        "../scripts/export_mlm.py"


rule evaluate_mlm:
    """Measure a finished model on the splits that it was not trained on."""
    input:
        manifest="results/tfrecords/manifest.json",
        shards=ancient(in_place(shard_files("validation") + shard_files("test"))),
        model=expand("results/mlm/{{run}}/model/{file}", file=MODEL_FOLDER),
        library=library("evaluate_mlm", "tensorflow"),
    output:
        "results/mlm/{run}/metrics.json",
    params:
        recipe={"cpu_threads": config["cpu_threads"]},
    log:
        "logs/mlm/{run}/evaluate.log",
    threads: config["cpu_threads"]
    resources:
        **asks("mlm"),
    conda:
        "../envs/tensorflow.yaml"
    script:
        "../scripts/evaluate_mlm.py"


rule fill_mask:
    """Ask a finished model for the masked word of each prompt."""
    input:
        model=expand("results/mlm/{{run}}/model/{file}", file=MODEL_FOLDER),
        library=library("fill_mask", "tensorflow"),
    output:
        "results/mlm/{run}/fill_mask.json",
    params:
        recipe={"prompts": config["prompts"]["fill_mask"], "cpu_threads": config["cpu_threads"]},
    log:
        "logs/mlm/{run}/fill_mask.log",
    threads: config["cpu_threads"]
    conda:
        "../envs/tensorflow.yaml"
    script:
        "../scripts/fill_mask.py"
