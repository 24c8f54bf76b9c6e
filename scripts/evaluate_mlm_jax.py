"""Evaluate a masked language model that was trained on JAX on the held-out splits, without TensorFlow.

input.*                     as of evaluate_mlm_tensorflow
output                      JSON, see tpulm.training.masked_metrics; computed in float32
params.recipe               batch_size, microbatches, mesh, layout, cpu_threads, host_device_count; determinism, where
                            it is steps
"""

from pathlib import Path

from tpulm.core.arrays import load_arrays
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.records.masked_batches import evaluation_batches
from tpulm.records.reader import read_manifest
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"mlm {run}") as say:
    determinism = recipe.get("determinism", "bytes")
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], determinism=determinism)
    from tpulm.models.opened_masked import open_masked
    from tpulm.models.sharding import on_one_host
    from tpulm.training.evaluation import Evaluator
    from tpulm.training.masked_metrics import masked_metrics
    from tpulm.training.tasks import masked

    folder = Path(snakemake.input.model[0]).parent
    packing = {"packing": read_manifest(snakemake.input.records)["packing"]}
    model, distribution = open_masked(folder, f"mlm.runs.{run}", on_one_host(recipe, snakemake.resources) | packing)
    evaluator, most = Evaluator(model, distribution, masked), recipe["batch_size"] // recipe["microbatches"]
    parameters = sum(array.size for array in load_arrays(folder / "model.safetensors").values())
    metrics = masked_metrics(
        run, snakemake.input, recipe, parameters, lambda records: evaluator(evaluation_batches(records, most)), say
    )
    write_json(snakemake.output[0], metrics)
