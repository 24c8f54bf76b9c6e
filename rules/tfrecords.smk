"""TFRecords: tokenized documents, packed into records of one length. Each shard is written by its own job."""

from tpulm.config.record_sets import no_records

CAUSAL_RECORDS = [folder for folder, records in RECORDS.items() if records.base]
MASKED_RECORDS = [folder for folder in RECORDS if folder not in CAUSAL_RECORDS]


rule tfrecords:
    """Target: the records of every split for all models."""
    localrule: True
    input:
        [
            f"<results>/{folder}/{file}"
            for folder, records in RECORDS.items()
            for file in ("manifest.json", *records.files)
        ]
        if RECORDS
        else lambda w: or_exit(no_records),


if "tfrecords" in RECORDS and RECORDS["tfrecords"].external_files:

    rule fetch_shard:
        """Check and copy an existing TFRecord file, and write its index."""
        input:
            source=external_shard,
            tokenizer=TOKENIZER["tokenizer"],
            special_tokens_map=TOKENIZER["special_tokens_map"],
        output:
            records="<results>/tfrecords/{split}/{shard}-of-{shards}.tfrecord",
            index="<results>/tfrecords/{split}/{shard}-of-{shards}.index",
            sidecar="<results>/tfrecords/{split}/{shard}-of-{shards}.json",
        params:
            recipe=RECORDS["tfrecords"].layout,
            code=code_digest("tfrecords/fetch_shard", "data"),
        log:
            "<logs>/tfrecords/{split}/{shard}-of-{shards}.log",
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/tfrecords/fetch_shard.py"

elif MASKED_RECORDS:

    rule write_shard:
        """Tokenize, pack and write the documents of one shard for masked models."""
        input:
            corpus=lambda w: list(map(in_place, documents_of(w.records, w))),
            lengths=lambda w: [in_place(lengths_file(file)) for file in documents_of(w.records, w)],
            tokenizer=TOKENIZER["tokenizer"],
            special_tokens_map=TOKENIZER["special_tokens_map"],
        output:
            records="<results>/{records}/{split}/{shard}-of-{shards}.tfrecord",
            index="<results>/{records}/{split}/{shard}-of-{shards}.index",
            sidecar="<results>/{records}/{split}/{shard}-of-{shards}.json",
        params:
            recipe=lambda w: layout_of(w.records, w.split),
            code=code_digest("tfrecords/write_shard", "data"),
        log:
            "<logs>/{records}/{split}/{shard}-of-{shards}.log",
        wildcard_constraints:
            records=one_of(MASKED_RECORDS),
        resources:
            mem_mb=4000,  # does not depend on the size of the corpus
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/tfrecords/write_shard.py"


rule write_causal_shard:
    """Tokenize, pack and write the documents of one shard for causal models."""
    input:
        corpus=lambda w: list(map(in_place, documents_of(w.records, w))),
        lengths=lambda w: [in_place(lengths_file(file)) for file in documents_of(w.records, w)],
        # A base model that is trained here has its vocabulary before its weights.
        tokenizer=lambda w: f"<results>/base/{RECORDS[w.records].base}/tokenizer.json",
    output:
        records="<results>/{records}/{split}/{shard}-of-{shards}.tfrecord",
        index="<results>/{records}/{split}/{shard}-of-{shards}.index",
        sidecar="<results>/{records}/{split}/{shard}-of-{shards}.json",
    params:
        recipe=lambda w: layout_of(w.records, w.split),
        code=code_digest("tfrecords/write_causal_shard", "jax"),
    log:
        "<logs>/{records}/{split}/{shard}-of-{shards}.log",
    wildcard_constraints:
        records=one_of(CAUSAL_RECORDS),
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
                for split, names in RECORDS[w.records].names.items()
            }
        ),
    output:
        manifest="<results>/{records}/manifest.json",
    params:
        recipe=lambda w: pick(RECORDS[w.records].layout, "sequence_length", "tokens_per_record", "packing")
        | RECORDS[w.records].loss,
        code=code_digest("tfrecords/merge_manifest", "data"),
    log:
        "<logs>/{records}/manifest.log",
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tfrecords/merge_manifest.py"


rule count_tokens:
    """Count the tokens of the training text, for the baseline of token frequencies."""
    input:
        records=lambda w: in_place(RECORDS[w.records].manifest),
    output:
        "<results>/{records}/token_counts.npy",
    params:
        code=code_digest("tfrecords/count_tokens", "data"),
    log:
        "<logs>/{records}/token_counts.log",
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tfrecords/count_tokens.py"
