"""Score a causal model on a task of lm-evaluation-harness.

input.base        preset folder
input.fingerprint SHA-256 of each of its files
input.task        files that describe the task; none for a task of the harness
input.tokenizer   tokenizer.json
input.best        safetensors: tuned variables of a checkpoint; absent for the base model itself
input.data        files of the task's examples in the order of its description; none for a task of the harness
input.overlaps    JSON of find_overlap, one for each training text
output.scores     JSON, see tpulm.specs.scores: a score for each metric of the task
output.by_item    Parquet: score, item, value
params.recipe     harness (name, file or task and revision, examples shown, limit, max_length); key and path of the
                  model, step of a checkpoint; seed, precision, mesh, layout, cpu_threads, host_device_count; for a
                  finetuned model, method and keys of LoRA; determinism, if it is steps
"""

import tempfile

from tpulm.core.arrays import load_arrays
from tpulm.core.job import job
from tpulm.specs.harness_tasks import HarnessTask
from tpulm.specs.scores import CAUSAL
from tpulm.training.opening import open_causal

recipe = snakemake.params.recipe
harness, base, best = recipe["harness"], snakemake.input.base, snakemake.input.get("best")

with job(snakemake.log[0], f"{recipe['path']}, {harness['name']}") as say:
    model, distribution = open_causal(recipe["key"], recipe, base, snakemake.resources)
    from tpulm.evaluation.harness import harness_scores, results_of
    from tpulm.evaluation.harness_model import KerasLM
    from tpulm.evaluation.item_means import write_scored
    from tpulm.evaluation.overlap import items_in_training
    from tpulm.models.variables import assign
    from tpulm.tokenization.tokenizer import TextTokenizer

    task = HarnessTask(harness["name"], harness)
    if best:
        assign(model.trainable_variables, load_arrays(best), best)
    tokenizer = TextTokenizer.load(*snakemake.input.tokenizer)
    length = harness["max_length"] or model.preprocessor.sequence_length
    name = f"{task.key}: {recipe['path']} with the weights of {best or base}"
    lm = KerasLM(model, distribution, tokenizer.for_transformers(), tokenizer.special, length, recipe["seed"], name)
    with tempfile.TemporaryDirectory() as cache:
        paths = dict(zip(task.data, map(str, snakemake.input.get("data", [])), strict=True))
        results = results_of(lm, task.key, harness, paths, cache)
    in_training = items_in_training(snakemake.input.overlaps, harness["name"])
    scored = harness_scores(harness["name"], harness.get("task"), results, in_training)
    write_scored(snakemake.output, recipe, CAUSAL, scored, say)
