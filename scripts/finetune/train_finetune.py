"""Train one segment of a finetuning run: a base model on finetune.text, with LoRA (Hu et al. 2021) or in full.

input.base         preset folder
input.fingerprint  SHA-256 of each of its files
input.records      manifest.json of the records of finetune.text in the base model's vocabulary; a URL, if they are in a
                   bucket
input.mixture      manifests of the records of its phase, in the order of their shares; none without phases
input.start        weights of another run that the first segment starts from; none without init
output.weights     the tuned variables: those of LoRA, or all
params.recipe      sequence_length, packing, method and keys of LoRA; for the rest, and for other inputs, outputs and
                   resources, see tpulm.training.segment
"""

from functools import partial

from tpulm.core.arrays import load_arrays
from tpulm.core.job import job
from tpulm.models.presets import refuse_damaged
from tpulm.records.causal_batches import held_out_batches, training_batch
from tpulm.records.mixture import open_segment
from tpulm.specs.training_step import TrainingStep
from tpulm.training import runtime
from tpulm.training.segment import Segment

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"finetune {run}") as say:
    segment = Segment.of(snakemake, say)
    refuse_damaged(snakemake.input.base, snakemake.input.fingerprint)
    train, validation = open_segment(snakemake.input.records, snakemake.input.mixture, recipe)
    step = TrainingStep.of("finetune", f"finetune.runs.{run}", recipe, base={"preset": snakemake.input.base})
    runtime.start_to_train(recipe, snakemake.resources, say)
    from tpulm.models import causal
    from tpulm.models.variables import assign
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import train_segment

    say(train.epochs_of(recipe))
    jax_run = build_run(step, causal)
    for start in snakemake.input.start:
        assign(jax_run.model.trainable_variables, load_arrays(start), start)
    data = partial(training_batch, train, recipe), partial(held_out_batches, validation, recipe)
    train_segment(jax_run, data, segment)
