"""Evaluate a base model of the workflow on the held-out splits.

input.base      preset folder
input.fingerprint  SHA-256 of each of its files
input.records   manifest.json of the training records; a URL, if they are in a bucket
input.counts    NumPy array: frequency of each token in the training text, for the baseline
input.state     JSON of the chain's last checkpoint, which names the best
input.by_source manifests of the records of each source of `sources`
output          JSON, see tpulm.specs.scores: loss and accuracy of both splits, with the loss by token frequencies as
                baseline (see tpulm.records.token_counts), also of each source on the validation split;
                best_step, steps, epochs, parameters; attention, the implementation in training if an accelerator has
                several; with determinism: steps also that key, and bytes_promised: false
params.recipe   batch_size, microbatches, precision, mesh, cpu_threads, host_device_count; determinism, if it is steps;
                sources, names of those that phases mix
"""

import numpy as np
from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.records.causal_batches import held_out_batches, predicted, predicted_ids
from tpulm.records.reader import open_records, read_manifest
from tpulm.records.token_counts import loss_of_frequencies
from tpulm.specs.artifacts import HELD_OUT
from tpulm.specs.scores import CAUSAL, FREQUENCIES, LOSS, by_source, token_scores, write_scores
from tpulm.specs.training_step import determinism_metrics
from tpulm.training.opening import open_causal

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"base {run}") as say:
    base, manifest = snakemake.input.base, read_manifest(snakemake.input.records)
    packing = manifest["packing"]
    model, distribution = open_causal(f"base.{run}", recipe, base, snakemake.resources, packing=packing)
    from tpulm.models.variables import count
    from tpulm.records.causal_batches import causal_lm
    from tpulm.training.checkpoint import how_trained, trained_for
    from tpulm.training.evaluation import Evaluator

    evaluator = Evaluator(model, distribution, causal_lm)
    state = read_json(snakemake.input.state)
    facts = {"best_step": state["best"]["step"], "parameters": count(model.variables)}
    facts |= trained_for(state, manifest) | determinism_metrics(recipe) | how_trained(state)
    trained, scores = np.load(snakemake.input.counts), []
    texts = [("corpus", split, snakemake.input.records) for split in HELD_OUT]
    texts += by_source("corpus", recipe.get("sources", []), snakemake.input.by_source)
    for text, split, place in texts:
        records = open_records(place, split)
        batches = list(held_out_batches(records, recipe))
        counts = np.bincount(np.concatenate([*map(predicted_ids, batches)]), minlength=len(trained))
        by_frequency = {LOSS: loss_of_frequencies(counts, trained)}
        scores += token_scores(text, split, predicted(records), evaluator(batches), {FREQUENCIES: by_frequency})
    write_scores(snakemake.output[0], f"base/{run}", CAUSAL, scores, **facts)
    for score in scores:
        say(str(score))
