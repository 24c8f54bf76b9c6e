"""The scores of a model on a task, from the predictions of its chains and the baselines'."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from tpulm.config.task_chains import PRETRAINED, RANDOM
from tpulm.core.scores import IN_TRAINING, IN_TRAINING_TEXT, WHOLE, Score
from tpulm.evaluation.task_baselines import names_of
from tpulm.evaluation.task_metrics import interval, metrics_of

# What a guess scores; of accuracy it depends on the number of labels, of f1 on their shares, too.
CHANCE = {"matthews": 0.0, "pearson": 0.0, "spearman": 0.0}


def measured(predictions: pd.DataFrame, metrics: list[str], labels: int) -> pd.DataFrame:
    """Return a row for each chain, in their order: weights, rate, seed, each metric on both splits, selected.

    predictions  weights, rate, seed, split, item, label, prediction
    metrics      of which the first selects: of each kind of weights the rate with the highest mean over the seeds on
                 validation, of several the first; test metrics decide nothing
    labels       how many there are; 0 where a number is predicted

    The metrics' columns are validation_METRIC and test_METRIC.
    """
    rows, known = [], metrics_of(labels)
    for (weights, rate, seed), chain in predictions.groupby(["weights", "rate", "seed"], sort=False):
        row = {"weights": weights, "rate": rate, "seed": seed}
        for split, found in chain.groupby("split", sort=False):
            values = found["label"].to_numpy(), found["prediction"].to_numpy()
            row |= {f"{split}_{metric}": known[metric](*values) for metric in metrics}
        rows.append(row)
    chains = pd.DataFrame(rows)
    means = chains.groupby(["weights", "rate"], sort=False)[f"validation_{metrics[0]}"].mean()
    best = {weights: own.idxmax()[1] for weights, own in means.groupby(level=0, sort=False)}
    return chains.assign(selected=chains["rate"] == chains["weights"].map(best))


def scores_of(
    recipe: Mapping,
    predictions: pd.DataFrame,
    baselines: pd.DataFrame,
    labels: int,
    seen: Collection[str] = (),
) -> tuple[list[Score], pd.DataFrame, pd.DataFrame]:
    """Return the scores of a model, the table of values by item, and that of its chains.

    recipe       metrics, title, predict, selected_on_test
    predictions  see `measured`; baselines  baseline, item, label, prediction: of the test split
    labels       how many there are; 0 where a number is predicted
    seen         test examples that overlap with text that the model was trained on: they have scores of their own, too

    A score is the mean over the seeds at the selected rate, with the value of each seed beside it. Only accuracy is a
    mean over items: of each the share of the seeds that are right.
    """
    chains = measured(predictions, recipe["metrics"], labels)
    selected = chains.loc[chains["selected"], ["weights", "rate", "seed"]]
    test = predictions[predictions["split"] == "test"].merge(selected)
    known = baselines[baselines["item"].isin(set(test["item"]))]  # of a word that is cut off, nobody predicts the label
    also = " (development set, which also selects)" if recipe["selected_on_test"] else ""
    parts = [(WHOLE, f"{recipe['title']}{also}", test, known)]
    if seen:
        inside = [table[examples_of(table["item"]).isin(set(seen))] for table in (test, known)]
        parts.append((IN_TRAINING_TEXT, f"{recipe['title']}{also}{IN_TRAINING}", *inside))
    scores, values = [], []
    for part, on, own, beside in parts:
        if own.empty:  # every word of these examples is cut off
            continue
        for metric in recipe["metrics"]:
            score, right = score_of(metric, on, own, beside, recipe["predict"], labels)
            scores.append(replace(score, part=part))
            if metric == "accuracy":
                values.append(right.assign(score=score.name))
    columns = ["score", "item", "value"]
    by_item = pd.concat(values)[columns] if values else pd.DataFrame(columns=columns).astype({"value": float})
    return scores, by_item, chains


def examples_of(items: pd.Series) -> pd.Series:
    """Return the example of each item: itself, or the one that a word is in."""
    return items.str.split(":").str[0]


def score_of(
    metric: str, on: str, test: pd.DataFrame, baselines: pd.DataFrame, predict: str, labels: int
) -> tuple[Score, pd.DataFrame]:
    """Return the score of a model by a metric, and of each item the share of the seeds that are right.

    on    what it is measured on, in words
    test  predictions of the selected chains of pretrained and random weights; baselines  of the same items
    """

    def of_seeds(weights: str) -> list[pd.DataFrame]:
        return [own for _, own in test[test["weights"] == weights].groupby("seed", sort=False)]

    function = metrics_of(labels)[metric]

    def measure(own: pd.DataFrame) -> float:
        return function(own["label"].to_numpy(), own["prediction"].to_numpy())

    pretrained = of_seeds(PRETRAINED)
    items, truth = pretrained[0]["item"], pretrained[0]["label"].to_numpy()
    predicted = [own["prediction"].to_numpy() for own in pretrained]
    low, high = interval(function, truth, predicted, np.unique(examples_of(items), return_inverse=True)[1])
    beside = {name: measure(own) for name, own in baselines.groupby("baseline", sort=False)}
    random = of_seeds(RANDOM)
    if random:
        beside["random_weights"] = float(np.mean([measure(own) for own in random]))
    said = names_of(list(beside), predict)
    seeds = [measure(own) for own in pretrained]
    score = Score(
        group="task",
        metric=metric,
        on=on,
        value=float(np.mean(seeds)),
        low=low,
        high=high,
        higher_is_better=True,
        items=len(items),
        chance=1 / labels if metric == "accuracy" else CHANCE.get(metric),
        baselines={said[name]: value for name, value in beside.items()},
        seeds=seeds,
        split="test",
    )
    right = np.mean([own == truth for own in predicted], axis=0)
    return score, pd.DataFrame({"item": items.to_numpy(), "value": right})
