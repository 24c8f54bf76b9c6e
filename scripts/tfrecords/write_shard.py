"""Tokenize the documents of one shard for masked models, pack them into records, and write these as TFRecords.

input.corpus              Parquet files with a column `text`, one document per row
input.tokenizer           tokenizer.json
input.special_tokens_map  special_tokens_map.json
input.lengths             NumPy arrays: characters of each document of each of these files
output.records            TFRecord file of tf.train.Example
output.index              offset of each record, uint64 little-endian, records + 1 values
output.sidecar            JSON: file, index, documents, records, tokens, dropped_tokens, bytes, sha256, index_sha256;
                          special_tokens_in_text, if the text spells some;
                          vocabulary (tokenizer_sha256, vocab_size, special_ids)
params.recipe             packing, sequence_length, tokens_per_record; shards and files (their numbers in the split);
                          shards_key and length_key (config keys)
"""

import os
from collections import Counter

from tpulm.core.files import write_json
from tpulm.core.job import job

split, shard, shards = snakemake.wildcards.split, int(snakemake.wildcards.shard), int(snakemake.wildcards.shards)

with job(snakemake.log[0], f"tfrecords {split} {shard + 1}/{shards}") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.corpus.documents import read_column
    from tpulm.records.shards import SPELLED, range_of_job, special_counted, write_shard
    from tpulm.tokenization.encoding import tokenize
    from tpulm.tokenization.tokenizer import TextTokenizer, describe

    recipe, inputs = snakemake.params.recipe, snakemake.input
    part = range_of_job(inputs.lengths, recipe, split, shard, shards)
    tokenizer = TextTokenizer.load(inputs.tokenizer, inputs.special_tokens_map)
    documents = tokenize(tokenizer.fast, read_column(inputs.corpus, slice(part["start"], part["stop"])))
    pad, target = tokenizer.special["pad"], snakemake.output.records
    special, counts = {*tokenizer.special.values()} - {tokenizer.special.get("unk")}, Counter()
    documents = special_counted(documents, special, len(tokenizer.before + tokenizer.after), counts)
    written = write_shard(documents, recipe, pad, len(tokenizer.after), target, part["documents"], counts)
    write_json(snakemake.output.sidecar, written | {"vocabulary": describe(tokenizer, inputs.tokenizer)})
    spelled = f"; the text spells {counts[SPELLED]:,} special tokens" if counts[SPELLED] else ""
    sizes = f"{written['records']:,} records of {recipe['sequence_length']} tokens"
    say(f"{sizes} from {part['documents']:,} documents{spelled}")
