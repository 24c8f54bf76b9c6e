"""Cut the documents of a split into contiguous ranges with about the same number of characters, one per shard.

input.lengths             NumPy arrays: characters of each document of each file of the split
output                    JSON: for each shard start, stop (exclusive), documents, characters
params.recipe.shards      number of shards
params.recipe.shards_key  how the config names it
"""

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe, split = snakemake.params.recipe, snakemake.wildcards.split

with job(snakemake.log[0], f"{snakemake.wildcards.records} {split}"):
    import numpy as np
    from tpulm.records.packing import plan_files

    lengths = [np.load(path, mmap_mode="r") for path in snakemake.input.lengths]
    write_json(snakemake.output[0], plan_files(lengths, recipe["shards"], f"{recipe['shards_key']}.{split}"))
