"""Score a causal model: one that was trained here, or a finetuned one beside its base model.

input.material, .ngrams, .overlaps   as of score_mlm
input.base        preset folder; input.tokenizer  tokenizer.json
input.best        the tuned variables of a finetuned model; none of another one
output.scores     JSON: model, kind (causal) and scores, see tpulm.specs.scores; of a finetuned model, `base model` is
                  one of the baselines
output.by_item    Parquet: score (its name), item, value
params.recipe     key and path of the model, step of a checkpoint; documents of each split; sequence_length, batch_size,
                  microbatches, precision, mesh, layout, seed, cpu_threads, host_device_count, of a finetuned model
                  method and keys of LoRA; determinism, where it is steps
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
    costs, others = score(), {}
    if best:
        assign(model.trainable_variables, load_arrays(best), best)
        costs, others = score(), {BASE: costs}
    scored = material.scored(recipe["path"], CAUSAL, costs, others)
    write_scored(snakemake.output, recipe, CAUSAL, scored, say)
