"""Base causal language models, trained here from scratch or existing ones; each is a Keras preset folder."""

FETCHED_BASES = [name for name in BASE if name not in TRAINED_BASES]


rule base:
    """Target: every base model, and the metrics of those trained here."""
    localrule: True
    input:
        expand("<results>/base/{name}/preset", name=BASE),
        expand("<results>/base/{name}/preset.json", name=BASE),
        expand("<results>/base/{name}/{file}", name=TRAINED_BASES, file=["history.csv", "metrics.json"]),
        [run.pruned for run in TRAINED_BASES.values()],


rule train_base_vocabulary:
    """Train the SentencePiece vocabulary of a base model on the training split."""
    input:
        corpus=DOCUMENTS_IN_PLACE["corpus", "train"],
        lengths=list(map(lengths_file, DOCUMENTS["corpus", "train"])),
        code=code_inputs("base/train_base_vocabulary", "jax"),
    output:
        "<results>/base/{name}/vocabulary.spm",
    params:
        recipe=lambda w: pick(BASE[w.name], "vocab_size", "seed") | {"marks": marks_of(BASE[w.name]["model"])},
    log:
        "<logs>/base/{name}/vocabulary.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
    threads: 1
    resources:
        mem_mb=4000,  # does not depend on the size of the corpus
        disk_mb=4000,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/train_base_vocabulary.py"


rule train_base:
    """Train one segment of a base model, from the previous checkpoint to the next."""
    input:
        records=lambda w: in_place(TRAINED_BASES[w.name].records.manifest),
        previous=lambda w: previous_checkpoint(TRAINED_BASES[w.name], int(w.step)),
        code=code_inputs("base/train_base", "jax"),
    output:
        **segment_outputs("<results>/base/{name}"),
    params:
        recipe=lambda w: TRAINED_BASES[w.name].segment(int(w.step)),
    log:
        "<logs>/base/{name}/{step}.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        **asks_to_train(of_stage("base")),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/train_base.py"


rule export_base:
    """Save the best checkpoint of a base model as a Keras preset folder."""
    input:
        best=lambda w: Model.of(TRAINED_BASES[w.name], w).weights,
        vocabulary="<results>/base/{name}/vocabulary.spm",
        code=code_inputs("base/export_base", "jax"),
    output:
        folder=directory("<results>/base/{name}/preset"),
        fingerprint="<results>/base/{name}/preset.json",
    params:
        recipe=lambda w: pick(BASE[w.name], "model", "sequence_length", "precision")
        | {"cpu_threads": config["cpu_threads"]},
    log:
        "<logs>/base/{name}/export.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        mem_mb=lambda w: mem_mb(TRAINED_BASES[w.name], "export_base"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/export_base.py"


rule fetch_base:
    """Fetch an existing base model as a Keras preset folder."""
    input:
        files=lambda w: preset_files(BASE[w.name]["preset"]),
        adapter=lambda w: preset_files(BASE[w.name]["adapter"]) if "adapter" in BASE[w.name] else [],
        code=code_inputs("base/fetch_base", "jax"),
    output:
        folder=directory("<results>/base/{name}/preset"),
        fingerprint="<results>/base/{name}/preset.json",
    params:
        recipe=lambda w: {"preset": BASE[w.name]["preset"], "revision": BASE[w.name].get("revision")}
        | {key: BASE[w.name][key] for key in ("adapter", "adapter_revision") if key in BASE[w.name]},
    log:
        "<logs>/base/{name}/fetch.log",
    wildcard_constraints:
        name=one_of(FETCHED_BASES),
    threads: 1
    resources:
        mem_mb=lambda w: fetching_mb(BASE[w.name]),
        # The download and its copy in results/.
        disk_mb=lambda w: 4000 + 2 * fetched_bytes(BASE[w.name]) // MB,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/fetch_base.py"


rule evaluate_base:
    """Evaluate a base model trained here on its held-out splits."""
    input:
        base=ancient("<results>/base/{name}/preset"),
        fingerprint="<results>/base/{name}/preset.json",
        records=lambda w: in_place(TRAINED_BASES[w.name].records.manifest),
        state=lambda w: TRAINED_BASES[w.name].state,
        code=code_inputs("base/evaluate_base", "jax"),
    output:
        "<results>/base/{name}/metrics.json",
    params:
        recipe=lambda w: pick(
            BASE[w.name],
            *("batch_size", "microbatches", "precision", "mesh", "host_device_count"),
            *TRAINED_BASES[w.name].determinism_keys,
        )
        | {"cpu_threads": config["cpu_threads"]},
    log:
        "<logs>/base/{name}/evaluate.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        **asks(of_stage("base"), "evaluate_base"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/evaluate_base.py"
