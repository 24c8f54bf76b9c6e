"""Predict the labels of a task's held-out examples with every chain of a model.

input.validation, .test   Parquet, see tpulm.corpus.examples
input.task                JSON: labels of the task
input.model               config.json and tokenizer of the model's folder
input.best                best weights of each chain
output                    Parquet: weights, rate and seed of the chain; split; item; label and prediction, float64:
                          indices of labels, or numbers
params.recipe             key (of the task in the config), predict, batch_size, sequence_length, optimizer, precision,
                          mesh, cpu_threads, host_device_count; chains (weights, rate, seed of each)
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tpulm.core.arrays import load_arrays
from tpulm.core.files import atomic_write, read_json
from tpulm.core.job import job
from tpulm.corpus.examples import read_split
from tpulm.records.labelled_batches import evaluation_batches
from tpulm.training import runtime

recipe, wildcards = snakemake.params.recipe, snakemake.wildcards

with job(snakemake.log[0], f"{wildcards.task} {wildcards.model}") as say:
    examples = {split: read_split(snakemake.input[split]) for split in ("validation", "test")}
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"])
    from tpulm.models import masked_models
    from tpulm.models.sharding import on_one_host
    from tpulm.models.task_models import build_task_model
    from tpulm.models.variables import assign, values_of
    from tpulm.training.jax_run import distribute_step
    from tpulm.training.task_run import check_predictions, encoder, make_predictor, task_step

    folder = Path(snakemake.input.model[0]).parent
    encode = encoder(folder, recipe)
    arrays = {split: encode(columns) for split, columns in examples.items()}
    described = read_json(snakemake.input.task)
    step = task_step(on_one_host(recipe, snakemake.resources) | {"seed": 0}, folder, described)
    distribution = distribute_step(step, masked_models)
    model = build_task_model(step, distribution, folder, weights=False)
    predict, tables = make_predictor(model, distribution), []
    for chain, best in zip(recipe["chains"], snakemake.input.best, strict=True):
        assign(model.trainable_variables, load_arrays(best), best)
        trainable, _ = values_of(model)
        for split, encoded in arrays.items():
            padded = np.concatenate([predict(trainable, batch) for batch in evaluation_batches(encoded)])
            items = examples[split]["item"]
            predicted = padded[: len(items)].astype(np.float64)
            check_predictions(predicted, recipe["key"], best, split)
            columns = {name: [value] * len(items) for name, value in (chain | {"split": split}).items()}
            columns |= {"item": items, "label": encoded["labels"].astype(np.float64)}
            columns["prediction"] = predicted
            tables.append(pa.table(columns))
    with atomic_write(snakemake.output[0]) as partial:
        pq.write_table(pa.concat_tables(tables).combine_chunks(), partial, compression="zstd", write_statistics=False)
    say(f"{len(tables) // 2} chains predicted {len(examples['test']['item']):,} test examples")
