"""Evaluate a trained masked language model on the held-out splits.

input.manifest              tfrecords/manifest.json
input.shards                tfrecords/shards.json, beside the shards that the manifest names; its URL, for those in a
                            bucket
input.model                 a Hugging Face model folder
output                      JSON: parameters; for validation and test: loss (nats per masked token), accuracy,
                            perplexity, predictions, unigram_entropy (nats per token: the loss without context)
params.recipe.cpu_threads   threads where there is no accelerator
"""

from pathlib import Path

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.records.masked_batches import unigram_entropy
from tpulm.records.streaming import open_records

with job(snakemake.log[0], f"mlm {snakemake.wildcards.run}") as say:
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.tensorflow_evaluation import evaluate
    from tpulm.training.tensorflow_model import load_model

    runtime.start(snakemake.params.recipe["cpu_threads"], 1, tpu=False)
    model = load_model(Path(snakemake.input.model[0]).parent)
    metrics = {"parameters": model.num_parameters()}
    for split in ("validation", "test"):
        records = open_records(snakemake.input.manifest, snakemake.input.shards, split)
        metrics[split] = evaluate(model, records) | {"unigram_entropy": unigram_entropy(records)}
        figures = metrics[split]
        say(
            f"{split}: loss {figures['loss']:.4f} (unigram entropy {figures['unigram_entropy']:.4f}), "
            f"accuracy {figures['accuracy']:.3f}, perplexity {figures['perplexity']:.1f}"
        )
    write_json(snakemake.output[0], metrics)
