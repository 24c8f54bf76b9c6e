"""TFRecords: tokenized documents, packed into records of one length. Each shard is written by its own job."""

from tpulm.config.record_sets import no_records

CAUSAL_RECORDS = [folder for folder, records in RECORD_SETS.items() if records.base]
SHARDS = ShardInputs(RECORD_SETS, DOCUMENTS, in_place, PLACE.text)


rule tfrecords:
    """Target: the records of every split for all models."""
    localrule: True
    input:
        [
            f"<results>/{folder}/{file}"
            for folder, records in RECORD_SETS.items()
            for file in ("manifest.json", *records.files)
        ]
        if RECORD_SETS
        else lambda w: or_exit(no_records),


if "tfrecords" in RECORD_SETS and RECORD_SETS["tfrecords"].made_elsewhere:

    rule fetch_shard:
        """Check and copy an existing TFRecord file, and write its index."""
        input:
            source=lambda w: SHARDS.elsewhere("tfrecords", w),
            tokenizer=TOKENIZER["tokenizer"],
            special_tokens_map=TOKENIZER["special_tokens_map"],
            code=code_inputs("tfrecords/fetch_shard", "data"),
        output:
            records="<results>/tfrecords/{split}/{shard}-of-{shards}.tfrecord",
            index="<results>/tfrecords/{split}/{shard}-of-{shards}.index",
            sidecar="<results>/tfrecords/{split}/{shard}-of-{shards}.json",
        params:
            recipe=RECORD_SETS["tfrecords"].layout,
        log:
            "<logs>/tfrecords/{split}/{shard}-of-{shards}.log",
        threads: 1
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/tfrecords/fetch_shard.py"

elif "tfrecords" in RECORD_SETS:

    rule write_shard:
        """Tokenize, pack and write the documents of one shard for masked models."""
        input:
            corpus=lambda w: SHARDS.documents("tfrecords", w),
            lengths=lambda w: SHARDS.lengths("tfrecords", w),
            tokenizer=TOKENIZER["tokenizer"],
            special_tokens_map=TOKENIZER["special_tokens_map"],
            code=code_inputs("tfrecords/write_shard", "data"),
        output:
            records="<results>/tfrecords/{split}/{shard}-of-{shards}.tfrecord",
            index="<results>/tfrecords/{split}/{shard}-of-{shards}.index",
            sidecar="<results>/tfrecords/{split}/{shard}-of-{shards}.json",
        params:
            recipe=lambda w: SHARDS.layout("tfrecords", w),
        log:
            "<logs>/tfrecords/{split}/{shard}-of-{shards}.log",
        threads: 1
        resources:
            mem_mb=4000,  # does not depend on the size of the corpus
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/tfrecords/write_shard.py"


rule write_causal_shard:
    """Tokenize, pack and write the documents of one shard for causal models."""
    input:
        corpus=lambda w: SHARDS.documents(w.records, w),
        lengths=lambda w: SHARDS.lengths(w.records, w),
        tokenizer=lambda w: SHARDS.tokenizer(w.records),
        fingerprint=lambda w: SHARDS.fingerprint(w.records),
        code=code_inputs("tfrecords/write_causal_shard", "jax"),
    output:
        records="<results>/{records}/{split}/{shard}-of-{shards}.tfrecord",
        index="<results>/{records}/{split}/{shard}-of-{shards}.index",
        sidecar="<results>/{records}/{split}/{shard}-of-{shards}.json",
    params:
        recipe=lambda w: SHARDS.layout(w.records, w),
    log:
        "<logs>/{records}/{split}/{shard}-of-{shards}.log",
    wildcard_constraints:
        records=one_of(CAUSAL_RECORDS),
    threads: 1
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/tfrecords/write_causal_shard.py"


rule merge_manifest:
    """Merge the sidecars of all shards into the manifest."""
    input:
        unpack(
            lambda w: {
                split: [f"<results>/{w.records}/{name}.json" for name in names]
                for split, names in RECORD_SETS[w.records].names.items()
            }
        ),
        code=code_inputs("tfrecords/merge_manifest", "data"),
    output:
        manifest="<results>/{records}/manifest.json",
    params:
        recipe=lambda w: pick(RECORD_SETS[w.records].layout, "sequence_length", "tokens_per_record", "packing")
        | RECORD_SETS[w.records].loss,
    log:
        "<logs>/{records}/manifest.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tfrecords/merge_manifest.py"


rule count_tokens:
    """Count the tokens of training text: what baselines of models predict by."""
    input:
        records=lambda w: in_place(RECORD_SETS[w.records].manifest),
        code=code_inputs("tfrecords/count_tokens", "data"),
    output:
        "<results>/{records}/token_counts.npy",
    log:
        "<logs>/{records}/token_counts.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tfrecords/count_tokens.py"
