"""Train the SentencePiece vocabulary of a base model on the training split.

input.corpus              Parquet, one column `text`, one document per row
output                    vocabulary.spm, a serialized SentencePiece model
params.recipe.vocab_size  number of pieces, the special and the byte pieces included
params.recipe.seed        which documents are read, where the text is very long
"""

import numpy as np
from lib.causal_tokens import sample, train_vocabulary
from lib.files import whole
from lib.job import job
from lib.texts import read_lengths, read_texts

recipe, name = snakemake.params.recipe, snakemake.wildcards.name

with job(snakemake.log[0], f"base {name}") as say:
    corpus = snakemake.input.corpus
    chosen = sample(read_lengths(corpus).to_numpy().astype(np.int64), recipe["seed"])
    rows = (text for texts in read_texts(corpus) for text in texts)
    documents = (text for text, wanted in zip(rows, chosen, strict=True) if wanted)
    proto = train_vocabulary(documents, recipe["vocab_size"], f"base.{name}.vocab_size")
    with whole(snakemake.output[0]) as partial:
        partial.write_bytes(proto)
    say(f"vocabulary of {recipe['vocab_size']:,} pieces")
