"""Collect the word n-grams that training documents must not have: those of held-out documents and of benchmarks.

input.parts           Parquet: text, words, key
input.splits          NumPy array, uint8: split of each document
input.benchmarks      the user's files with benchmarks
output                NumPy array, uint64: sorted hashes of the n-grams
params.recipe.key     key of this text in the config
params.recipe.ngram   words of an n-gram
params.recipe.column  column of the benchmarks' text, for tables
"""

from itertools import chain

import numpy as np
from tpulm.core.files import atomic_write
from tpulm.core.job import job
from tpulm.corpus.decontamination import held_out_texts, ngrams_of
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import Form

recipe = snakemake.params.recipe

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    codes = np.load(snakemake.input.splits, mmap_mode="r")
    held_out = held_out_texts(snakemake.input.parts, codes)
    form = Form(f"{recipe['key']}.decontaminate", recipe)
    benchmarks = read_files(snakemake.input.benchmarks, "line", form)
    ngrams = ngrams_of(chain(held_out, benchmarks), recipe["ngram"])
    with atomic_write(snakemake.output[0]) as partial, open(partial, "wb") as file:
        np.save(file, ngrams)
    say(f"{len(ngrams):,} n-grams of {recipe['ngram']} words are held out")
