"""Assign each document of a text to a split, from the keys of all parts.

input.parts         Parquet: text, words, key
input.records       JSON of each part
output.splits       NumPy array, uint8: for each document of the parts in order, the number of its split, or of the
                    reason why it is in none
output.record       JSON: the source, and how many documents of each split were dropped, by reason;
                    how many each part has
params.recipe.key   key of this text in the config
params.recipe.parts the split that each part is named for
params.recipe.sources        the source of each part, where a text has several
params.recipe.held_out       shares of train that become the splits which no part is named for
params.recipe.max_documents  how many documents a split has at the most
params.recipe.near_duplicates  threshold of the similarity at which one of two documents is dropped; absent: none is
"""

import numpy as np
from tpulm.core.files import atomic_write, read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.splits import assign_splits
from tpulm.corpus.statistics import merged

recipe = snakemake.params.recipe

with job(snakemake.log[0], snakemake.wildcards.collection):
    records = list(map(read_json, snakemake.input.records))
    source = merged(recipe, records)
    splits, dropped = assign_splits(recipe["key"], recipe, snakemake.input.parts, records)
    with atomic_write(snakemake.output.splits) as partial, open(partial, "wb") as file:
        np.save(file, splits)
    documents = [record["documents"] for record in records]
    write_json(snakemake.output.record, source | dropped | {"documents": documents})
