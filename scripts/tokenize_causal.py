"""Turn one split into tokens of a base model's vocabulary, without special tokens.

input.documents   Parquet, one column `text`, one document per row
input.tokenizer   vocabulary.spm, or the preset folder of the base model
output            safetensors: tokens int32 [tokens], offsets int64 [documents + 1]
"""

from lib import keras_jax
from lib.arrays import save_arrays
from lib.causal_tokens import load_tokenizer, tokenize
from lib.job import job
from lib.texts import read_texts

wildcards = snakemake.wildcards

with job(snakemake.log[0], f"tokens {wildcards.name}") as say:
    tokenizer = load_tokenizer(snakemake.input.tokenizer, lambda: keras_jax.start(cpu_threads=1))
    tokens, offsets = tokenize(read_texts(snakemake.input.documents), tokenizer)
    save_arrays(snakemake.output[0], {"tokens": tokens, "offsets": offsets})
    say(f"{wildcards.collection} {wildcards.split}: {len(offsets) - 1:,} documents, {len(tokens):,} tokens")
