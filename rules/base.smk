"""Base causal language models, trained here from scratch or existing ones; each is a Keras preset folder."""

FETCHED_BASES = [name for name in BASE if name not in TRAINED_BASES]


rule base:
    """Target: every base model, and the metrics of those trained here."""
    localrule: True
    input:
        expand("<results>/base/{run}/preset", run=BASE),
        expand("<results>/base/{run}/preset.json", run=BASE),
        expand("<results>/base/{run}/{file}", run=TRAINED_BASES, file=["history.csv", "metrics.json"]),
        [run.pruned for run in TRAINED_BASES.values()],


rule train_base_vocabulary:
    """Train the vocabulary of a base model on the training split."""
    input:
        corpus=DOCUMENTS_IN_PLACE["corpus", "train"],
        lengths=LENGTHS_IN_PLACE["corpus", "train"],
        code=code_inputs("base/train_base_vocabulary", "jax"),
    output:
        "<results>/base/{vocabulary}",
    params:
        recipe=lambda w: vocabulary_recipe(BASE[os.path.dirname(w.vocabulary)]),
    log:
        "<logs>/base/{vocabulary}.log",
    wildcard_constraints:
        vocabulary=one_of(vocabulary_of(run, BASE[run]).removeprefix("base/") for run in TRAINED_BASES),
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
        records=lambda w: in_place(TRAINED_BASES[w.run].records.manifest),
        previous=lambda w: previous_checkpoint(TRAINED_BASES[w.run], int(w.step)),
        code=code_inputs("base/train_base", "jax"),
    output:
        **segment_outputs("<results>/base/{run}"),
    params:
        recipe=lambda w: TRAINED_BASES[w.run].segment(int(w.step)),
    log:
        "<logs>/base/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(TRAINED_BASES),
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
        best=lambda w: Model.of(TRAINED_BASES[w.run], w).weights,
        vocabulary=lambda w: f"<results>/{vocabulary_of(w.run, BASE[w.run])}",
        code=code_inputs("base/export_base", "jax"),
    output:
        folder=directory("<results>/base/{run}/preset"),
        fingerprint="<results>/base/{run}/preset.json",
    params:
        recipe=lambda w: pick(BASE[w.run], "model", "sequence_length", "precision")
        | {"cpu_threads": config["cpu_threads"]},
    log:
        "<logs>/base/{run}/export.log",
    wildcard_constraints:
        run=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        mem_mb=lambda w: mem_mb(TRAINED_BASES[w.run], "export_base"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/export_base.py"


rule fetch_base:
    """Fetch an existing base model as a Keras preset folder."""
    input:
        files=lambda w: preset_files(BASE[w.run]["preset"]),
        code=code_inputs("base/fetch_base", "jax"),
    output:
        folder=directory("<results>/base/{run}/preset"),
        fingerprint="<results>/base/{run}/preset.json",
    params:
        recipe=lambda w: {"preset": BASE[w.run]["preset"], "revision": BASE[w.run].get("revision")},
    log:
        "<logs>/base/{run}/fetch.log",
    wildcard_constraints:
        run=one_of(FETCHED_BASES),
    threads: 1
    resources:
        mem_mb=lambda w: fetching_mb(BASE[w.run]),
        # The download and its copy in results/.
        disk_mb=lambda w: 4000 + 2 * fetched_bytes(BASE[w.run]) // MB,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/fetch_base.py"


rule evaluate_base:
    """Evaluate a base model trained here on its held-out splits."""
    input:
        base=ancient("<results>/base/{run}/preset"),
        fingerprint="<results>/base/{run}/preset.json",
        records=lambda w: in_place(TRAINED_BASES[w.run].records.manifest),
        counts=lambda w: TRAINED_BASES[w.run].records.token_counts,
        state=lambda w: TRAINED_BASES[w.run].state,
        code=code_inputs("base/evaluate_base", "jax"),
    output:
        "<results>/base/{run}/metrics.json",
    params:
        recipe=lambda w: pick(
            BASE[w.run],
            *("batch_size", "microbatches", "precision", "mesh", "host_device_count"),
            *TRAINED_BASES[w.run].determinism_keys,
        )
        | {"cpu_threads": config["cpu_threads"]},
    log:
        "<logs>/base/{run}/evaluate.log",
    wildcard_constraints:
        run=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        **asks(of_stage("base"), "evaluate_base"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/evaluate_base.py"
