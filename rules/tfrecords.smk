"""TFRecords: tokenize, concatenate, cut into sequences of one length; each shard is a job of its own."""

SHARDS = config["tfrecords"]["shards"]
# Paths of each split's shards, without their extensions.
SHARD_NAMES = {
    split: [f"results/tfrecords/{split}/{shard:05d}-of-{SHARDS[split]:05d}" for shard in range(SHARDS[split])]
    for split in SPLITS
}
# What a reader of a split needs beside the manifest: records, and where each begins. Trainers take them as `ancient`:
# the manifest holds their checksums, so a shard that is written again, byte for byte, makes nothing stale.
shard_files = lambda split: [name + end for name in SHARD_NAMES[split] for end in (".tfrecord", ".index")]


rule tfrecords:
    """The records of every split."""
    localrule: True
    input:
        "results/tfrecords/manifest.json",
        [shard_files(split) for split in SPLITS],


rule plan_shards:
    """Cut the documents of a split into ranges, one for each shard."""
    input:
        corpus="results/corpus/{split}.parquet",
        library=library("plan_shards", "data"),
    output:
        "results/tfrecords/{split}/ranges.json",
    params:
        recipe=lambda w: {"shards": SHARDS[w.split]},
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
        library=library("write_shard", "data"),
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
        shards=one_of(sorted({f"{count:05d}" for count in SHARDS.values()})),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/write_shard.py"


rule merge_manifest:
    """Merge what each shard's job wrote about its shard."""
    input:
        **{split: [f"{name}.json" for name in SHARD_NAMES[split]] for split in SPLITS},
        tokenizer=TOKENIZER["tokenizer"],
        special_tokens_map=TOKENIZER["special_tokens_map"],
        library=library("merge_manifest", "data"),
    output:
        "results/tfrecords/manifest.json",
    params:
        recipe=pick(config["tfrecords"], "sequence_length"),
    log:
        "logs/tfrecords/manifest.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/merge_manifest.py"
