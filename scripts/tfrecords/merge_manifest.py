"""Merge the sidecars of all shards into the manifest, without reading the records.

input.train, .validation, .test  sidecars of the shards of each existing split, in order
output                           JSON: sequence_length, tokens_per_record, packing, tokenizer_sha256, vocab_size,
                                 special_ids, splits; responses, if records mark their tokens
params.recipe                    sequence_length, tokens_per_record, packing; responses
"""

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.specs.artifacts import SPLITS

with job(snakemake.log[0], snakemake.wildcards.records) as say:
    from tpulm.records.shards import merge_sidecars

    sidecars = {split: [read_json(file) for file in snakemake.input.get(split, ())] for split in SPLITS}
    manifest = merge_sidecars({split: shards for split, shards in sidecars.items() if shards}, snakemake.params.recipe)
    write_json(snakemake.output[0], manifest)
    say(", ".join(f"{split}: {entry['records']:,} records" for split, entry in manifest["splits"].items()))
