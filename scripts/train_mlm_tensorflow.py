"""Train one segment of a masked language model with transformers and TensorFlow.

input.manifest        tfrecords/manifest.json
input.shards          tfrecords/shards.json, beside the shards that the manifest names; its URL, if they are in a bucket
input.previous        the previous checkpoint: weights, optimizer, best, state; empty for the first segment
output.*              the checkpoint, see tpulm.training.checkpoint; history and timings, see tpulm.training.history
params.recipe         first and last step, schedule, batch_size, model, masking, optimizer, precision, seed,
                      cpu_threads, host_device_count; patience where it can matter
"""

import sys
from functools import partial

from tpulm.config.schedule import learning_rates
from tpulm.core.job import job
from tpulm.records.masked_batches import training_batch
from tpulm.records.streaming import open_to_train
from tpulm.training import checkpoint
from tpulm.training.history import History

recipe, run = snakemake.params.recipe, snakemake.wildcards.run
outputs = dict(snakemake.output.items())

with job(snakemake.log[0], f"mlm {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    if checkpoint.stopped_early(outputs, recipe, previous, say):
        sys.exit()
    from tpulm.models.transformers_config import model_config
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.tensorflow_evaluation import evaluate
    from tpulm.training.tensorflow_trainer import Trainer

    train, validation = open_to_train(snakemake.input.manifest, snakemake.input.shards)
    strategy = runtime.start(recipe["cpu_threads"], recipe["host_device_count"])
    trainer = Trainer(strategy, model_config(recipe["model"], train.manifest, f"mlm.runs.{run}.model"), recipe)
    if previous:
        trainer.load(previous)
    first, last, batch_size = recipe["first"], recipe["last"], recipe["batch_size"]
    size, replicas = trainer.model.num_parameters(), strategy.num_replicas_in_sync
    say(f"steps {first + 1} to {last}, {size:,} parameters, {replicas} replica(s) ({runtime.device_kind()})")
    history = History(first, last, batch_size * train.sequence_length, say)
    rates = learning_rates(recipe["schedule"], first, last)
    trainer.train(partial(training_batch, train, recipe), batch_size, first, rates, history)

    evaluation = evaluate(trainer.model, validation, strategy)
    say(f"step {last}  held-out loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.3f}")
    checkpoint.save(outputs, recipe, trainer.weights(), trainer.optimizer_state(), evaluation, previous)
    history.write(outputs["history"], outputs["timings"])
