"""Train a Unigram tokenizer (Kudo 2018) on the training split.

input.corpus               Parquet, one column `text`, one document per row
output.tokenizer           tokenizer.json, as the `tokenizers` library saves it
output.config              tokenizer_config.json, and
output.special_tokens_map  special_tokens_map.json: with them AutoTokenizer loads the folder
params.recipe.vocab_size   number of pieces, special tokens included
"""

import os

from tpulm.core.files import atomic_write
from tpulm.core.job import job

with job(snakemake.log[0], "tokenizer") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.corpus.reader import read_texts
    from tpulm.tokenization.folder import write_settings
    from tpulm.tokenization.unigram import train

    tokenizer = train(lambda: read_texts(snakemake.input.corpus), snakemake.params.recipe["vocab_size"])
    with atomic_write(snakemake.output.tokenizer) as partial:
        tokenizer.save(str(partial))
    write_settings(tokenizer, snakemake.output.config, snakemake.output.special_tokens_map)
    say(f"{tokenizer.get_vocab_size():,} pieces")
