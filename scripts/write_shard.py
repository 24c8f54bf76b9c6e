"""Tokenize the documents of one shard, pack them into sequences, and write those as TFRecords.

input.corpus          Parquet, one column `text`, one document per row
input.tokenizer       tokenizer.json
input.ranges          JSON: which documents belong to which shard
output.records        TFRecord file of tf.train.Example
output.index          where each record begins, uint64 little-endian, records + 1 values
output.sidecar        JSON: file, index, documents, records, tokens, dropped_tokens, bytes, sha256, index_sha256
params.recipe.sequence_length  tokens per record
"""

import os

from lib.errors import UserError
from lib.files import read_json, write_json
from lib.job import job

split, shard, shards = snakemake.wildcards.split, int(snakemake.wildcards.shard), int(snakemake.wildcards.shards)

with job(snakemake.log[0], f"tfrecords {split} {shard + 1}/{shards}") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from lib.packing import Packer, pack, tokenize
    from lib.texts import read_texts
    from lib.tfrecord import write_records
    from lib.tokenizer import load

    ranges = read_json(snakemake.input.ranges)
    if len(ranges) != shards or shard >= shards:
        raise UserError(f"tfrecords.shards.{split} is {len(ranges)}: there is no shard {shard:05d}-of-{shards:05d}.")
    part = ranges[shard]
    packer = Packer(snakemake.params.recipe["sequence_length"])
    texts = read_texts(snakemake.input.corpus, part["start"], part["stop"])
    blocks = pack(tokenize(load(snakemake.input.tokenizer), texts), packer, split, shard, shards)
    written = write_records(snakemake.output.records, snakemake.output.index, blocks)
    write_json(
        snakemake.output.sidecar,
        {
            "file": f"{split}/{os.path.basename(snakemake.output.records)}",
            "index": f"{split}/{os.path.basename(snakemake.output.index)}",
            "documents": part["documents"],
            "tokens": packer.tokens,
            "dropped_tokens": packer.dropped,
            **written,
        },
    )
    say(f"{written['records']:,} records of {packer.sequence_length} tokens from {part['documents']:,} documents")
