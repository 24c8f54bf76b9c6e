"""Describe a text: its sources, and the figures of each split.

input.figures           JSON of all documents, or of those of each part: figures of each split
input.record            JSON: source, and number of dropped documents
input.contamination     JSON of each part: training documents that share an n-gram with held-out ones; absent if they
                        stay
output                  JSON: sources, and figures of each split
params.recipe.key       key of this text in the config
params.recipe.weights   repetitions of each source, if there are several
"""

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.decontamination import count_contaminated
from tpulm.corpus.documents import refuse_empty
from tpulm.corpus.statistics import in_words_of, sum_parts, with_splits

recipe, inputs = snakemake.params.recipe, snakemake.input

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    record = read_json(inputs.record)
    dropped = record.pop("dropped")
    del record["documents"]
    if inputs.contamination:
        record["decontaminate"] = count_contaminated(list(map(read_json, inputs.contamination)), dropped)
    splits, sources = sum_parts(list(map(read_json, inputs.figures)), dropped)
    for split, figures in splits.items():
        refuse_empty(recipe["key"], split, figures["documents"], dropped)
        say(in_words_of(split, figures, dropped[split]))
    write_json(snakemake.output[0], with_splits(record, recipe, splits, sources))
