"""Base causal language models, trained here from scratch or existing ones; each is a Keras preset folder."""

FETCHED_BASES = [name for name in BASES if name not in TRAINED_BASES]
SAMPLED_BASES = OUTLINE.sampled_bases


rule base:
    """Target: every base model, and the metrics and continued prompts of those trained here."""
    localrule: True
    input:
        expand("<results>/base/{run}/preset", run=BASES),
        expand("<results>/base/{run}/preset.json", run=BASES),
        expand("<results>/base/{run}/{file}", run=TRAINED_BASES, file=["history.csv", "metrics.json"]),
        expand("<results>/base/{run}/generations.json", run=SAMPLED_BASES),
        [run.prune_marks for run in TRAINED_BASES.values()],


rule train_base_vocabulary:
    """Train the vocabulary of a base model on the training split."""
    input:
        corpus=lambda w: DOCUMENTS_IN_PLACE["corpus", "train"],
        lengths=lambda w: LENGTHS_IN_PLACE["corpus", "train"],
    output:
        "<results>/base/{vocabulary}",
    params:
        recipe=lambda w: vocabulary_recipe(TRAINED_BASES[os.path.dirname(w.vocabulary)].recipe),
        code=code_digest("base/train_base_vocabulary", "jax"),
    log:
        "<logs>/base/{vocabulary}.log",
    wildcard_constraints:
        vocabulary=one_of(vocabulary_of(name, run.recipe).removeprefix("base/") for name, run in TRAINED_BASES.items()),
    resources:
        mem_mb=4000,  # does not depend on the size of the corpus
        disk_mb=4000,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/train_base_vocabulary.py"


rule write_base_tokenizer:
    """Write the tokenizer of a base model for the library `tokenizers`."""
    input:
        vocabulary=lambda w: (
            f"<results>/{vocabulary_of(w.run, BASES[w.run].recipe)}"
            if w.run in TRAINED_BASES
            else ancient(BASES[w.run].preset)
        ),
        # Snakemake compares a folder by its date only; this file changes with the content of the preset.
        fingerprint=lambda w: [] if w.run in TRAINED_BASES else BASES[w.run].fingerprint,
    output:
        "<results>/base/{run}/tokenizer.json",
    params:
        code=code_digest("base/write_base_tokenizer", "jax"),
    log:
        "<logs>/base/{run}/tokenizer.log",
    wildcard_constraints:
        run=one_of(BASES),
    resources:
        mem_mb=4000,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/write_base_tokenizer.py"


rule train_base:
    """Train one segment of a base model, from the previous checkpoint to the next."""
    input:
        records=lambda w: in_place(TRAINED_BASES[w.run].records.manifest),
        mixture=lambda w: mixture_of(TRAINED_BASES[w.run], w),
        previous=lambda w: previous_checkpoint(TRAINED_BASES[w.run], int(w.step)),
    output:
        **segment_outputs("<results>/base/{run}"),
    params:
        recipe=lambda w: TRAINED_BASES[w.run].segment(int(w.step)),
        code=code_digest("base/train_base", "jax"),
    log:
        "<logs>/base/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        **training_resources(by_name(TRAINED_BASES)),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/train_base.py"


rule export_base:
    """Save the best checkpoint of a base model as a Keras preset folder."""
    input:
        best=lambda w: at_step(TRAINED_BASES[w.run], w).weights,
        vocabulary=lambda w: f"<results>/{vocabulary_of(w.run, TRAINED_BASES[w.run].recipe)}",
        tokenizer="<results>/base/{run}/tokenizer.json",
    output:
        folder=directory("<results>/base/{run}/preset"),
        fingerprint="<results>/base/{run}/preset.json",
    params:
        recipe=lambda w: pick(recipe_at_step(TRAINED_BASES[w.run], w), "model", "sequence_length", "precision")
        | {"cpu_threads": config["cpu_threads"]},
        code=code_digest("base/export_base", "jax"),
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
        files=lambda w: preset_files(BASES[w.run].recipe["preset"]),
    output:
        folder=directory("<results>/base/{run}/preset"),
        fingerprint="<results>/base/{run}/preset.json",
    params:
        recipe=lambda w: {"preset": BASES[w.run].recipe["preset"], "revision": BASES[w.run].recipe.get("revision")},
        code=code_digest("base/fetch_base", "jax"),
    log:
        "<logs>/base/{run}/fetch.log",
    wildcard_constraints:
        run=one_of(FETCHED_BASES),
    resources:
        mem_mb=lambda w: mem_mb(BASES[w.run], "fetch_base"),
        # The download and its copy in results/.
        disk_mb=lambda w: 4000 + 2 * fetched_bytes(BASES[w.run]) // MB,
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
        by_source=lambda w: manifests_by_source(TRAINED_BASES[w.run]),
    output:
        "<results>/base/{run}/metrics.json",
    params:
        recipe=lambda w: pick(TRAINED_BASES[w.run].recipe, "batch_size", "microbatches")
        | {key: value for key, value in TRAINED_BASES[w.run].opening.items() if key not in ("layout", "seed")}
        | measured_sources(TRAINED_BASES[w.run]),
        code=code_digest("base/evaluate_base", "jax"),
    log:
        "<logs>/base/{run}/evaluate.log",
    wildcard_constraints:
        run=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        **job_resources(by_name(TRAINED_BASES), "evaluate_base"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/base/evaluate_base.py"
