"""Merge what each shard's job wrote about its shard; the records themselves are not read again.

input.train, .validation, .test  the shards' sidecars, in order
input.tokenizer                  tokenizer.json
input.special_tokens_map         special_tokens_map.json
output                           JSON: sequence_length, tokenizer_sha256, vocab_size, special_ids, splits
params.recipe.sequence_length    tokens per record
"""

from lib.files import read_json, sha256, write_json
from lib.job import job

with job(snakemake.log[0], "tfrecords") as say:
    from lib.packing import merge
    from lib.tokenizer import load, special_ids, vocabulary_size

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
