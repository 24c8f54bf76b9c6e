"""Tokenize the documents of one shard for causal models, pack them into records, and write these as TFRecords.

input.corpus      Parquet files, one document per row: text; responses, if only these count
input.tokenizer   vocabulary of a base model, or its preset folder
input.lengths     NumPy arrays: characters of each document of each of these files
output.records    TFRecord file of tf.train.Example
output.index      offset of each record, uint64 little-endian, records + 1 values
output.sidecar    JSON: file, index, documents, records, tokens, dropped_tokens, bytes, sha256, index_sha256; vocabulary
                  (tokenizer_sha256, vocab_size, special_ids); if only responses count, loss_tokens, target_tokens,
                  records_without_loss
params.recipe     packing, sequence_length, tokens_per_record; shards and files (their numbers in the split); shards_key
                  and length_key (config keys); responses (true if records mark their tokens); chat (true if a chat
                  template has written the documents)
"""

import os
from collections import Counter

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.corpus.documents import read_responses, read_texts
from tpulm.records.shards import SPELLED, range_of_job, special_counted, write_shard
from tpulm.tokenization.tokenizer import CLOSING, TextTokenizer, check_control_tokens, describe, tokenize

wildcards, recipe, inputs = snakemake.wildcards, snakemake.params.recipe, snakemake.input
split, shard, shards = wildcards.split, int(wildcards.shard), int(wildcards.shards)

with job(snakemake.log[0], f"{wildcards.records} {split} {shard + 1}/{shards}") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)
    part = range_of_job(inputs.lengths, recipe, split, shard, shards)
    tokenizer = TextTokenizer.load(inputs.tokenizer)
    rows = inputs.corpus, slice(part["start"], part["stop"])
    responses = read_responses(*rows) if recipe.get("responses") else None
    texts = read_texts(*rows)
    documents = tokenize(check_control_tokens(texts, tokenizer) if recipe.get("chat") else texts, tokenizer, responses)
    counts: Counter[str] = Counter()
    if not recipe.get("chat"):  # whose template writes special tokens
        special = {*tokenizer.special.values()} - {None}
        documents = special_counted(documents, special, len(tokenizer.before + tokenizer.after), counts)
    pad, target = tokenizer.special["pad"], snakemake.output.records
    written = write_shard(documents, recipe, pad, CLOSING, target, part["documents"], counts)
    write_json(snakemake.output.sidecar, written | {"vocabulary": describe(tokenizer, inputs.tokenizer)})
    silent = f"; {written['records_without_loss']:,} without a response" if written.get("records_without_loss") else ""
    spelled = f"; the text spells {counts[SPELLED]:,} special tokens" if counts[SPELLED] else ""
    sizes = f"{written['records']:,} records of {recipe['sequence_length']} tokens"
    say(f"{sizes} from {part['documents']:,} documents{silent}{spelled}")
