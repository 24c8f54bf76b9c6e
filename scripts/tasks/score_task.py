"""Score a model on a task: mean and spread over seeds, beside the baselines.

input.predictions     Parquet of predict_task
input.baselines       Parquet of fit_task_baselines
input.task            JSON: labels of the task
input.overlaps        JSON of find_overlap, one for each text that the model was trained on
output.scores         JSON, see tpulm.core.scores
output.by_item        Parquet: score, item, value; of the scores that are a mean over items
output.chains         CSV: a row for each chain: weights, rate, seed, metrics on both splits, selected (its rate)
params.recipe         path of the model, step of a checkpoint; metrics, title, predict; selected_on_test, whether the
                      validation split is the test split
"""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tpulm.core.files import atomic_write, read_json, write_text
from tpulm.core.job import job
from tpulm.core.scores import MASKED, write_scores
from tpulm.evaluation.overlap import items_in_training
from tpulm.evaluation.task_scores import scores_of

recipe, wildcards = snakemake.params.recipe, snakemake.wildcards
ITEMS = pa.schema({"score": pa.string(), "item": pa.string(), "value": pa.float64()})

with job(snakemake.log[0], f"{wildcards.task} {recipe['path']}") as say:
    predictions, baselines = (
        pd.read_parquet(path) for path in (snakemake.input.predictions, snakemake.input.baselines)
    )
    labels = read_json(snakemake.input.task)["labels"]
    in_training = items_in_training(snakemake.input.overlaps, wildcards.task)
    scores, by_item, chains = scores_of(recipe, predictions, baselines, len(labels), in_training)
    scores = [replace(score, step=recipe.get("step")) for score in scores]
    write_scores(snakemake.output.scores, recipe["path"], MASKED, scores)
    with atomic_write(snakemake.output.by_item) as partial:
        table = pa.Table.from_pandas(by_item, ITEMS, preserve_index=False).replace_schema_metadata()
        pq.write_table(table, partial, compression="zstd", write_statistics=False)
    write_text(snakemake.output.chains, chains.to_csv(index=False, float_format="%.9g", lineterminator="\n"))
    for score in scores:
        beside = "".join(f", {name} {value:.3f}" for name, value in score.baselines.items())
        say(f"{score.name} {score.value:.3f} (seeds {', '.join(f'{one:.3f}' for one in score.seeds)}){beside}")
