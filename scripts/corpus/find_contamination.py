"""Find the training documents of a part that share a word n-gram with held-out documents or benchmarks.

input.part           Parquet: text, words, key
input.splits         NumPy array, uint8: split of each document
input.record         JSON: number of documents of each part
input.ngrams         NumPy array, uint64: sorted hashes of the n-grams to avoid
output               JSON: rows of these documents in the part, and examples
params.recipe.ngram  words of an n-gram
"""

import numpy as np
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.decontamination import find_contaminated
from tpulm.corpus.documents import read_array

with job(snakemake.log[0], snakemake.wildcards.collection):
    counts, number = read_json(snakemake.input.record)["documents"], int(snakemake.wildcards.part)
    first = sum(counts[:number])
    codes = read_array(snakemake.input.splits, first, first + counts[number])
    avoided = np.load(snakemake.input.ngrams, mmap_mode="r")
    contaminated = find_contaminated(snakemake.input.part, codes, avoided, snakemake.params.recipe["ngram"])
    write_json(snakemake.output[0], contaminated)
