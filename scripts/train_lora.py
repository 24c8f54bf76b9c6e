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
                          precision, mesh, seed, cpu_threads, cpu_devices; patience where it can matter
"""

import sys

from lib import checkpoint, keras_jax
from lib.arrays import load_arrays
from lib.causal_data import OnePerRecord
from lib.causal_tokens import load_tokenizer
from lib.history import History
from lib.job import job
from lib.schedule import learning_rates

recipe = snakemake.params.recipe
run, first, last = snakemake.wildcards.run, recipe["first"], recipe["last"]

with job(snakemake.log[0], f"lora {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    outputs = dict(snakemake.output.items())
    if checkpoint.stopped_early(outputs, recipe, previous, say):
        sys.exit()
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from lib import sharding
    from lib.causal_model import count, make_optimizer
    from lib.causal_training import Trainer
    from lib.tuning import open_run

    special = load_tokenizer(snakemake.input.base, lambda: None).special
    train, validation = (
        OnePerRecord(snakemake.input[split], recipe["sequence_length"], special) for split in ("train", "validation")
    )
    model, distribution = open_run(snakemake.input.base, recipe, run)
    trainer = Trainer(model, make_optimizer(recipe["optimizer"]), distribution)
    if previous:
        weights, optimizer = (load_arrays(previous[part]) for part in ("weights", "optimizer"))
        trainer.load(weights, optimizer, f"the checkpoint with {previous['weights']}")
    say(
        f"steps {first + 1} to {last}, {count(model.trainable_variables):,} of {count(model.variables):,} parameters, "
        f"{sharding.described(distribution)}"
    )

    history = History(first, last, recipe["batch_size"] * recipe["sequence_length"], say)
    trainer.train(train, recipe, learning_rates(recipe["schedule"], first, last), history)
    evaluation = trainer.evaluate(validation, recipe["batch_size"])
    say(f"step {last}  held-out loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.3f}")
    checkpoint.save(outputs, recipe, trainer.weights(), trainer.optimizer(), evaluation, previous)
    history.write(snakemake.output.history, snakemake.output.timings)
