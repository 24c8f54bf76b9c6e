"""Train one segment of a masked language model with transformers and TensorFlow.

input.manifest        tfrecords/manifest.json; the shards that it names are inputs too
input.previous        the checkpoint before: weights, optimizer, best, state; empty for the first segment
output.weights        safetensors, the model's variables at the last step
output.optimizer      safetensors, the optimizer's
output.best           safetensors, the model's at the step with the lowest held-out loss so far
output.state          JSON: step, evaluation on the validation split, best, fingerprints
output.history        CSV: step, loss (nats per masked token), learning_rate
output.timings        CSV: step, seconds_per_step, tokens_per_second
params.recipe         first and last step, schedule, batch_size, model, masking, optimizer, precision, seed,
                      cpu_threads, cpu_devices; patience where it can matter
"""

import sys

from lib import checkpoint
from lib.history import Drain, History
from lib.job import job
from lib.mlm_data import training_batch
from lib.schedule import learning_rates
from lib.streaming import open_records

recipe = snakemake.params.recipe
run, first, last = snakemake.wildcards.run, recipe["first"], recipe["last"]

with job(snakemake.log[0], f"mlm {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    outputs = dict(snakemake.output.items())
    if checkpoint.stopped_early(outputs, recipe, previous, say):
        sys.exit()
    from lib import mlm_tensorflow as mlm
    from lib.mlm_config import model_config

    train = open_records(snakemake.input.manifest, snakemake.input.shards, "train")
    validation = open_records(snakemake.input.manifest, snakemake.input.shards, "validation")
    train.verify()
    validation.verify()

    strategy = mlm.set_up(recipe["cpu_threads"], recipe["cpu_devices"])
    config = model_config(recipe["model"], train.manifest, f"mlm.runs.{run}.model")
    trainer = mlm.Trainer(strategy, config, recipe)
    if previous:
        trainer.load(previous)
    size, replicas = trainer.model.num_parameters(), strategy.num_replicas_in_sync
    say(f"steps {first + 1} to {last}, {size:,} parameters, {replicas} replica(s) ({mlm.device_kind()})")

    rates = learning_rates(recipe["schedule"], first, last)
    history = History(first, last, recipe["batch_size"] * train.sequence_length, say)
    drain = Drain(history)
    data = mlm.batches(strategy, lambda step: training_batch(train, recipe, step), recipe["batch_size"], first, last)
    for step, (batch, rate) in enumerate(zip(data, rates, strict=True), first):
        loss = trainer.step(batch, mlm.tf.constant(rate), mlm.tf.constant(step, mlm.tf.int64))
        drain.add(loss, rates[step - first : step - first + 1])
    drain.finish()

    evaluation = mlm.evaluate(trainer.model, validation, strategy)
    say(f"step {last}  held-out loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.3f}")
    checkpoint.save(outputs, recipe, trainer.weights(), trainer.optimizer_state(), evaluation, previous)
    history.write(snakemake.output.history, snakemake.output.timings)
