"""Train one segment of a masked model with a classification head on a task.

input.train, .validation   Parquet, see tpulm.corpus.examples
input.task                 JSON: labels of the task
input.model                files of the model's folder: config.json and tokenizer; weights, for the first segment of a
                           chain that starts from them
input.start                weights of a chain of another task that replace those of the model, if any
params.recipe              key (of the task in the config), predict, sequence_length; for the rest, the other inputs,
                           outputs and resources, see tpulm.training.segment
"""

from functools import partial
from pathlib import Path

from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.corpus.examples import read_split
from tpulm.records.labelled_batches import evaluation_batches, training_batch
from tpulm.records.order import epochs_of
from tpulm.training import runtime
from tpulm.training.segment import Segment

recipe = snakemake.params.recipe

with job(snakemake.log[0], snakemake.wildcards.chain.removeprefix("evaluation/tasks/")) as say:
    segment = Segment.of(snakemake, say)
    runtime.start_to_train(recipe, snakemake.resources, say)
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
    train_segment(run, data, segment)
