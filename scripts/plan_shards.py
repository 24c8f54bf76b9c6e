"""Cut the documents of a split into contiguous ranges with about the same number of characters, one per shard.

input.corpus              Parquet, one column `text`, one document per row
output                    JSON: for each shard start, stop (exclusive), documents, characters
params.recipe.shards      number of shards
params.recipe.shards_key  how the config names it
"""

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe, split = snakemake.params.recipe, snakemake.wildcards.split

with job(snakemake.log[0], f"{snakemake.wildcards.records} {split}"):
    from tpulm.core.arrow import leave_pandas_out
    from tpulm.corpus.reader import read_lengths
    from tpulm.records.packing import plan_ranges

    leave_pandas_out()
    lengths = read_lengths(snakemake.input.corpus).to_numpy(zero_copy_only=False)
    write_json(snakemake.output[0], plan_ranges(lengths, recipe["shards"], f"{recipe['shards_key']}.{split}"))
