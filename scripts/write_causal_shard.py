"""Tokenize the documents of one shard for causal models, pack them into records, and write these as TFRecords.

input.corpus      Parquet files with a column `text`, one document per row
input.tokenizer   vocabulary.spm, or the preset folder of the base model
input.ranges      JSON: which documents belong to which shard
output.records    TFRecord file of tf.train.Example
output.index      where each record begins, uint64 little-endian, records + 1 values
output.sidecar    JSON: file, index, documents, records, tokens, dropped_tokens, bytes, sha256, index_sha256;
                  vocabulary, which says of the tokenizer tokenizer_sha256, vocab_size, special_ids
params.recipe     packing, sequence_length, tokens_per_record; shards_key and length_key, their config keys
"""

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.corpus.reader import read_texts
from tpulm.records.packing import range_of
from tpulm.records.shard_writer import write_shard
from tpulm.tokenization.causal import CLOSING, describe, load_tokenizer, tokenize
from tpulm.training import runtime

wildcards, recipe, inputs = snakemake.wildcards, snakemake.params.recipe, snakemake.input
split, shard, shards = wildcards.split, int(wildcards.shard), int(wildcards.shards)

with job(snakemake.log[0], f"{wildcards.records} {split} {shard + 1}/{shards}") as say:
    part = range_of(inputs.ranges, split, shard, shards, recipe["shards_key"])
    tokenizer = load_tokenizer(inputs.tokenizer, lambda: runtime.start(cpu_threads=1))
    documents = tokenize(read_texts(inputs.corpus, part["start"], part["stop"]), tokenizer)
    pad, target = tokenizer.special["pad"], snakemake.output.records
    written = write_shard(documents, recipe, pad, CLOSING, target, part["documents"])
    write_json(snakemake.output.sidecar, written | {"vocabulary": describe(tokenizer, inputs.tokenizer)})
    say(f"{written['records']:,} records of {recipe['sequence_length']} tokens from {part['documents']:,} documents")
