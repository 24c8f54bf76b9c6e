"""Write the documents of a text, or of one of its parts, to one Parquet file per split.

input.parts                         Parquet: text, words, key; all parts, the one of the wildcard `part`, or those of
                                    the wildcard `source`
input.splits                        NumPy array, uint8: split of each document of all parts
input.record                        JSON: number of documents of each part, and of dropped ones
input.contamination                 JSON of each of these parts: training documents that share an n-gram with held-out
                                    ones; absent if they stay
output.train, .validation, .test    Parquet: text, one document per row; responses, spans of characters, if they count
output.lengths                      NumPy array for each split: characters of each document
output.record                       JSON: figures of each split, and of each source
params.recipe.key                   key of this text in the config, for messages
params.recipe.max_documents         limit of the documents of a split
params.recipe.responses             true if the corpus has spans of responses
params.recipe.sources, .weights     source of each part, and repetitions of each source, if there are several
"""

from pathlib import Path

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
    first = int(Path(inputs.parts[0]).stem)  # the parts of a source follow each other
    part_counts = counts[first : first + len(inputs.parts)]
    start = sum(counts[:first])
    codes = read_array(inputs.splits, start, start + sum(part_counts)).copy()
    contaminated = list(map(read_json, inputs.contamination))
    if contaminated:
        drop_contaminated(codes, part_counts, contaminated)
    outputs = {split: snakemake.output[split] for split in SPLITS}
    splits, sources = write_splits(snakemake.params.recipe, inputs.parts, codes, outputs)
    if len(part_counts) == len(counts):  # otherwise describe_corpus does this for all parts
        if contaminated:
            count_contaminated(contaminated, record["dropped"])
        for split in SPLITS:
            refuse_empty(snakemake.params.recipe["key"], split, splits[split]["documents"], record["dropped"])
    if "source" in wildcards.keys():
        where = f"{snakemake.params.recipe['key']}.sources.{wildcards.source}"
        for split in ("train", "validation"):  # which phases read, and the loss by source
            refuse_empty(where, split, splits[split]["documents"], {split: {}})
    write_json(snakemake.output.record, {"splits": splits, "sources": sources})
