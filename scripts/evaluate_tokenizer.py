"""Evaluate the tokenizer on the validation split, on a sample of it where it is very long.

input.corpus              Parquet files with a column `text`, one document per row
input.lengths             NumPy arrays: characters of each document
input.tokenizer           tokenizer.json
input.special_tokens_map  special_tokens_map.json
input.training            training.json, where the tokenizer was trained here
output                    JSON, the figures of tpulm.tokenization.folder.measure, and those of training.json
"""

import os

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

with job(snakemake.log[0], "tokenizer") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.core.arrow import leave_pandas_out
    from tpulm.corpus.reader import read_lengths, read_rows
    from tpulm.tokenization.folder import load, measure, special_ids
    from tpulm.tokenization.sample import CHARACTERS, Sample

    leave_pandas_out()
    tokenizer = load(snakemake.input.tokenizer)
    ids = special_ids(tokenizer, snakemake.input.special_tokens_map)
    lengths = read_lengths(snakemake.input.lengths)
    sample = Sample(lambda rows: read_rows(snakemake.input.corpus, rows), lengths, CHARACTERS, 0)
    figures = measure(tokenizer, ids, sample)
    trained = [read_json(path) for path in snakemake.input.training]
    write_json(snakemake.output[0], {key: value for record in (figures, *trained) for key, value in record.items()})
    say(f"{figures['tokens_per_word']:.3f} tokens per word, {100 * figures['unknown_rate']:.2f} % unknown")
