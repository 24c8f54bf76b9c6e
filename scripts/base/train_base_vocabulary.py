"""Train the vocabulary of a base model on the training split.

input.corpus              Parquet files with a column `text`, one document per row
input.lengths             NumPy arrays: characters of each document
output                    a serialized SentencePiece model, or JSON of the library `tokenizers`
params.recipe.vocab_size  number of pieces, including the special and byte pieces
params.recipe.seed        selects the documents to read if the text is very long
params.recipe.marks       for SentencePiece, the pieces before and after a document; or
params.recipe.byte_level  for byte-level BPE, the architecture of the model
"""

import os

from tpulm.core.files import atomic_write
from tpulm.core.job import job

recipe, run = snakemake.params.recipe, os.path.dirname(snakemake.wildcards.vocabulary)

with job(snakemake.log[0], f"base {run}") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.corpus.documents import read_lengths, read_texts
    from tpulm.specs.causal_vocabularies import VOCABULARY_KINDS
    from tpulm.tokenization.sample import CHARACTERS, Sample
    from tpulm.tokenization.sentencepiece_bpe import train_vocabulary
    from tpulm.tokenization.training import train_byte_level

    lengths = read_lengths(snakemake.input.lengths)
    sample = Sample(lambda rows: read_texts(snakemake.input.corpus, rows), lengths, CHARACTERS, recipe["seed"])
    size, where = recipe["vocab_size"], f"base.{run}.vocab_size"
    if "byte_level" in recipe:
        vocabulary = VOCABULARY_KINDS[recipe["byte_level"]].byte_level
        content = train_byte_level(sample, vocabulary, size, where).to_str(pretty=True).encode()
    else:
        documents = (text for texts in sample for text in texts)
        content = train_vocabulary(documents, size, where, tuple(recipe["marks"]))
    with atomic_write(snakemake.output[0]) as partial:
        partial.write_bytes(content)
    say(f"vocabulary of {size:,} pieces")
