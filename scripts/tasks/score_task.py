"""Score a model on a task: mean and spread over seeds, and baselines.

input.predictions     Parquet of predict_task
input.baselines       Parquet of fit_task_baselines
input.task            JSON: labels of the task
input.overlaps        JSON of find_overlap, one for each training text
output.scores         JSON, see tpulm.specs.scores
output.by_item        Parquet: score, item, value; for scores that are means over items
output.chains         CSV: a row for each chain: weights, rate, seed, metrics on both splits, selected (its rate)
params.recipe         path of the model, step of a checkpoint; metrics, title, predict; selected_on_test (whether the
                      validation split is the test split)
"""

import pandas as pd
from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.evaluation.item_means import write_scored
from tpulm.evaluation.overlap import items_in_training
from tpulm.evaluation.task_scores import scores_of_task
from tpulm.specs.scores import MASKED

recipe, wildcards = snakemake.params.recipe, snakemake.wildcards

with job(snakemake.log[0], f"{wildcards.task} {recipe['path']}") as say:
    predictions, baselines = (
        pd.read_parquet(path) for path in (snakemake.input.predictions, snakemake.input.baselines)
    )
    labels = read_json(snakemake.input.task)["labels"]
    in_training = items_in_training(snakemake.input.overlaps, wildcards.task)
    scored, chains = scores_of_task(wildcards.task, recipe, predictions, baselines, len(labels), in_training)
    write_scored(snakemake.output, recipe, MASKED, scored, say)
    write_text(snakemake.output.chains, chains.to_csv(index=False, float_format="%.9g", lineterminator="\n"))
