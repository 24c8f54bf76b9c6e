"""Copy an external TFRecord file, once each of its records is checked, and write its index.

input.source              TFRecord file of tf.train.Example; gs://BUCKET/NAME, one of a bucket
input.tokenizer           tokenizer.json, in whose vocabulary its ids are
input.special_tokens_map  special_tokens_map.json
output.records            the same file
output.index              where each record begins, uint64 little-endian, records + 1 values
output.sidecar            JSON, as write_shard writes it, without documents
params.recipe             packing, sequence_length, tokens_per_record; length_key, the config key
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
    taken = take_shard(str(inputs.source), target, snakemake.params.recipe | vocabulary)
    write_json(snakemake.output.sidecar, taken | {"vocabulary": vocabulary})
    say(f"{taken['records']:,} records of {snakemake.params.recipe['sequence_length']} tokens from {inputs.source}")
