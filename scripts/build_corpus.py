"""Write the documents of a text to one Parquet file per split.

input.parts                         Parquet: text, words, key
input.splits                        NumPy array, uint8: the split of each document
input.record                        JSON: the source, and what was dropped
input.contamination                 JSON for each part: training documents that share an n-gram with held-out ones;
                                    absent where they stay
output.train, .validation, .test    Parquet: text, one document per row; responses, the characters of each, where
                                    they count
output.lengths                      for each of them a NumPy array: characters of each document
output.record                       JSON: what was read, and the figures of each split
params.recipe.key                   key of this text in the config
params.recipe.max_documents         how many documents a split has at the most
params.recipe.responses             true where the corpus says which characters the responses have
params.recipe.sources, .weights     the source of each part, and how often each source is taken, where there are several
"""

import numpy as np
from tpulm.config.artifacts import SPLITS
from tpulm.core.arrow import leave_pandas_out
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.contamination import count_contaminated, drop_contaminated
from tpulm.corpus.provenance import in_words_of, with_splits
from tpulm.corpus.splits import write_splits

recipe = snakemake.params.recipe

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    leave_pandas_out()
    record = read_json(snakemake.input.record)
    dropped, documents = record.pop("dropped"), record.pop("documents")
    codes = np.load(snakemake.input.splits)
    if snakemake.input.contamination:
        found = list(map(read_json, snakemake.input.contamination))
        drop_contaminated(codes, documents, found)
        record["decontaminate"] = count_contaminated(found, dropped)
    outputs = {split: snakemake.output[split] for split in SPLITS}
    splits, sources = write_splits(recipe, snakemake.input.parts, codes, dropped, outputs)
    write_json(snakemake.output.record, with_splits(record, recipe, splits, sources))
    for split, figures in splits.items():
        say(in_words_of(split, figures, dropped[split]))
