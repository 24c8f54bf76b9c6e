"""Measure a finished masked language model on the splits that it was not trained on.

input.manifest              tfrecords/manifest.json; the validation and test shards are inputs too
input.model                 a Hugging Face model folder
output                      JSON: parameters; for validation and test: loss (nats per masked token), accuracy,
                            perplexity, predictions, unigram_entropy (nats per token: the loss without context)
params.recipe.cpu_threads   threads where there is no accelerator
"""

from pathlib import Path

from lib.files import write_json
from lib.job import job
from lib.mlm_data import unigram_entropy
from lib.streaming import open_records

with job(snakemake.log[0], f"mlm {snakemake.wildcards.run}") as say:
    from lib import mlm_tensorflow as mlm

    mlm.set_up(snakemake.params.recipe["cpu_threads"], 1, tpu=False)
    model = mlm.load_model(Path(snakemake.input.model[0]).parent)
    metrics = {"parameters": model.num_parameters()}
    for split in ("validation", "test"):
        records = open_records(snakemake.input.manifest, snakemake.input.shards, split)
        metrics[split] = mlm.evaluate(model, records) | {"unigram_entropy": unigram_entropy(records)}
        figures = metrics[split]
        say(
            f"{split}: loss {figures['loss']:.4f} (unigram entropy {figures['unigram_entropy']:.4f}), "
            f"accuracy {figures['accuracy']:.3f}, perplexity {figures['perplexity']:.1f}"
        )
    write_json(snakemake.output[0], metrics)
