"""The scores of a model on a task: its metrics, their intervals, and the baselines beside it."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.sparse import hstack
from sklearn import metrics
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from tpulm.core.random_streams import generator
from tpulm.evaluation import item_means
from tpulm.evaluation.overlap import count_in_training
from tpulm.specs.classification_heads import NUMBER, PRETRAINED, RANDOM
from tpulm.specs.scores import FEWEST, Score

Columns = Mapping[str, list]
WORDS = r"(?u)\b\w+\b|[^\w\s]"  # what is counted: words and marks
ITERATIONS = 1000


def majority(train: Columns, held_out: Columns, predict: str) -> list:
    """Return the most frequent label of training for each example, the lowest of several; or the mean number."""
    if predict == NUMBER:
        return [float(np.mean(train["label"]))] * len(held_out["label"])
    best = min(Counter(train["label"]).items(), key=lambda pair: (-pair[1], pair[0]))[0]
    return [best] * len(held_out["label"])


def bag_of_words(train: Columns, held_out: Columns, predict: str) -> list:
    """Return the predictions of a linear model of word counts: logistic regression, or ridge regression for numbers.

    Each of two texts has counts of its own.
    """
    model: Any = Ridge() if predict == NUMBER else LogisticRegression(max_iter=ITERATIONS)
    features = []
    for name in ("text", "text_pair"):
        if name in train:
            counter = CountVectorizer(token_pattern=WORDS)
            features.append([counter.fit_transform(train[name]), counter.transform(held_out[name])])
    with threadpool_limits(1):  # the order of sums, and with it the bytes
        model.fit(hstack([ours for ours, _ in features]).tocsr(), train["label"])
        return model.predict(hstack([theirs for _, theirs in features]).tocsr()).tolist()


BASELINES: Mapping[str, Callable[[Columns, Columns, str], list]] = {"majority": majority, "bag_of_words": bag_of_words}


def names_of(names: Sequence[str], predict: str) -> dict[str, str]:
    """Return the names of baselines in the report, by their names in the config."""
    regression = "ridge regression" if predict == NUMBER else "logistic regression"
    said = {
        "majority": "mean" if predict == NUMBER else "most frequent label",
        "bag_of_words": f"bag of words ({regression})",
        "random_weights": "same model from random weights",
    }
    return {name: said[name] for name in names}


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of predictions that are right."""
    return float((labels == predictions).mean())


def f1(labels: np.ndarray, predictions: np.ndarray, count: int) -> float:
    """Return the F1 score: of label 1 where the task has two labels, otherwise the mean over its labels (macro).

    count  labels of the task. Of more than two, one that neither occurs nor is predicted is left out of the mean
    """
    if count == 2:
        return float(metrics.f1_score(labels, predictions, pos_label=1.0, zero_division=0.0))
    known = np.arange(count, dtype=np.float64)
    return float(metrics.f1_score(labels, predictions, labels=known, average="macro", zero_division=np.nan))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Matthews correlation coefficient."""
    return float(metrics.matthews_corrcoef(labels, predictions))


def correlation(function: Callable) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return a correlation of scipy as a metric: 0 where it is not defined, of one item or where a side is constant."""

    def measured(labels: np.ndarray, predictions: np.ndarray) -> float:
        if len(labels) < 2:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of constants
            found = float(function(labels, predictions).statistic)
        return found if np.isfinite(found) else 0.0

    return measured


Metric = Callable[[np.ndarray, np.ndarray], float]  # of labels and predictions


def metrics_of(labels: int) -> Mapping[str, Metric]:
    """Return the metrics of a task with so many labels, 0 where it predicts a number, by their names in the config."""
    return {
        "accuracy": accuracy,
        "f1": partial(f1, count=labels),
        "matthews": matthews,
        "pearson": correlation(stats.pearsonr),
        "spearman": correlation(stats.spearmanr),
    }


def interval(metric: Metric, labels: np.ndarray, predictions: Sequence[np.ndarray]) -> item_means.Limits:
    """Return the 95 % interval of the mean of a metric over seeds: percentiles of a bootstrap over examples.

    labels  float64 [examples]; predictions  of each seed, the same shape

    None where the examples are fewer than FEWEST. Efron and Tibshirani 1993, chapter 13. It says nothing of the spread
    over seeds, which stands beside it.
    """
    count = len(labels)
    if count < FEWEST:
        return None, None
    random, found = generator("task scores", count), []
    for _ in range(item_means.RESAMPLES):
        rows = random.integers(0, count, count)
        found.append(np.mean([metric(labels[rows], one[rows]) for one in predictions]))
    low, high = np.percentile(found, item_means.LIMITS)
    return float(low), float(high)


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
    for (weights, rate, seed), predicted in predictions.groupby(["weights", "rate", "seed"], sort=False):
        row = {"weights": weights, "rate": rate, "seed": seed}
        for split, found in predicted.groupby("split", sort=False):
            values = found["label"].to_numpy(), found["prediction"].to_numpy()
            row |= {f"{split}_{metric}": known[metric](*values) for metric in metrics}
        rows.append(row)
    chains = pd.DataFrame(rows)
    means = chains.groupby(["weights", "rate"], sort=False)[f"validation_{metrics[0]}"].mean()
    best = {weights: own.idxmax()[1] for weights, own in means.groupby(level=0, sort=False)}
    return chains.assign(selected=chains["rate"] == chains["weights"].map(best))


def scores_of_task(
    task: str,
    recipe: Mapping,
    predictions: pd.DataFrame,
    baselines: pd.DataFrame,
    labels: int,
    in_training: Collection[str] | None = None,
) -> tuple[list[item_means.Scored], pd.DataFrame]:
    """Return the scores of a model with their values by item, and the table of its chains.

    task         its name; recipe  metrics, title, predict, selected_on_test
    predictions  see `measured`; baselines  baseline, item, label, prediction: of the test split
    labels       how many there are; 0 where a number is predicted
    in_training  test examples in the text that the model was trained on, see `items_in_training`

    A score is the mean over the seeds at the selected rate, with the value of each seed beside it. Only accuracy is a
    mean over items: of each the share of the seeds that are right.
    """
    chains = measured(predictions, recipe["metrics"], labels)
    selected = chains.loc[chains["selected"], ["weights", "rate", "seed"]]
    test = predictions[predictions["split"] == "test"].merge(selected)
    also = " (development set, which also selects)" if recipe["selected_on_test"] else ""
    on, inside = f"{recipe['title']}{also}", count_in_training(dict.fromkeys(test["item"]), in_training)
    predict, metrics = recipe["predict"], recipe["metrics"]
    scores = (score_of(metric, task, on, test, baselines, predict, labels) for metric in metrics)
    return [(replace(score, in_training_text=inside), values) for score, values in scores], chains


def score_of(
    metric: str, task: str, on: str, test: pd.DataFrame, baselines: pd.DataFrame, predict: str, labels: int
) -> item_means.Scored:
    """Return the score of a model by a metric and, of accuracy, for each item the share of the seeds that are right.

    task  its name; on  what it is measured on, in words
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
    low, high = interval(function, truth, predicted)
    beside = {name: measure(own) for name, own in baselines.groupby("baseline", sort=False)}
    random = of_seeds(RANDOM)
    if random:
        beside["random_weights"] = float(np.mean([measure(own) for own in random]))
    said = names_of(list(beside), predict)
    seeds = [measure(own) for own in pretrained]
    score = Score(
        group="task",
        metric=metric,
        set=task,
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
    if metric != "accuracy":
        return score, {}
    return score, dict(zip(items, np.mean([own == truth for own in predicted], axis=0).tolist(), strict=True))
