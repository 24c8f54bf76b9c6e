"""Assign each document of a text to a split, from the keys of all parts.

input.parts         Parquet: text, words, key
input.records       JSON of each part
output.splits       NumPy array, uint8: for each document of the parts in order, the number of its split, or of the
                    reason why it was dropped
output.record       JSON: source; number of dropped documents of each split by reason; documents of each part
params.recipe.key   key of this text in the config
params.recipe.parts the split that each part is named for
params.recipe.sources        source of each part, if a text has several
params.recipe.held_out       shares of train for splits without a part of their own
params.recipe.max_documents  limit of the documents of a split
params.recipe.near_duplicates  similarity from which one of two documents is dropped; absent to drop none
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
