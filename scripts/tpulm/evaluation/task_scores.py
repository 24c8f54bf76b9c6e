"""The scores of a model on a task, from the predictions of its chains and the baselines'."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tpulm.config.tasks import PRETRAINED, RANDOM
from tpulm.core.scores import Score
from tpulm.evaluation.task_baselines import names_of
from tpulm.evaluation.task_metrics import METRICS, interval

# What a guess scores; of accuracy it depends on the number of labels, of f1 on their shares, too.
CHANCE = {"matthews": 0.0, "pearson": 0.0, "spearman": 0.0}


def measured(predictions: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    """Return a row for each chain, in their order: weights, rate, seed, each metric on both splits, selected.

    predictions  weights, rate, seed, split, item, label, prediction
    metrics      of which the first selects: of each kind of weights the rate with the highest mean over the seeds on
                 validation, of several the first; test metrics decide nothing

    The metrics' columns are validation_METRIC and test_METRIC.
    """
    rows = []
    for (weights, rate, seed), chain in predictions.groupby(["weights", "rate", "seed"], sort=False):
        row = {"weights": weights, "rate": rate, "seed": seed}
        for split, found in chain.groupby("split", sort=False):
            values = found["label"].to_numpy(), found["prediction"].to_numpy()
            row |= {f"{split}_{metric}": METRICS[metric](*values) for metric in metrics}
        rows.append(row)
    chains = pd.DataFrame(rows)
    means = chains.groupby(["weights", "rate"], sort=False)[f"validation_{metrics[0]}"].mean()
    best = {weights: own.idxmax()[1] for weights, own in means.groupby(level=0, sort=False)}
    return chains.assign(selected=chains["rate"] == chains["weights"].map(best))


def scores_of(
    recipe: Mapping, predictions: pd.DataFrame, baselines: pd.DataFrame, labels: int
) -> tuple[list[Score], pd.DataFrame, pd.DataFrame]:
    """Return the scores of a model, the table of values by item, and that of its chains.

    recipe       metrics, title, predict, selected_on_test
    predictions  see `measured`; baselines  baseline, item, label, prediction: of the test split
    labels       how many there are; 0 where a number is predicted

    A score is the mean over the seeds at the selected rate, with the value of each seed beside it. Only accuracy is a
    mean over items: of each the share of the seeds that are right.
    """
    chains = measured(predictions, recipe["metrics"])
    selected = chains[chains["selected"]]
    rate = selected.loc[selected["weights"] == PRETRAINED, "rate"].iloc[0]
    test = predictions[(predictions["split"] == "test") & (predictions["weights"] == PRETRAINED)]
    test = test[test["rate"] == rate]
    of_seeds = [own["prediction"].to_numpy() for _, own in test.groupby("seed", sort=False)]
    first = test[test["seed"] == test["seed"].iloc[0]]
    items, truth = first["item"].to_numpy(), first["label"].to_numpy()
    examples = np.unique([item.partition(":")[0] for item in items], return_inverse=True)[1]
    known = baselines[baselines["item"].isin(set(items))]  # of a word that is cut off, nobody predicts the label
    scores, values = [], []
    for metric in recipe["metrics"]:
        seeds = selected.loc[selected["weights"] == PRETRAINED, f"test_{metric}"].tolist()
        low, high = interval(metric, truth, of_seeds, examples)
        also = " (development set, which also selects)" if recipe["selected_on_test"] else ""
        beside = {
            name: METRICS[metric](own["label"].to_numpy(), own["prediction"].to_numpy())
            for name, own in known.groupby("baseline", sort=False)
        }
        random = selected.loc[selected["weights"] == RANDOM, f"test_{metric}"]
        if len(random):
            beside["random_weights"] = float(random.mean())
        said = names_of(list(beside), recipe["predict"])
        score = Score(
            group="task",
            metric=metric,
            on=f"{recipe['title']}{also}",
            value=float(np.mean(seeds)),
            low=low,
            high=high,
            higher_is_better=True,
            items=len(items),
            chance=1 / labels if metric == "accuracy" else CHANCE.get(metric),
            baselines={said[name]: value for name, value in beside.items()},
            seeds=seeds,
        )
        scores.append(score)
        if metric == "accuracy":
            right = np.mean([own == truth for own in of_seeds], axis=0)
            values.append(pd.DataFrame({"score": score.name, "item": items, "value": right}))
    columns = ["score", "item", "value"]
    by_item = pd.concat(values) if values else pd.DataFrame(columns=columns).astype({"value": float})
    return scores, by_item, chains
