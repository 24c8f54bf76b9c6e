"""Train the SentencePiece vocabulary of a base model on the training split.

input.corpus              Parquet files with a column `text`, one document per row
input.lengths             NumPy arrays: characters of each document
output                    vocabulary.spm, a serialized SentencePiece model
params.recipe.vocab_size  number of pieces, including the special and byte pieces
params.recipe.marks       the pieces before and after a document
params.recipe.seed        selects the documents to read if the text is very long
"""

from tpulm.core.files import atomic_write
from tpulm.core.job import job
from tpulm.corpus.documents import read_lengths, read_rows
from tpulm.tokenization.causal import train_vocabulary
from tpulm.tokenization.sample import CHARACTERS, Sample

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"base {run}") as say:
    lengths = read_lengths(snakemake.input.lengths)
    sample = Sample(lambda rows: read_rows(snakemake.input.corpus, rows), lengths, CHARACTERS, recipe["seed"])
    documents = (text for texts in sample for text in texts)
    where = f"base.{run}.vocab_size"
    proto = train_vocabulary(documents, recipe["vocab_size"], where, tuple(recipe["marks"]))
    with atomic_write(snakemake.output[0]) as partial:
        partial.write_bytes(proto)
    say(f"vocabulary of {recipe['vocab_size']:,} pieces")
