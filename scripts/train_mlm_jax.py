"""Train one segment of a masked language model with Keras on JAX: RoBERTa of keras-hub.

input.manifest        tfrecords/manifest.json; the shards that it names are inputs too
input.previous        the checkpoint before: weights, optimizer, best, state; empty for the first segment
output.weights        safetensors, the model's variables at the last step
output.optimizer      safetensors, the optimizer's
output.best           safetensors, the model's at the step with the lowest held-out loss so far
output.state          JSON: step, evaluation on the validation split, best, fingerprints
output.history        CSV: step, loss (nats per masked token), learning_rate
output.timings        CSV: step, seconds_per_step, tokens_per_second
params.recipe         first and last step, schedule, batch_size, model, masking, optimizer, precision, mesh, accumulate,
                      rematerialise, steps_per_dispatch, seed, cpu_threads, cpu_devices; patience where it can matter
resources.hosts       processes that train together; resources.launcher  how to start them, see lib.hosts
"""

import sys
from functools import partial

from lib import checkpoint, hosts, keras_jax
from lib.job import job
from lib.mlm_data import evaluation_batches, training_batch
from lib.roberta_sizes import sizes_of
from lib.streaming import open_records

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"mlm {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    if checkpoint.stopped_early(dict(snakemake.output.items()), recipe, previous, say):
        sys.exit()
    files = snakemake.input.manifest, snakemake.input.shards
    train, validation = (open_records(*files, split) for split in ("train", "validation"))
    if not hosts.started():
        train.verify()
        validation.verify()
    if hosts.several(snakemake.resources, say):
        sys.exit()
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from keras.utils import set_random_seed
    from lib import roberta, sharding
    from lib.causal_model import make_optimizer
    from lib.jax_training import Trainer, masked, train_segment

    where, vocabulary = f"mlm.runs.{run}", train.manifest
    sizes = sizes_of(recipe["model"], f"{where}.model")
    distribution = sharding.set_up(roberta.backbone_class(), recipe["mesh"], f"{where}.mesh")
    set_random_seed(recipe["seed"])
    model = roberta.build(sizes, vocabulary["vocab_size"], vocabulary["special_ids"]["pad"])
    roberta.draw_weights(model, sizes["initializer_range"], recipe["seed"])
    sharding.check(model.variables, distribution)
    trainer = Trainer(model, make_optimizer(recipe["optimizer"]), distribution, masked, recipe)
    load = partial(training_batch, train, recipe)
    held_out = evaluation_batches(validation, recipe["batch_size"] // recipe["accumulate"])
    train_segment(trainer, load, held_out, train.sequence_length, (snakemake.output, previous), say)
