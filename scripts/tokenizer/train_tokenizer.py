"""Train a tokenizer on the training split.

input.corpus               Parquet files with a column `text`, one document per row
input.lengths              NumPy arrays: characters of each document
output.tokenizer           tokenizer.json, as the `tokenizers` library saves it
output.config              tokenizer_config.json, and
output.special_tokens_map  special_tokens_map.json: with them AutoTokenizer loads the folder
output.training            JSON: model; training_documents and training_characters, which the tokenizer was trained on;
                           corpus_documents and corpus_characters, which the training split has
params.recipe.model        unigram, bpe or wordpiece
params.recipe.vocab_size   number of pieces, special tokens included
params.recipe.train_on     characters and seed of the sample of documents
"""

import os

from tpulm.core.files import atomic_write, write_json
from tpulm.core.job import job

with job(snakemake.log[0], "tokenizer") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.corpus.documents import read_lengths, read_rows
    from tpulm.tokenization import merges, unigram
    from tpulm.tokenization.folder import write_settings
    from tpulm.tokenization.words import Sample

    recipe, output = snakemake.params.recipe, snakemake.output
    train = {"unigram": unigram.train, "bpe": merges.train_bpe, "wordpiece": merges.train_wordpiece}[recipe["model"]]
    lengths = read_lengths(snakemake.input.lengths)
    sample = Sample(lambda rows: read_rows(snakemake.input.corpus, rows), lengths, **recipe["train_on"])
    tokenizer = train(sample, recipe["vocab_size"])
    with atomic_write(output.tokenizer) as partial:
        tokenizer.save(str(partial))
    write_settings(tokenizer, output.config, output.special_tokens_map)
    write_json(output.training, {"model": recipe["model"], **sample.record()})
    say(
        f"{recipe['model']}, {tokenizer.get_vocab_size():,} pieces, trained on {sample.documents:,} of "
        f"{sample.corpus_documents:,} documents"
    )
