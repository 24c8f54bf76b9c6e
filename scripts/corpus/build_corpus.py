"""Write the documents of a text, or of one of its parts, to one Parquet file per split.

input.parts                         Parquet: text, words, key; of all parts, or of the one that the wildcard names
input.splits                        NumPy array, uint8: the split of each document of all parts
input.record                        JSON: how many documents each part has, and how many were dropped
input.contamination                 JSON of each of these parts: training documents that share an n-gram with held-out
                                    ones; absent where they stay
output.train, .validation, .test    Parquet: text, one document per row; responses, the characters of each, where
                                    they count
output.lengths                      for each of them a NumPy array: characters of each document
output.record                       JSON: the figures of each split, and of each source
params.recipe.key                   key of this text in the config, for messages
params.recipe.max_documents         how many documents a split has at the most
params.recipe.responses             true where the corpus says which characters the responses have
params.recipe.sources, .weights     the source of each part, and how often each source is taken, where there are several
"""

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.decontamination import count_contaminated, drop_contaminated
from tpulm.corpus.documents import read_array, refuse_empty
from tpulm.corpus.splits import write_splits
from tpulm.specs.artifacts import SPLITS

inputs, wildcards = snakemake.input, snakemake.wildcards

with job(snakemake.log[0], wildcards.collection):
    record = read_json(inputs.record)
    counts = record["documents"]
    first = int(wildcards.get("part", 0))
    here = counts[first : first + len(inputs.parts)]
    start = sum(counts[:first])
    codes = read_array(inputs.splits, start, start + sum(here)).copy()
    contaminated = list(map(read_json, inputs.contamination))
    if contaminated:
        drop_contaminated(codes, here, contaminated)
    outputs = {split: snakemake.output[split] for split in SPLITS}
    splits, sources = write_splits(snakemake.params.recipe, inputs.parts, codes, outputs)
    if len(here) == len(counts):  # of a text with many parts, all are known when it is described
        if contaminated:
            count_contaminated(contaminated, record["dropped"])
        for split in SPLITS:
            refuse_empty(snakemake.params.recipe["key"], split, splits[split]["documents"], record["dropped"])
    write_json(snakemake.output.record, {"splits": splits, "sources": sources})
