"""Cut the documents of a split into contiguous ranges of about as many characters, one for each shard.

input.corpus          Parquet, one column `text`, one document per row
output                JSON: for each shard start, stop (exclusive), documents, characters
params.recipe.shards  number of shards
"""

from lib.files import write_json
from lib.job import job

with job(snakemake.log[0], f"tfrecords {snakemake.wildcards.split}"):
    from lib.packing import plan_ranges
    from lib.texts import read_lengths

    lengths = read_lengths(snakemake.input.corpus).to_numpy(zero_copy_only=False)
    write_json(snakemake.output[0], plan_ranges(lengths, snakemake.params.recipe["shards"], snakemake.wildcards.split))
