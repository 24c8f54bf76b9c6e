"""Train one segment of a masked language model with Keras on JAX: RoBERTa of keras-hub, or ModernBERT.

input.records   tfrecords/manifest.json, next to its shards; a URL, if they are in a bucket
input.mixture   manifests of the records of its phase, in the order of their shares; none without phases
input.init      config.json of the model that the run starts from, for the first segment also its other files; empty for
                a run from scratch
params.recipe   model, masking; for the rest, the other inputs, outputs and resources, see tpulm.training.segment
"""

from functools import partial

from tpulm.core.job import job
from tpulm.models import masked_models
from tpulm.records.masked_batches import evaluation_batches, training_batch
from tpulm.records.mixture import open_segment
from tpulm.specs.training_step import TrainingStep
from tpulm.training import runtime
from tpulm.training.segment import Segment

recipe, run, init = snakemake.params.recipe, snakemake.wildcards.run, snakemake.input.init

with job(snakemake.log[0], f"mlm {run}") as say:
    segment = Segment.of(snakemake, say)
    train, validation = open_segment(snakemake.input.records, snakemake.input.mixture, recipe)
    manifest = train.manifest
    vocabulary = {"size": manifest["vocab_size"], "pad": manifest["special_ids"]["pad"]}
    facts = {"sequence_length": train.sequence_length, "packing": manifest["packing"], "vocabulary": vocabulary}
    if init:
        facts |= masked_models.init_recipe(init[0], manifest, f"mlm.runs.{run}")
    step = TrainingStep.of("mlm", f"mlm.runs.{run}", recipe, **facts)
    runtime.start_to_train(recipe, snakemake.resources, say)
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import train_segment

    say(train.epochs_of(recipe))
    jax_run = build_run(step, masked_models)
    if init and not segment.previous:
        masked_models.load_folder(jax_run.model, init[1])
    data = partial(training_batch, train, recipe), partial(evaluation_batches, validation, step.microbatch_size)
    train_segment(jax_run, data, segment)
