"""Train one segment of a finetuning run: a base model on finetune.text, with LoRA (Hu et al. 2021) or in full.

input.base                preset folder; input.fingerprint  the SHA-256 of each of its files
input.records             manifest.json of the records of finetune.text in the base model's vocabulary; its URL, if they
                          are in a bucket
input.start               weights of another run that the first segment starts from; none without init
input.previous            the previous checkpoint: weights, optimizer, best, state; empty for the first segment.
                          Weights are the tuned variables only: LoRA's, or all
output.*                  the checkpoint, see tpulm.training.checkpoint; history and timings, see tpulm.training.history
params.recipe             first and last step, schedule, batch_size, sequence_length, packing, method and keys of LoRA,
                          optimizer, precision, mesh, layout, microbatches, remat, steps_per_execution, seed,
                          cpu_threads, host_device_count; patience where it can matter; evaluate_every,
                          determinism, where they are given
resources.hosts           processes that train together; resources.launcher  how to start them, see tpulm.core.processes
resources.accelerator     what the run requests; the job fails on other devices
resources.snapshots       where snapshots are, see tpulm.training.snapshots; resources.snapshot_every  minutes
resources.profile         steps to trace, see tpulm.training.profiling
"""

import sys
from functools import partial

from tpulm.core import processes
from tpulm.core.arrays import load_arrays
from tpulm.core.job import job
from tpulm.models.presets import refuse_damaged
from tpulm.records.causal_batches import held_out_batches, training_batch
from tpulm.records.order import epochs_of
from tpulm.records.reader import open_to_train
from tpulm.specs.training_step import TrainingStep
from tpulm.training import checkpoint, runtime
from tpulm.training.snapshots import Snapshots

recipe, run = snakemake.params.recipe, snakemake.wildcards.run
outputs = dict(snakemake.output.items())

with job(snakemake.log[0], f"finetune {run}") as say:
    previous = checkpoint.previous(snakemake.input.previous)
    if checkpoint.stopped_early(outputs, recipe, previous, say):
        sys.exit()
    if not processes.is_worker():
        refuse_damaged(snakemake.input.base, snakemake.input.fingerprint)
    train, validation = open_to_train(snakemake.input.records, verify=not processes.is_worker())
    snapshots = Snapshots.of(snakemake.resources, recipe, snakemake.input, say)
    if processes.launch_workers(snakemake.resources, say):
        sys.exit()
    step = TrainingStep.of("finetune", f"finetune.runs.{run}", recipe, base={"preset": snakemake.input.base})
    say(epochs_of(recipe, len(train)))
    devices = recipe["cpu_threads"], recipe["host_device_count"]
    runtime.start(*devices, recipe["precision"], step.model.determinism, resources=snakemake.resources)
    from tpulm.models.causal import assign
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import train_segment
    from tpulm.training.profiling import Profile

    data = partial(training_batch, train, recipe), partial(held_out_batches, validation, recipe)
    profile = Profile.of(snakemake.resources, snakemake.log[0])
    jax_run = build_run(step)
    for start in snakemake.input.start:
        assign(jax_run.model.trainable_variables, load_arrays(start), start)
    train_segment(jax_run, recipe, data, (outputs, previous), snapshots, say, snakemake.log[0], profile)
