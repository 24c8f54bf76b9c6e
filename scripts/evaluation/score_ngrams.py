"""Score a unigram and a 5-gram model of a text's training documents, in the vocabulary of a model.

input.documents   Parquet files of the training split, one document per row
input.lengths     NumPy arrays: characters of each document
input.material    Parquet files of items
input.vocabulary  tokenizer.json; for masked models also special_tokens_map.json
output            Parquet: text; scored (spans); unigram and kneser_ney (negative log-likelihoods in nats)
"""

from tpulm.core.job import job

wildcards = snakemake.wildcards

with job(snakemake.log[0], f"evaluation {wildcards.collection} {wildcards.vocabulary}") as say:
    from tpulm.corpus.documents import read_lengths, read_texts
    from tpulm.evaluation.ngram_model import CHARACTERS, encoded_documents, ngram_costs
    from tpulm.evaluation.text_scores import Material, write_costs
    from tpulm.specs.scores import CAUSAL, MASKED
    from tpulm.tokenization.sample import Sample
    from tpulm.tokenization.tokenizer import TextTokenizer

    files = snakemake.input.vocabulary
    kind, tokenizer = MASKED if len(files) > 1 else CAUSAL, TextTokenizer.load(*files)
    lengths = read_lengths(snakemake.input.lengths)
    sample = Sample(lambda rows: read_texts(snakemake.input.documents, rows), lengths, CHARACTERS, 0)
    training = encoded_documents(tokenizer, sample)
    passages = Material.of(snakemake.input, kind).passages
    write_costs(snakemake.output[0], passages, ngram_costs(tokenizer, training, passages))
    say(f"counted {sum(map(len, training)):,} tokens")
