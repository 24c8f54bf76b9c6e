"""Score a causal model on a task of lm-evaluation-harness.

input.base        preset folder; input.tokenizer  tokenizer.json
input.best        safetensors, the tuned variables of the best checkpoint, or of another; none for the base model itself
input.data        files of the task's examples, in the order of its description; none of a task of the harness
input.overlaps    JSON of find_overlap, one for each text that the model was trained on
output.scores     JSON, see tpulm.specs.scores: a row for each metric of the task
output.by_item    Parquet: score, item, value
params.recipe     harness (name, file or task and revision, examples shown, limit, max_length); key and path of the
                  model, step of a checkpoint; seed, precision, mesh, layout, cpu_threads, host_device_count, for a
                  finetuned model method and keys of LoRA; determinism, where it is steps
"""

import tempfile

from tpulm.core.job import job
from tpulm.specs.harness_tasks import HarnessTask
from tpulm.specs.scores import CAUSAL
from tpulm.specs.training_step import ModelSpec
from tpulm.training import runtime

recipe = snakemake.params.recipe
asked, base, best = recipe["harness"], snakemake.input.base, snakemake.input.get("best")

with job(snakemake.log[0], f"{recipe['path']}, {asked['name']}") as say:
    determinism = recipe.get("determinism", "bytes")
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"], determinism)
    from tpulm.evaluation.harness import results_of, scores_of
    from tpulm.evaluation.harness_model import KerasLM
    from tpulm.evaluation.item_means import write_scored
    from tpulm.evaluation.overlap import items_in_training
    from tpulm.models.building import open_model
    from tpulm.models.sharding import on_one_host
    from tpulm.tokenization.tokenizer import TextTokenizer

    task = HarnessTask(asked["name"], asked)
    stage, preset = ("finetune", {"base": {"preset": base}}) if best else ("base", {"preset": base})
    opened = on_one_host(recipe, snakemake.resources) | preset
    model, distribution = open_model(ModelSpec.of(stage, recipe["key"], opened), best or None)
    tokenizer = TextTokenizer.load(*snakemake.input.tokenizer)
    length = asked["max_length"] or model.preprocessor.sequence_length
    weights = f" with the weights of {best or base}"
    name = f"{task.key}: {recipe['path']}{weights}"
    lm = KerasLM(model, distribution, tokenizer.for_transformers(), tokenizer.special, length, recipe["seed"], name)
    with tempfile.TemporaryDirectory() as cache:
        paths = dict(zip(task.data, map(str, snakemake.input.get("data", [])), strict=True))
        results = results_of(lm, task.key, asked, paths, cache)
    in_training = items_in_training(snakemake.input.overlaps, asked["name"])
    found = scores_of(asked["name"], asked.get("task"), results, in_training)
    for score in write_scored(snakemake.output, recipe, CAUSAL, found):
        say(str(score))
