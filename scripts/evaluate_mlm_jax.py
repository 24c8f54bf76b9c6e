"""Evaluate a masked language model that was trained on JAX on the held-out splits, without TensorFlow.

input.manifest              tfrecords/manifest.json
input.shards                tfrecords/shards.json, beside the shards that the manifest names; its URL, for those in a
                            bucket
input.model                 a Hugging Face model folder
input.state                 JSON of the chain's last checkpoint, which says by what it was trained; none for a
                            pretrained model
output                      JSON, as of evaluate_mlm_tensorflow; computed in float32, as there
params.recipe               batch_size, microbatches, mesh, layout, cpu_threads, host_device_count; determinism, where
                            it is steps
"""

from pathlib import Path

from tpulm.config.training_step import promised
from tpulm.core.arrays import load_arrays
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.records.masked_batches import evaluation_batches, unigram_entropy
from tpulm.records.streaming import open_records
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"mlm {run}") as say:
    determinism = recipe.get("determinism", "bytes")
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], determinism=determinism)
    from tpulm.models.opened_masked import open_masked
    from tpulm.models.sharding import on_one_host
    from tpulm.training.checkpoint import how_trained, trained_for
    from tpulm.training.evaluation import Evaluator
    from tpulm.training.tasks import masked

    folder = Path(snakemake.input.model[0]).parent
    manifest = read_json(snakemake.input.manifest)
    opened = on_one_host(recipe, snakemake.resources) | {"packing": manifest["packing"]}
    model, distribution = open_masked(folder, f"mlm.runs.{run}", opened)
    evaluator = Evaluator(model, distribution, masked)
    parameters = sum(array.size for array in load_arrays(folder / "model.safetensors").values())
    metrics = {"parameters": parameters} | promised(recipe)
    if snakemake.input.state:
        state = read_json(snakemake.input.state)
        metrics |= trained_for(state, manifest) | how_trained(state)
    for split in ("validation", "test"):
        records = open_records(snakemake.input.manifest, snakemake.input.shards, split)
        batches = evaluation_batches(records, recipe["batch_size"] // recipe["microbatches"])
        metrics[split] = evaluator(batches) | {"unigram_entropy": unigram_entropy(records)}
        figures = metrics[split]
        say(
            f"{split}: loss {figures['loss']:.4f} (unigram entropy {figures['unigram_entropy']:.4f}), "
            f"accuracy {figures['accuracy']:.3f}, perplexity {figures['perplexity']:.1f}"
        )
    write_json(snakemake.output[0], metrics)
