"""Score a masked language model that was trained with TensorFlow, by pseudo-log-likelihood.

input.texts       Parquet files of held-out documents; input.pairs  JSON Lines files of pairs of sentences
input.ngrams      Parquet files: what the same texts cost models that count
input.overlaps    JSON: which of them are in a training text
input.model       a Hugging Face model folder
output.scores     JSON: model, kind (masked) and scores, see tpulm.core.scores
output.by_item    Parquet: score (its name), item, value
params.recipe     texts and pairs, the names of those; documents of each split; length, tokens that the model reads;
                  cpu_threads, where there is no accelerator
"""

from pathlib import Path

from tpulm.core.job import job
from tpulm.core.scores import MASKED

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"evaluation mlm {run}") as say:
    from tpulm.config.record_arrays import EVALUATION_BATCH
    from tpulm.evaluation.rows import masked_rows
    from tpulm.evaluation.scored import Material, spoken
    from tpulm.evaluation.tensorflow_scoring import score
    from tpulm.evaluation.vocabularies import MaskedVocabulary, costs_of, fitting
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.tensorflow_model import load_model

    runtime.start(recipe["cpu_threads"], 1, tpu=False)
    folder = Path(snakemake.input.model[0]).parent
    vocabulary = MaskedVocabulary(folder / "tokenizer.json", folder / "special_tokens_map.json")
    material = Material.of(snakemake.input, recipe)
    encoded = vocabulary.encode(material.distinct)
    length = fitting(recipe["length"], folder)
    rows = masked_rows(encoded, vocabulary, length)
    nats = score(load_model(folder), rows, len(encoded), EVALUATION_BATCH * length, length)
    costs = costs_of(material.distinct, encoded, nats)
    for line in spoken(material.write(snakemake.output, f"mlm/{run}", MASKED, costs)):
        say(line)
