"""Train one segment of a masked language model with transformers and TensorFlow.

input.records         tfrecords/manifest.json, beside the shards that it names; its URL, if they are in a bucket
input.init            config.json of the model that the run starts from, for the first segment its other files, too;
                      empty for a run from scratch
input.previous        the previous checkpoint: weights, optimizer, best, state; empty for the first segment
output.*              the checkpoint, see tpulm.training.checkpoint; history and timings, see tpulm.training.history
params.recipe         first and last step, schedule, batch_size, model, masking, optimizer, precision, seed,
                      cpu_threads, host_device_count; microbatches where there are several; patience where it can
                      matter; evaluate_every if it is given
resources.accelerator what the run requests; the job fails on other devices
resources.snapshots   where snapshots are, see tpulm.training.snapshots; resources.snapshot_every  minutes
"""

import sys

from tpulm.core.job import job
from tpulm.records.order import epochs_of
from tpulm.records.reader import open_to_train
from tpulm.training import checkpoint
from tpulm.training.snapshots import Snapshots

recipe, run = snakemake.params.recipe, snakemake.wildcards.run
outputs = dict(snakemake.output.items())

with job(snakemake.log[0], f"mlm {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    if checkpoint.stopped_early(outputs, recipe, previous, say):
        sys.exit()
    from tpulm.models.transformers_config import init_config, model_config
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.tensorflow_trainer import Trainer, check_microbatches, train_segment

    train, validation = open_to_train(snakemake.input.records)
    snapshots = Snapshots.of(snakemake.resources, recipe, snakemake.input, say)
    say(epochs_of(recipe, len(train)))
    strategy = runtime.start(recipe["cpu_threads"], recipe["host_device_count"], resources=snakemake.resources)
    init, key = snakemake.input.init, f"mlm.runs.{run}"
    check_microbatches(key, recipe, strategy.num_replicas_in_sync)
    if init:
        config = init_config(init[0], train.manifest, key)
    else:
        config = model_config(recipe["model"], train.manifest, f"{key}.model")
    trainer = Trainer(strategy, config, recipe, init[1] if init and not previous else None)
    train_segment(trainer, recipe, (train, validation), (outputs, previous), snapshots, say, snakemake.log[0])
