"""Score a finetuned model, beside its base model.

input.texts, .pairs, .ngrams, .overlaps   as of score_mlm_tensorflow
input.base        preset folder
input.best        the best checkpoint's tuned variables
output            as of score_base; `base model` is one of the baselines
params.recipe     texts and pairs, the names of those; documents of each split; sequence_length, batch_size,
                  microbatches, method and keys of LoRA, seed, precision, mesh, layout, cpu_threads, host_device_count;
                  determinism, where it is steps
"""

from tpulm.config.training_step import ModelSpec
from tpulm.core.arrays import load_arrays
from tpulm.core.job import job
from tpulm.core.scores import CAUSAL
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"evaluation finetune {run}") as say:
    determinism = recipe.get("determinism", "bytes")
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"], determinism)
    from tpulm.evaluation.causal_scoring import CausalScorer
    from tpulm.evaluation.scored import Material, spoken
    from tpulm.models.building import open_model
    from tpulm.models.causal import assign
    from tpulm.models.sharding import on_one_host

    base, best = snakemake.input.base, snakemake.input.best
    opened = on_one_host(recipe, snakemake.resources) | {"base": {"preset": base}}
    model, distribution = open_model(ModelSpec.of("finetune", f"finetune.runs.{run}", opened))
    material = Material.of(snakemake.input, recipe)
    score = CausalScorer(model, distribution, recipe, base, material.distinct)
    before = score()
    assign(model.trainable_variables, load_arrays(best), best)
    written = material.write(snakemake.output, f"finetune/{run}", CAUSAL, score(), base_model=before)
    for line in spoken(written):
        say(line)
