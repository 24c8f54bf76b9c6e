"""Tokenize one split with a base model's vocabulary, without special tokens.

input.documents   Parquet, one column `text`, one document per row
input.tokenizer   vocabulary.spm, or the preset folder of the base model
output            safetensors: tokens int32 [tokens], offsets int64 [documents + 1]
"""

from tpulm.core.arrays import save_arrays
from tpulm.core.job import job
from tpulm.corpus.reader import read_texts
from tpulm.tokenization.causal import load_tokenizer, tokenize
from tpulm.training import runtime

wildcards = snakemake.wildcards

with job(snakemake.log[0], f"tokens {wildcards.name}") as say:
    tokenizer = load_tokenizer(snakemake.input.tokenizer, lambda: runtime.start(cpu_threads=1))
    tokens, offsets = tokenize(read_texts(snakemake.input.documents), tokenizer)
    save_arrays(snakemake.output[0], {"tokens": tokens, "offsets": offsets})
    say(f"{wildcards.collection} {wildcards.split}: {len(offsets) - 1:,} documents, {len(tokens):,} tokens")
