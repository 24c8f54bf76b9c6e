"""Train one segment of a masked model with a head for the labels of a task.

input.train, .validation   Parquet, see tpulm.corpus.examples
input.task                 JSON: labels of the task
input.model                files of the model's folder: config.json and the tokenizer; its weights, for the first
                           segment of a chain that starts from them
input.start                weights of a chain of another task, which take the place of the model's; or nothing
input.previous             the previous checkpoint: weights, optimizer, best, state; empty for the first segment
output.*                   the checkpoint, see tpulm.training.checkpoint; history and timings, see
                           tpulm.training.history
params.recipe              key (of the task in the config), predict, first and last step, schedule, batch_size,
                           sequence_length, optimizer, precision, mesh, seed, cpu_threads, host_device_count
resources.hosts            processes that train together; resources.launcher  how to start, see tpulm.core.processes
resources.accelerator      what the run requests; the job fails on other devices
resources.snapshots        where snapshots are, see tpulm.training.snapshots; resources.snapshot_every  minutes
"""

import sys
from functools import partial
from pathlib import Path

from tpulm.core import processes
from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.corpus.examples import read_split
from tpulm.records.labelled_batches import evaluation_batches, training_batch
from tpulm.records.order import epochs_of
from tpulm.training import checkpoint, runtime
from tpulm.training.snapshots import Snapshots

recipe, outputs = snakemake.params.recipe, dict(snakemake.output.items())

with job(snakemake.log[0], snakemake.wildcards.chain.removeprefix("evaluation/tasks/")) as say:
    previous = checkpoint.previous(snakemake.input.previous)
    snapshots = Snapshots.of(snakemake.resources, recipe, snakemake.input, say)
    if processes.launch_workers(snakemake.resources, say):
        sys.exit()
    devices = recipe["cpu_threads"], recipe["host_device_count"]
    runtime.start(*devices, recipe["precision"], resources=snakemake.resources)
    from tpulm.training.jax_trainer import train_segment
    from tpulm.training.task_run import build_task_run, encoder, start_from, task_step

    folder = Path(snakemake.input.model[0]).parent
    encode = encoder(folder, recipe)
    train, validation = (encode(read_split(snakemake.input[split])) for split in ("train", "validation"))
    say(epochs_of(recipe, len(train["labels"])))
    weights = any(path.endswith(".safetensors") for path in snakemake.input.model)
    run = build_task_run(task_step(recipe, folder, read_json(snakemake.input.task)), folder, weights)
    if start := snakemake.input.get("start"):
        start_from(run.model, start[0])
    data = partial(training_batch, train, recipe), partial(evaluation_batches, validation)
    train_segment(run, recipe, data, (outputs, previous), snapshots, say, snakemake.log[0])
