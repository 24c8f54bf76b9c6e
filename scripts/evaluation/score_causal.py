"""Score a causal model; a finetuned model also with its base model as baseline.

input.material, .ngrams, .overlaps   see score_mlm
input.base        preset folder
input.fingerprint SHA-256 of each of its files
input.tokenizer   tokenizer.json
input.best        tuned variables of a finetuned model; absent for other models
output.scores     JSON: model, kind (causal) and scores, see tpulm.specs.scores
output.by_item    Parquet: score (its name), item, value
params.recipe     key and path of the model, step of a checkpoint; documents of each split; sequence_length, batch_size,
                  microbatches, precision, mesh, layout, seed, cpu_threads, host_device_count; for a finetuned model,
                  method and keys of LoRA; determinism, if it is steps
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.job import job
from tpulm.specs.scores import BASE, CAUSAL
from tpulm.training.opening import open_causal

recipe, base, best = snakemake.params.recipe, snakemake.input.base, snakemake.input.get("best")

with job(snakemake.log[0], f"evaluation {recipe['path']}") as say:
    model, distribution = open_causal(recipe["key"], recipe, base, snakemake.resources)
    from tpulm.evaluation.item_means import write_scored
    from tpulm.evaluation.jax_scoring import CausalScorer
    from tpulm.evaluation.text_scores import Material
    from tpulm.models.variables import assign
    from tpulm.tokenization.tokenizer import TextTokenizer

    tokenizer = TextTokenizer.load(*snakemake.input.tokenizer)
    material = Material.of(snakemake.input, CAUSAL, recipe["documents"])
    score = CausalScorer(model, distribution, recipe, tokenizer, material.passages)
    costs, extra_baselines = score(), {}
    if best:
        assign(model.trainable_variables, load_arrays(best), best)
        costs, extra_baselines = score(), {BASE: costs}
    scored = material.scored(recipe["path"], CAUSAL, costs, extra_baselines)
    write_scored(snakemake.output, recipe, CAUSAL, scored, say)
