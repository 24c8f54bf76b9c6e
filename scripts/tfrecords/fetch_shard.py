"""Check each record of an external TFRecord file, copy the file, and write its index.

input.source              TFRecord file of tf.train.Example, local or gs://BUCKET/NAME
input.tokenizer           tokenizer.json, whose ids the records have
input.special_tokens_map  special_tokens_map.json
output.records            copy of the file
output.index              offset of each record, uint64 little-endian, records + 1 values
output.sidecar            JSON, see write_shard, without documents
params.recipe             packing, sequence_length, tokens_per_record; length_key (config key)
"""

from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.core.job import job

split, shard, shards = snakemake.wildcards.split, int(snakemake.wildcards.shard), int(snakemake.wildcards.shards)

with job(snakemake.log[0], f"tfrecords {split} {shard + 1}/{shards}") as say:
    from tpulm.records.external import take_shard
    from tpulm.tokenization.tokenizer import TextTokenizer, describe

    inputs, target = snakemake.input, snakemake.output.records
    if not inputs.get("source"):
        raise UserError(f"tfrecords.files.{split}: there is no shard {shard:05d}-of-{shards:05d}.")
    vocabulary = describe(TextTokenizer.load(inputs.tokenizer, inputs.special_tokens_map), inputs.tokenizer)
    sidecar = take_shard(str(inputs.source), target, snakemake.params.recipe | vocabulary)
    write_json(snakemake.output.sidecar, sidecar | {"vocabulary": vocabulary})
    say(f"{sidecar['records']:,} records of {snakemake.params.recipe['sequence_length']} tokens from {inputs.source}")
