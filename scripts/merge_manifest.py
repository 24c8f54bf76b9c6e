"""Merge the sidecars of all shards into the manifest, without reading the records again.

input.train, .validation, .test  the shards' sidecars, in order
input.tokenizer                  tokenizer.json
input.special_tokens_map         special_tokens_map.json
output                           JSON: sequence_length, tokenizer_sha256, vocab_size, special_ids, splits
params.recipe.sequence_length    tokens per record
"""

from tpulm.core.files import read_json, sha256, write_json
from tpulm.core.job import job

with job(snakemake.log[0], "tfrecords") as say:
    from tpulm.records.packing import merge
    from tpulm.tokenization.folder import load, special_ids, vocabulary_size

    tokenizer = load(snakemake.input.tokenizer)
    splits = {
        split: merge([read_json(file) for file in snakemake.input[split]]) for split in ("train", "validation", "test")
    }
    write_json(
        snakemake.output[0],
        {
            "sequence_length": snakemake.params.recipe["sequence_length"],
            "tokenizer_sha256": sha256(snakemake.input.tokenizer),
            "vocab_size": vocabulary_size(tokenizer),
            "special_ids": special_ids(tokenizer, snakemake.input.special_tokens_map),
            "splits": splits,
        },
    )
    say(", ".join(f"{split}: {entry['records']:,} records" for split, entry in splits.items()))
