"""Score a base model that was trained here.

input.texts, .pairs, .ngrams, .overlaps   as of score_mlm_tensorflow
input.base        preset folder
output.scores     JSON: model, kind (causal) and scores, see tpulm.core.scores
output.by_item    Parquet: score (its name), item, value
params.recipe     texts and pairs, the names of those; documents of each split; sequence_length, batch_size,
                  microbatches, precision, mesh, cpu_threads, host_device_count; determinism, where it is steps
"""

from tpulm.config.training_step import ModelSpec
from tpulm.core.job import job
from tpulm.core.scores import CAUSAL
from tpulm.training import runtime

recipe, name = snakemake.params.recipe, snakemake.wildcards.name

with job(snakemake.log[0], f"evaluation base {name}") as say:
    determinism = recipe.get("determinism", "bytes")
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"], determinism)
    from tpulm.evaluation.causal_scoring import CausalScorer
    from tpulm.evaluation.scored import Material, spoken
    from tpulm.models.building import open_model
    from tpulm.models.sharding import on_one_host

    base = snakemake.input.base
    opened = on_one_host(recipe, snakemake.resources) | {"preset": base}
    model, distribution = open_model(ModelSpec.of("base", f"base.{name}", opened))
    material = Material.of(snakemake.input, recipe)
    costs = CausalScorer(model, distribution, recipe, base, material.distinct)()
    for line in spoken(material.write(snakemake.output, f"base-training/{name}", CAUSAL, costs)):
        say(line)
