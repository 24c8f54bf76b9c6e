"""Evaluate a masked language model on the held-out splits, with the library that has trained it, in float32.

input.records   tfrecords/manifest.json, next to its shards; a URL, if they are in a bucket
input.counts    NumPy array: frequency of each token in the training split, for the baseline
input.model     Hugging Face model folder
input.state     JSON of the chain's last checkpoint, with facts of the training; none for a pretrained model
input.by_source manifests of the records of each source of `sources`
output          JSON, see tpulm.specs.scores: loss and accuracy of both splits, with the loss by token frequencies as
                baseline (see tpulm.records.token_counts), also of each source on the validation split;
                parameters; for a model of the workflow, steps and epochs; attention, the implementation in training
                if an accelerator has several; with determinism: steps also that key, and bytes_promised: false
params.recipe   backend; cpu_threads, without an accelerator; determinism, if it is steps; with backend jax also
                batch_size, microbatches, mesh, layout, host_device_count; sources, names of those that phases mix
"""

from functools import partial
from pathlib import Path

import numpy as np
from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.records.masked_batches import EVALUATION_MASKING, ordinary_ids
from tpulm.records.reader import open_records, read_manifest
from tpulm.records.token_counts import count_tokens, maskable_ids, masked_loss
from tpulm.specs.artifacts import HELD_OUT
from tpulm.specs.recipes import determinism_of
from tpulm.specs.scores import FREQUENCIES, LOSS, MASKED, by_source, token_scores, write_scores
from tpulm.specs.training_step import determinism_metrics
from tpulm.training.checkpoint import how_trained, trained_for

recipe, run = snakemake.params.recipe, snakemake.wildcards.run
folder = Path(snakemake.input.model[0]).parent

with job(snakemake.log[0], f"mlm {run}") as say:
    manifest = read_manifest(snakemake.input.records)
    if recipe["backend"] == "tensorflow":
        from tpulm.training import tensorflow_runtime
        from tpulm.training.tensorflow_model import load_model
        from tpulm.training.tensorflow_trainer import evaluate

        tensorflow_runtime.start(recipe["cpu_threads"], 1, tpu=False)
        model = load_model(folder)
        parameters, measure = model.num_parameters(), partial(evaluate, model)
    if recipe["backend"] == "jax":
        from tpulm.training import runtime

        runtime.start(recipe["cpu_threads"], recipe["host_device_count"], determinism=determinism_of(recipe))
        from tpulm.core.arrays import load_arrays
        from tpulm.models.loading import load_masked
        from tpulm.models.sharding import on_one_host
        from tpulm.records.masked_batches import evaluation_batches, masked_lm
        from tpulm.training.evaluation import Evaluator

        packing = {"packing": manifest["packing"]}
        model, distribution = load_masked(folder, f"mlm.runs.{run}", on_one_host(recipe, snakemake.resources) | packing)
        evaluator, size = Evaluator(model, distribution, masked_lm), recipe["batch_size"] // recipe["microbatches"]
        parameters = sum(array.size for array in load_arrays(folder / "model.safetensors").values())

        def measure(records):
            """Return loss and accuracy on records."""
            return evaluator(evaluation_batches(records, size))

    facts = {"parameters": parameters} | determinism_metrics(recipe)
    if snakemake.input.state:
        state = read_json(snakemake.input.state)
        facts |= trained_for(state, manifest) | how_trained(state)
    trained, scores = np.load(snakemake.input.counts), []
    ordinary = ordinary_ids(len(trained), tuple(manifest["special_ids"].values()))
    texts = [("corpus", split, snakemake.input.records) for split in HELD_OUT]
    texts += by_source("corpus", recipe.get("sources", []), snakemake.input.by_source)
    for text, split, place in texts:
        records = open_records(place, split)
        counts = count_tokens(records, maskable_ids)
        by_frequency = {LOSS: masked_loss(counts[ordinary], trained[ordinary], EVALUATION_MASKING)}
        scores += token_scores(text, split, "all", measure(records), {FREQUENCIES: by_frequency})
    write_scores(snakemake.output[0], f"mlm/{run}", MASKED, scores, **facts)
    for score in scores:
        say(str(score))
