"""Write the documents of a text to one Parquet file per split.

input.parts                         Parquet: text, words, key
input.records                       JSON of each part, where it is this job that assigns documents to splits; otherwise:
input.splits                        NumPy array, uint8: the split of each document; JSON: the source, what was dropped
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
params.recipe.assigning             what assign_splits.py takes, where it is this job that assigns
"""

import numpy as np
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.decontamination import count_contaminated, drop_contaminated
from tpulm.corpus.splits import assign_text, write_splits
from tpulm.corpus.statistics import in_words_of, with_splits
from tpulm.specs.artifacts import SPLITS

recipe, inputs = snakemake.params.recipe, snakemake.input

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    if inputs.splits:
        codes, record = np.load(inputs.splits[0]), read_json(inputs.splits[1])
    else:
        codes, record = assign_text(recipe["assigning"], inputs.parts, inputs.records)
    dropped, documents = record.pop("dropped"), record.pop("documents")
    if inputs.contamination:
        found = list(map(read_json, inputs.contamination))
        drop_contaminated(codes, documents, found)
        record["decontaminate"] = count_contaminated(found, dropped)
    outputs = {split: snakemake.output[split] for split in SPLITS}
    splits, sources = write_splits(recipe, inputs.parts, codes, dropped, outputs)
    write_json(snakemake.output.record, with_splits(record, recipe, splits, sources))
    for split, figures in splits.items():
        say(in_words_of(split, figures, dropped[split]))
