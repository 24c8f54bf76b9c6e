"""Write the documents of a part of a very large text to one Parquet file per split.

input.part                          Parquet: text, words, key
input.splits                        NumPy array, uint8: the split of each document of all parts
input.record                        JSON: how many documents each part has
input.contamination                 JSON: training documents of the part that share an n-gram with held-out ones; absent
                                    where they stay
output.train, .validation, .test    Parquet: text, one document per row; responses, the characters of each, where
                                    they count
output.lengths                      for each of them a NumPy array: characters of each document
output.record                       JSON: the figures of each split
params.recipe                       as for build_corpus.py
"""

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.decontamination import drop_contaminated
from tpulm.corpus.documents import read_array
from tpulm.corpus.splits import write_splits
from tpulm.specs.artifacts import SPLITS

inputs = snakemake.input

with job(snakemake.log[0], snakemake.wildcards.collection):
    counts, number = read_json(inputs.record)["documents"], int(snakemake.wildcards.part)
    first = sum(counts[:number])
    codes = read_array(inputs.splits, first, first + counts[number]).copy()
    if inputs.contamination:
        drop_contaminated(codes, counts[number : number + 1], [read_json(inputs.contamination)])
    outputs = {split: snakemake.output[split] for split in SPLITS}
    dropped: dict[str, dict] = {split: {} for split in SPLITS}  # counted when the parts are merged
    splits, sources = write_splits(snakemake.params.recipe, [inputs.part], codes, dropped, outputs, some=True)
    write_json(snakemake.output.record, {"splits": splits, "sources": sources})
