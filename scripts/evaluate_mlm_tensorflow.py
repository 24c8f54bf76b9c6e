"""Evaluate a masked language model that was trained with TensorFlow on the held-out splits.

input.records               tfrecords/manifest.json, beside the shards that it names; its URL, if they are in a bucket
input.model                 a Hugging Face model folder
input.state                 JSON of the chain's last checkpoint, which says by what it was trained; none for a
                            pretrained model
output                      JSON, see tpulm.training.masked_metrics
params.recipe               cpu_threads, where there is no accelerator; determinism, where it is steps
"""

from functools import partial
from pathlib import Path

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"mlm {run}") as say:
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.masked_metrics import masked_metrics
    from tpulm.training.tensorflow_evaluation import evaluate
    from tpulm.training.tensorflow_model import load_model

    runtime.start(recipe["cpu_threads"], 1, tpu=False)
    model = load_model(Path(snakemake.input.model[0]).parent)
    measure = partial(evaluate, model)
    metrics = masked_metrics(run, snakemake.input, recipe, model.num_parameters(), measure, say)
    write_json(snakemake.output[0], metrics)
