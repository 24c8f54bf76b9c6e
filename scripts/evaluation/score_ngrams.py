"""Score a unigram and a 5-gram model of a text's training documents, in the vocabulary of a model.

input.documents   Parquet files of the training split, one document per row; input.lengths  characters of each
input.texts       Parquet file of the documents that models are scored on
input.pairs       JSON Lines files of pairs of sentences
input.vocabulary  tokenizer.json and special_tokens_map.json, the vocabulary of a base model, or a preset folder and its
                  fingerprint
output            Parquet: text; responses, where they are scored; unigram, kneser_ney, its negative log-likelihoods in
                  nats
"""

from tpulm.core.job import job
from tpulm.training import runtime

wildcards = snakemake.wildcards

with job(snakemake.log[0], f"evaluation {wildcards.collection} {wildcards.vocabulary}") as say:
    from tpulm.corpus.documents import read_lengths, read_rows
    from tpulm.evaluation.documents import read_sample
    from tpulm.evaluation.ngram_model import CHARACTERS, encoded_documents, write_costs
    from tpulm.evaluation.rows import CausalVocabulary, MaskedVocabulary
    from tpulm.evaluation.text_scores import Material, read_sets
    from tpulm.tokenization.sample import Sample

    first, *others = snakemake.input.vocabulary
    if first.endswith("tokenizer.json"):
        vocabulary = MaskedVocabulary(first, *others)
    else:
        vocabulary = CausalVocabulary(first, lambda: runtime.start(cpu_threads=1, on_cpu=True))
    lengths = read_lengths(snakemake.input.lengths)
    sample = Sample(lambda rows: read_rows(snakemake.input.documents, rows), lengths, CHARACTERS, 0)
    training = encoded_documents(vocabulary, sample)
    texts = [one for path in snakemake.input.texts for one in read_sample(path)]
    texts = [one.whole for one in texts] if isinstance(vocabulary, MaskedVocabulary) else texts
    material = Material(texts, read_sets(snakemake.input.pairs), {}, [])
    write_costs(snakemake.output[0], vocabulary, training, material.distinct)
    say(f"counted {sum(map(len, training)):,} tokens")
