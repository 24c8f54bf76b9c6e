"""Train one segment of a model with a head for the labels of a task.

input.train, .validation   Parquet, see tpulm.corpus.task_files
input.task                 JSON: labels of the task
input.model                a model folder of transformers: config.json and the tokenizer; its weights, for the first
                           segment of a chain that starts from them
input.previous             the previous checkpoint: weights, optimizer, best, state; empty for the first segment
output.*                   the checkpoint, see tpulm.training.checkpoint; history and timings, see
                           tpulm.training.history
params.recipe              key (of the task in the config), predict, first and last step, schedule, batch_size,
                           sequence_length, optimizer, precision, mesh, seed, cpu_threads, host_device_count
resources.hosts            processes that train together; resources.launcher  how to start them, see tpulm.core.hosts
resources.snapshots        where snapshots are, see tpulm.training.snapshots; resources.snapshot_every  minutes
"""

import sys
from functools import partial
from pathlib import Path

from tpulm.core import hosts
from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.corpus.task_files import read_split
from tpulm.records.labelled_batches import encode, evaluation_batches, training_batch
from tpulm.records.order import epochs_of
from tpulm.tokenization.folder import load, special_ids
from tpulm.training import checkpoint, runtime
from tpulm.training.snapshots import Snapshots

recipe, outputs = snakemake.params.recipe, dict(snakemake.output.items())

with job(snakemake.log[0], snakemake.wildcards.chain.removeprefix("evaluation/tasks/")) as say:
    previous = checkpoint.previous(snakemake.input.previous)
    snapshots = Snapshots.of(snakemake.resources, recipe, snakemake.input, say)
    if hosts.several(snakemake.resources, say):
        sys.exit()
    folder = Path(snakemake.input.model[0]).parent
    tokenizer = load(folder / "tokenizer.json")
    pad = special_ids(tokenizer, folder / "special_tokens_map.json")["pad"]
    sizes = recipe["predict"], recipe["sequence_length"], pad
    train, validation = (
        encode(tokenizer, read_split(snakemake.input[split]), *sizes) for split in ("train", "validation")
    )
    say(epochs_of(recipe, len(train["labels"])))
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"])
    from tpulm.training.jax_trainer import train_segment
    from tpulm.training.task_run import build_task_run, task_step

    weights = any(path.endswith(".safetensors") for path in snakemake.input.model)
    run = build_task_run(task_step(recipe, folder), folder, read_json(snakemake.input.task), weights)
    data = partial(training_batch, train, recipe), partial(evaluation_batches, validation)
    train_segment(run, recipe, data, (outputs, previous), snapshots, say, snakemake.log[0])
