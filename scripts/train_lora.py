"""Tune one segment of a run: a base model on the tuning text, by LoRA (Hu et al. 2021) or all of it.

input.base                preset folder
input.train, .validation  tokens of the tuning text, as tokenize_causal writes them
input.previous            the checkpoint before: weights, optimizer, best, state; empty for the first segment
output.weights            safetensors, the tuned variables at the last step: LoRA's, or all
output.optimizer          safetensors, the optimizer's
output.best               safetensors, the tuned variables at the step with the lowest held-out loss so far
output.state              JSON: step, evaluation on the validation split, best, fingerprints
output.history            CSV: step, loss (nats per token), learning_rate
output.timings            CSV: step, seconds_per_step, tokens_per_second
params.recipe             first and last step, schedule, batch_size, sequence_length, method, rank, optimizer,
                          precision, mesh, accumulate, rematerialise, steps_per_dispatch, seed, cpu_threads,
                          cpu_devices; patience where it can matter
resources.hosts           processes that train together; resources.launcher  how to start them, see lib.hosts
"""

import sys
from functools import partial

from lib import checkpoint, hosts, keras_jax
from lib.causal_data import OnePerRecord, held_out_batches, training_batch
from lib.causal_tokens import load_tokenizer
from lib.job import job

recipe = snakemake.params.recipe
run = snakemake.wildcards.run

with job(snakemake.log[0], f"lora {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    if checkpoint.stopped_early(dict(snakemake.output.items()), recipe, previous, say):
        sys.exit()
    if hosts.several(snakemake.resources, say):
        sys.exit()
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from lib.causal_model import make_optimizer
    from lib.jax_training import Trainer, causal, train_segment
    from lib.tuning import open_run

    length = recipe["sequence_length"]
    special = load_tokenizer(snakemake.input.base, lambda: None).special
    train, validation = (OnePerRecord(snakemake.input[split], length, special) for split in ("train", "validation"))
    model, distribution = open_run(snakemake.input.base, recipe, run)
    trainer = Trainer(model, make_optimizer(recipe["optimizer"]), distribution, causal, recipe)
    load = partial(training_batch, train, recipe)
    held_out = held_out_batches(validation, recipe)
    train_segment(trainer, load, held_out, length, (snakemake.output, previous), say)
