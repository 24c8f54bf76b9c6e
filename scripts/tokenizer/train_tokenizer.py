"""Train a tokenizer on the training split.

input.corpus               Parquet files with a column `text`, one document per row
input.lengths              NumPy arrays: characters of each document
output.tokenizer           tokenizer.json of the library `tokenizers`
output.config              tokenizer_config.json, and
output.special_tokens_map  special_tokens_map.json: with them AutoTokenizer loads the folder
output.training            JSON: model and whitespace of the recipe; training_documents and training_characters of the
                           sample; corpus_documents and corpus_characters of the training split; the figures of
                           tpulm.tokenization.training.train on the vocabulary's characters
params.recipe              fields of tpulm.tokenization.pipeline.Recipe
params.train_on            characters and seed of the sample of documents
"""

import os

from tpulm.core.files import atomic_write, write_json
from tpulm.core.job import job

with job(snakemake.log[0], "tokenizer") as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.corpus.documents import read_lengths, read_texts
    from tpulm.tokenization.folder import write_settings
    from tpulm.tokenization.pipeline import Recipe
    from tpulm.tokenization.sample import Sample
    from tpulm.tokenization.training import train
    from tpulm.tokenization.words import LONGEST

    recipe, output = Recipe(**snakemake.params.recipe), snakemake.output
    lengths = read_lengths(snakemake.input.lengths)
    sample = Sample(lambda rows: read_texts(snakemake.input.corpus, rows), lengths, **snakemake.params.train_on)
    tokenizer, characters = train(sample, recipe)
    with atomic_write(output.tokenizer) as partial:
        tokenizer.save(str(partial))
    write_settings(tokenizer, output.config, output.special_tokens_map)
    kinds = {"model": recipe.model, "whitespace": recipe.whitespace}
    write_json(output.training, kinds | sample.record() | characters)
    if long := characters.get("long_word_characters"):
        say(
            f"note: {long / sample.characters:.1%} of the text is in words of more than {LONGEST} characters, such as "
            "base64; no pieces are made of these."
        )
    say(
        f"{recipe.model}, {tokenizer.get_vocab_size():,} pieces, trained on {sample.documents:,} of "
        f"{sample.corpus_documents:,} documents"
    )
