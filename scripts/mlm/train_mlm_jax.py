"""Train one segment of a masked language model with Keras on JAX: RoBERTa of keras-hub, or ModernBERT.

input.records         tfrecords/manifest.json, beside the shards that it names; its URL, if they are in a bucket
input.init            config.json of the model that the run starts from, for the first segment its other files, too;
                      empty for a run from scratch
input.previous        the previous checkpoint: weights, optimizer, best, state; empty for the first segment
output.*              the checkpoint, see tpulm.training.checkpoint; history and timings, see tpulm.training.history
params.recipe         first and last step, schedule, batch_size, model, masking, optimizer, precision, mesh,
                      microbatches, remat, steps_per_execution, seed, cpu_threads, host_device_count;
                      patience where it can matter; evaluate_every,
                      determinism, where they are given
resources.hosts       processes that train together; resources.launcher  how to start them, see tpulm.core.processes
resources.accelerator what the run requests; the job fails on other devices
resources.snapshots   where snapshots are, see tpulm.training.snapshots; resources.snapshot_every  minutes
resources.profile     steps to trace, see tpulm.training.profiling
"""

import sys
from functools import partial

from tpulm.core import processes
from tpulm.core.job import job
from tpulm.models.masked_models import init_recipe
from tpulm.records.masked_batches import evaluation_batches, training_batch
from tpulm.records.order import epochs_of
from tpulm.records.reader import open_to_train
from tpulm.specs.training_step import TrainingStep
from tpulm.training import checkpoint, runtime
from tpulm.training.snapshots import Snapshots

recipe, run = snakemake.params.recipe, snakemake.wildcards.run
outputs = dict(snakemake.output.items())

with job(snakemake.log[0], f"mlm {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    if checkpoint.stopped_early(outputs, recipe, previous, say):
        sys.exit()
    train, validation = open_to_train(snakemake.input.records, verify=not processes.is_worker())
    snapshots = Snapshots.of(snakemake.resources, recipe, snakemake.input, say)
    if processes.launch_workers(snakemake.resources, say):
        sys.exit()
    vocabulary = {"size": train.manifest["vocab_size"], "pad": train.manifest["special_ids"]["pad"]}
    packing = train.manifest["packing"]
    known = {"sequence_length": train.sequence_length, "packing": packing, "vocabulary": vocabulary}
    if snakemake.input.init:
        known |= init_recipe(snakemake.input.init[0], train.manifest, f"mlm.runs.{run}")
    step = TrainingStep.of("mlm", f"mlm.runs.{run}", recipe, **known)
    say(epochs_of(recipe, len(train)))
    devices = recipe["cpu_threads"], recipe["host_device_count"]
    runtime.start(*devices, recipe["precision"], step.model.determinism, resources=snakemake.resources)
    from tpulm.models.loading import load_folder
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import train_segment
    from tpulm.training.profiling import Profile

    data = partial(training_batch, train, recipe), partial(evaluation_batches, validation, step.microbatch_size)
    profile = Profile.of(snakemake.resources, snakemake.log[0])
    jax_run = build_run(step)
    if snakemake.input.init and not previous:
        load_folder(jax_run.model, snakemake.input.init[1])
    train_segment(jax_run, recipe, data, (outputs, previous), snapshots, say, snakemake.log[0], profile)
