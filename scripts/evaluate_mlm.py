"""Evaluate a masked language model on the held-out splits, with the library that has trained it, in float32.

input.records               tfrecords/manifest.json, beside the shards that it names; its URL, if they are in a bucket
input.model                 a Hugging Face model folder
input.state                 JSON of the chain's last checkpoint, which says by what it was trained; none for a
                            pretrained model
output                      JSON, see tpulm.training.masked_metrics
params.recipe               backend; cpu_threads, where there is no accelerator; determinism, where it is steps; with
                            backend jax also batch_size, microbatches, mesh, layout, host_device_count
"""

from functools import partial
from pathlib import Path

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe, run = snakemake.params.recipe, snakemake.wildcards.run
folder = Path(snakemake.input.model[0]).parent

with job(snakemake.log[0], f"mlm {run}") as say:
    if recipe["backend"] == "tensorflow":
        from tpulm.training import tensorflow_runtime
        from tpulm.training.tensorflow_evaluation import evaluate
        from tpulm.training.tensorflow_model import load_model

        tensorflow_runtime.start(recipe["cpu_threads"], 1, tpu=False)
        model = load_model(folder)
        parameters, measure = model.num_parameters(), partial(evaluate, model)
    if recipe["backend"] == "jax":
        from tpulm.training import runtime

        determinism = recipe.get("determinism", "bytes")
        runtime.start(recipe["cpu_threads"], recipe["host_device_count"], determinism=determinism)
        from tpulm.core.arrays import load_arrays
        from tpulm.models.opened_masked import open_masked
        from tpulm.models.sharding import on_one_host
        from tpulm.records.masked_batches import evaluation_batches
        from tpulm.records.reader import read_manifest
        from tpulm.training.evaluation import Evaluator
        from tpulm.training.tasks import masked

        packing = {"packing": read_manifest(snakemake.input.records)["packing"]}
        model, distribution = open_masked(folder, f"mlm.runs.{run}", on_one_host(recipe, snakemake.resources) | packing)
        evaluator, most = Evaluator(model, distribution, masked), recipe["batch_size"] // recipe["microbatches"]
        parameters = sum(array.size for array in load_arrays(folder / "model.safetensors").values())

        def measure(records):
            """Return the figures on records."""
            return evaluator(evaluation_batches(records, most))

    from tpulm.training.masked_metrics import masked_metrics

    metrics = masked_metrics(run, snakemake.input, recipe, parameters, measure, say)
    write_json(snakemake.output[0], metrics)
