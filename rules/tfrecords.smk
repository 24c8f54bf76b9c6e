"""TFRecords: tokenize, concatenate and cut into sequences of one length; each shard is written by its own job."""


rule tfrecords:
    """The records of every split."""
    localrule: True
    input:
        "results/tfrecords/manifest.json",
        [f"results/tfrecords/{file}" for file in SHARD_FILES],
        LISTING,


rule plan_shards:
    """Cut the documents of a split into ranges, one per shard."""
    input:
        corpus="results/corpus/{split}.parquet",
        code=code_inputs("plan_shards", "data"),
    output:
        "results/tfrecords/{split}/ranges.json",
    params:
        recipe=lambda w: {"shards": config["tfrecords"]["shards"][w.split]},
    log:
        "logs/tfrecords/{split}/ranges.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/plan_shards.py"


rule write_shard:
    """Tokenize, pack and write the documents of one shard."""
    input:
        corpus="results/corpus/{split}.parquet",
        tokenizer=TOKENIZER["tokenizer"],
        ranges="results/tfrecords/{split}/ranges.json",
        code=code_inputs("write_shard", "data"),
    output:
        records="results/tfrecords/{split}/{shard}-of-{shards}.tfrecord",
        index="results/tfrecords/{split}/{shard}-of-{shards}.index",
        sidecar="results/tfrecords/{split}/{shard}-of-{shards}.json",
    params:
        recipe=pick(config["tfrecords"], "sequence_length"),
    log:
        "logs/tfrecords/{split}/{shard}-of-{shards}.log",
    wildcard_constraints:
        shard=r"\d{5}",
        shards=one_of(sorted({f"{count:05d}" for count in config["tfrecords"]["shards"].values()})),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/write_shard.py"


rule merge_manifest:
    """Merge the sidecars of all shards into the manifest."""
    input:
        **{split: [f"results/tfrecords/{name}.json" for name in SHARDS[split]] for split in SPLITS},
        tokenizer=TOKENIZER["tokenizer"],
        special_tokens_map=TOKENIZER["special_tokens_map"],
        code=code_inputs("merge_manifest", "data"),
    output:
        manifest="results/tfrecords/manifest.json",
    params:
        recipe=pick(config["tfrecords"], "sequence_length"),
    log:
        "logs/tfrecords/manifest.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/merge_manifest.py"


rule list_shards:
    """List the shards that trainers read; rewrite those that were deleted since the manifest was made."""
    input:
        **{split: ancient(f"results/corpus/{split}.parquet") for split in SPLITS},
        manifest="results/tfrecords/manifest.json",
        # Read only to rewrite deleted shards: the manifest tells whether the shards have changed.
        ranges=ancient(expand("results/tfrecords/{split}/ranges.json", split=SPLITS)),
        tokenizer=ancient(TOKENIZER["tokenizer"]),
        # An edit of it changes no list: nothing is listed again for that.
        code=list(map(ancient, code_inputs("list_shards", "data"))),
    output:
        # Kept where the job fails or is killed: without the file, finished segments would be stale. Snakemake keeps only
        # files of this machine.
        listing=LISTING if PLACE.bucket else update(LISTING),
    params:
        recipe=pick(config["tfrecords"], "sequence_length") | {"folder": located("results/tfrecords")},
    log:
        "logs/tfrecords/shards.log",
    threads: 2
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/list_shards.py"
