"""Tokenize the documents of one shard, pack them into sequences, and write these as TFRecords.

input.corpus          Parquet, one column `text`, one document per row
input.tokenizer       tokenizer.json
input.ranges          JSON: which documents belong to which shard
output.records        TFRecord file of tf.train.Example
output.index          where each record begins, uint64 little-endian, records + 1 values
output.sidecar        JSON: file, index, documents, records, tokens, dropped_tokens, bytes, sha256, index_sha256
params.recipe.sequence_length  tokens per record
"""

import os

from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

split, shard, shards = snakemake.wildcards.split, int(snakemake.wildcards.shard), int(snakemake.wildcards.shards)

with job(snakemake.log[0], f"tfrecords {split} {shard + 1}/{shards}") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.corpus.reader import read_batches
    from tpulm.records.shard_writer import write_shard
    from tpulm.tokenization.encoding import tokenize
    from tpulm.tokenization.folder import load

    ranges = read_json(snakemake.input.ranges)
    if len(ranges) != shards or shard >= shards:
        raise UserError(f"tfrecords.shards.{split} is {len(ranges)}: there is no shard {shard:05d}-of-{shards:05d}.")
    part, length = ranges[shard], snakemake.params.recipe["sequence_length"]
    documents = read_batches(snakemake.input.corpus, part["start"], part["stop"])
    ids = tokenize(load(snakemake.input.tokenizer), documents)
    written = write_shard(ids, length, snakemake.output.records, part["documents"])
    write_json(snakemake.output.sidecar, written)
    say(f"{written['records']:,} records of {length} tokens from {part['documents']:,} documents")
