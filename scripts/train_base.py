"""Train one segment of a base causal language model from scratch: a Gemma of keras-hub on JAX.

input.train, .validation  tokens of the corpus, as tokenize_causal writes them
input.vocabulary          vocabulary.spm
input.previous            the checkpoint before: weights, optimizer, best, state; empty for the first segment
output.weights            safetensors, the model's variables at the last step
output.optimizer          safetensors, the optimizer's
output.best               safetensors, the model's at the step with the lowest held-out loss so far
output.state              JSON: step, evaluation on the validation split, best, fingerprints
output.history            CSV: step, loss (nats per token), learning_rate
output.timings            CSV: step, seconds_per_step, tokens_per_second
params.recipe             first and last step, schedule, batch_size, sequence_length, model, optimizer, precision,
                          mesh, seed, cpu_threads, cpu_devices; patience where it can matter
"""

import sys

from lib import checkpoint, keras_jax
from lib.arrays import load_arrays
from lib.causal_data import Packed
from lib.causal_tokens import SentencePiece
from lib.history import History
from lib.job import job
from lib.schedule import learning_rates

recipe = snakemake.params.recipe
name, first, last = snakemake.wildcards.name, recipe["first"], recipe["last"]

with job(snakemake.log[0], f"base {name}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    outputs = dict(snakemake.output.items())
    if checkpoint.stopped_early(outputs, recipe, previous, say):
        sys.exit()
    tokenizer = SentencePiece(snakemake.input.vocabulary)
    train, validation = (
        Packed(snakemake.input[split], recipe["sequence_length"], tokenizer.special)
        for split in ("train", "validation")
    )
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from keras_hub.models import GemmaBackbone
    from lib import sharding
    from lib.causal_model import build_gemma, count, make_optimizer
    from lib.causal_training import Trainer

    distribution = sharding.set_up(GemmaBackbone, recipe["mesh"], f"base.{name}.mesh")
    model = build_gemma(recipe["model"], tokenizer.size, recipe["seed"])
    sharding.check(model.variables, distribution)
    trainer = Trainer(model, make_optimizer(recipe["optimizer"]), distribution)
    if previous:
        weights, optimizer = (load_arrays(previous[part]) for part in ("weights", "optimizer"))
        trainer.load(weights, optimizer, f"the checkpoint with {previous['weights']}")
    say(f"steps {first + 1} to {last}, {count(model.variables):,} parameters, {sharding.described(distribution)}")

    history = History(first, last, recipe["batch_size"] * recipe["sequence_length"], say)
    trainer.train(train, recipe, learning_rates(recipe["schedule"], first, last), history)
    evaluation = trainer.evaluate(validation, recipe["batch_size"])
    say(f"step {last}  held-out loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.3f}")
    checkpoint.save(outputs, recipe, trainer.weights(), trainer.optimizer(), evaluation, previous)
    history.write(snakemake.output.history, snakemake.output.timings)
