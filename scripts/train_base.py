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
                          mesh, accumulate, rematerialise, steps_per_dispatch, seed, cpu_threads, cpu_devices;
                          patience where it can matter
resources.hosts           processes that train together; resources.launcher  how to start them, see lib.hosts
"""

import sys
from functools import partial

from lib import checkpoint, hosts, keras_jax
from lib.causal_data import Packed, held_out_batches, training_batch
from lib.causal_tokens import SentencePiece
from lib.job import job

recipe = snakemake.params.recipe
name = snakemake.wildcards.name

with job(snakemake.log[0], f"base {name}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    if checkpoint.stopped_early(dict(snakemake.output.items()), recipe, previous, say):
        sys.exit()
    if hosts.several(snakemake.resources, say):
        sys.exit()
    tokenizer = SentencePiece(snakemake.input.vocabulary)
    train, validation = (
        Packed(snakemake.input[split], recipe["sequence_length"], tokenizer.special)
        for split in ("train", "validation")
    )
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from keras.utils import set_random_seed
    from keras_hub.models import GemmaBackbone
    from lib import sharding
    from lib.causal_model import build_gemma, draw_weights, make_optimizer
    from lib.jax_training import Trainer, causal, train_segment

    distribution = sharding.set_up(GemmaBackbone, recipe["mesh"], f"base.{name}.mesh")
    set_random_seed(recipe["seed"])
    model = build_gemma(recipe["model"], tokenizer.size)
    draw_weights(model.backbone, recipe["seed"])
    sharding.check(model.variables, distribution)
    trainer = Trainer(model, make_optimizer(recipe["optimizer"]), distribution, causal, recipe)
    load = partial(training_batch, train, recipe)
    held_out = held_out_batches(validation, recipe)
    train_segment(trainer, load, held_out, recipe["sequence_length"], (snakemake.output, previous), say)
