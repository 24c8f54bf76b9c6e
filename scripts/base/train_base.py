"""Train one segment of a base causal language model from scratch: an architecture of keras-hub on JAX.

input.records   manifest.json of the corpus' records in the model's vocabulary; a URL, if they are in a bucket
input.mixture   manifests of the records of its phase, in the order of their shares; none without phases
params.recipe   model, sequence_length, packing; for the rest, the other inputs, outputs and resources, see
                tpulm.training.segment
"""

from functools import partial

from tpulm.core.job import job
from tpulm.records.causal_batches import held_out_batches, training_batch
from tpulm.records.mixture import open_segment
from tpulm.specs.training_step import TrainingStep
from tpulm.training import runtime
from tpulm.training.segment import Segment

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"base {run}") as say:
    segment = Segment.of(snakemake, say)
    train, validation = open_segment(snakemake.input.records, snakemake.input.mixture, recipe)
    step = TrainingStep.of("base", f"base.{run}", recipe, vocab_size=train.manifest["vocab_size"])
    runtime.start_to_train(recipe, snakemake.resources, say)
    from tpulm.models import causal
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import train_segment

    say(train.epochs_of(recipe))
    data = partial(training_batch, train, recipe), partial(held_out_batches, validation, recipe)
    train_segment(build_run(step, causal), data, segment)
