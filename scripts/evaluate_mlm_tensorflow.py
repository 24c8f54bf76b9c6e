"""Evaluate a masked language model that was trained with TensorFlow on the held-out splits.

input.manifest              tfrecords/manifest.json
input.shards                tfrecords/shards.json, beside the shards that the manifest names; its URL, for those in a
                            bucket
input.model                 a Hugging Face model folder
input.state                 JSON of the chain's last checkpoint, which says by what it was trained; none for a
                            pretrained model
output                      JSON: parameters; of what was trained here steps and epochs; for validation and test: loss
                            (nats per masked token), accuracy, perplexity, predictions, unigram_entropy (nats per token:
                            the loss without context); attention, its implementation in training, where an accelerator
                            could have several; with determinism: steps that, and bytes_promised: false
params.recipe               cpu_threads, where there is no accelerator; determinism, where it is steps
"""

from pathlib import Path

from tpulm.config.training_step import promised
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.records.masked_batches import unigram_entropy
from tpulm.records.streaming import open_records

recipe = snakemake.params.recipe

with job(snakemake.log[0], f"mlm {snakemake.wildcards.run}") as say:
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.checkpoint import how_trained, trained_for
    from tpulm.training.tensorflow_evaluation import evaluate
    from tpulm.training.tensorflow_model import load_model

    runtime.start(recipe["cpu_threads"], 1, tpu=False)
    model = load_model(Path(snakemake.input.model[0]).parent)
    metrics = {"parameters": model.num_parameters()} | promised(recipe)
    if snakemake.input.state:
        state = read_json(snakemake.input.state)
        metrics |= trained_for(state, read_json(snakemake.input.manifest)) | how_trained(state)
    for split in ("validation", "test"):
        records = open_records(snakemake.input.manifest, snakemake.input.shards, split)
        metrics[split] = evaluate(model, records) | {"unigram_entropy": unigram_entropy(records)}
        figures = metrics[split]
        say(
            f"{split}: loss {figures['loss']:.4f} (unigram entropy {figures['unigram_entropy']:.4f}), "
            f"accuracy {figures['accuracy']:.3f}, perplexity {figures['perplexity']:.1f}"
        )
    write_json(snakemake.output[0], metrics)
