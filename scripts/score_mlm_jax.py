"""Score a masked language model that was trained on JAX, by pseudo-log-likelihood, without TensorFlow.

input             as of score_mlm_tensorflow
output            as of score_mlm_tensorflow; computed in float32, as there
params.recipe     texts, pairs, documents, length; batch_size, microbatches, mesh, layout, cpu_threads,
                  host_device_count; determinism, where it is steps
"""

from pathlib import Path

from tpulm.core.job import job
from tpulm.core.scores import MASKED
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"evaluation mlm {run}") as say:
    determinism = recipe.get("determinism", "bytes")
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], determinism=determinism)
    from tpulm.evaluation.jax_scoring import Scorer
    from tpulm.evaluation.rows import masked_rows
    from tpulm.evaluation.scored import Material, spoken
    from tpulm.evaluation.vocabularies import MaskedVocabulary, costs_of, fitting
    from tpulm.models.opened_masked import open_masked
    from tpulm.models.sharding import on_one_host
    from tpulm.training.tasks import masked

    folder = Path(snakemake.input.model[0]).parent
    vocabulary = MaskedVocabulary(folder / "tokenizer.json", folder / "special_tokens_map.json")
    model, distribution = open_masked(folder, f"mlm.runs.{run}", on_one_host(recipe, snakemake.resources))
    length = fitting(recipe["length"], folder)
    score = Scorer(model, distribution, masked, recipe["batch_size"] // recipe["microbatches"] * length, length)
    material = Material.of(snakemake.input, recipe)
    encoded = vocabulary.encode(material.distinct)
    nats = score(masked_rows(encoded, vocabulary, length), len(encoded))
    costs = costs_of(material.distinct, encoded, nats)
    for line in spoken(material.write(snakemake.output, f"mlm/{run}", MASKED, costs)):
        say(line)
