"""Compute the scores of a model on a task: metrics, their intervals, and baselines."""

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
WORDS = r"(?u)\b\w+\b|[^\w\s]"  # words and punctuation marks
ITERATIONS = 1000


def majority(train: Columns, held_out: Columns, predict: str) -> list:
    """Return for each example the most frequent training label, the lowest of several; or the mean number."""
    if predict == NUMBER:
        return [float(np.mean(train["label"]))] * len(held_out["label"])
    most_frequent = min(Counter(train["label"]).items(), key=lambda pair: (-pair[1], pair[0]))[0]
    return [most_frequent] * len(held_out["label"])


def bag_of_words(train: Columns, held_out: Columns, predict: str) -> list:
    """Return the predictions of logistic regression on word counts, or of ridge regression for numbers.

    The two texts of an example have separate counts.
    """
    model: Any = Ridge() if predict == NUMBER else LogisticRegression(max_iter=ITERATIONS)
    features = []
    for name in ("text", "text_pair"):
        if name in train:
            counter = CountVectorizer(token_pattern=WORDS)
            features.append([counter.fit_transform(train[name]), counter.transform(held_out[name])])
    with threadpool_limits(1):  # a fixed order of sums, for the same bytes
        model.fit(hstack([train_features for train_features, _ in features]).tocsr(), train["label"])
        return model.predict(hstack([held_out_features for _, held_out_features in features]).tocsr()).tolist()


BASELINES: Mapping[str, Callable[[Columns, Columns, str], list]] = {"majority": majority, "bag_of_words": bag_of_words}


def names_of(names: Sequence[str], predict: str) -> dict[str, str]:
    """Return the report's names of baselines by their names in the config."""
    regression = "ridge regression" if predict == NUMBER else "logistic regression"
    report_names = {
        "majority": "mean" if predict == NUMBER else "most frequent label",
        "bag_of_words": f"bag of words ({regression})",
        "random_weights": "same model from random weights",
    }
    return {name: report_names[name] for name in names}


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of predictions that are right."""
    return float((labels == predictions).mean())


def f1(labels: np.ndarray, predictions: np.ndarray, count: int) -> float:
    """Return the F1 score of label 1 for two labels, otherwise the mean over the labels that occur (macro)."""
    if count == 2:
        return float(metrics.f1_score(labels, predictions, pos_label=1.0, zero_division=0.0))
    known = np.arange(count, dtype=np.float64)
    return float(metrics.f1_score(labels, predictions, labels=known, average="macro", zero_division=np.nan))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Matthews correlation coefficient."""
    return float(metrics.matthews_corrcoef(labels, predictions))


def correlation(function: Callable) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return a correlation of scipy as a metric, which is 0 if undefined: for one item, or constant values."""

    def measured(labels: np.ndarray, predictions: np.ndarray) -> float:
        if len(labels) < 2:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy warns about constant values
            coefficient = float(function(labels, predictions).statistic)
        return coefficient if np.isfinite(coefficient) else 0.0

    return measured


Metric = Callable[[np.ndarray, np.ndarray], float]  # its arguments are labels and predictions


def metrics_of(labels: int) -> Mapping[str, Metric]:
    """Return metric functions by their names in the config; labels  number of labels, 0 for a predicted number."""
    return {
        "accuracy": accuracy,
        "f1": partial(f1, count=labels),
        "matthews": matthews,
        "pearson": correlation(stats.pearsonr),
        "spearman": correlation(stats.spearmanr),
    }


def interval(metric: Metric, labels: np.ndarray, predictions: Sequence[np.ndarray]) -> item_means.Limits:
    """Return the 95 % bootstrap interval of the mean of a metric over seeds; None below FEWEST examples.

    Percentiles over resampled examples (Efron and Tibshirani 1993, chapter 13), without the variance between seeds.

    labels       float64 [examples]
    predictions  float64 [examples] of each seed
    """
    count = len(labels)
    if count < FEWEST:
        return None, None
    random, means = generator("task scores", count), []
    for _ in range(item_means.RESAMPLES):
        rows = random.integers(0, count, count)
        means.append(np.mean([metric(labels[rows], seed_predictions[rows]) for seed_predictions in predictions]))
    low, high = np.percentile(means, item_means.LIMITS)
    return float(low), float(high)


# Scores of a guess. That of accuracy depends on the number of labels, that of f1 also on their shares.
CHANCE = {"matthews": 0.0, "pearson": 0.0, "spearman": 0.0}


def measured(predictions: pd.DataFrame, metrics: list[str], labels: int) -> pd.DataFrame:
    """Return a row for each chain: weights, rate, seed, validation_METRIC and test_METRIC of each metric, selected.

    The selected rate of each kind of weights has the highest mean over seeds of the first metric on validation.

    predictions  columns weights, rate, seed, split, item, label, prediction
    labels       number of labels; 0 for a predicted number
    """
    rows, metric_functions = [], metrics_of(labels)
    for (weights, rate, seed), chain_rows in predictions.groupby(["weights", "rate", "seed"], sort=False):
        row = {"weights": weights, "rate": rate, "seed": seed}
        for split, split_rows in chain_rows.groupby("split", sort=False):
            values = split_rows["label"].to_numpy(), split_rows["prediction"].to_numpy()
            row |= {f"{split}_{metric}": metric_functions[metric](*values) for metric in metrics}
        rows.append(row)
    chains = pd.DataFrame(rows)
    means = chains.groupby(["weights", "rate"], sort=False)[f"validation_{metrics[0]}"].mean()
    best = {weights: means_by_rate.idxmax()[1] for weights, means_by_rate in means.groupby(level=0, sort=False)}
    return chains.assign(selected=chains["rate"] == chains["weights"].map(best))


def scores_of_task(
    task: str,
    recipe: Mapping,
    predictions: pd.DataFrame,
    baselines: pd.DataFrame,
    labels: int,
    in_training: Collection[str] | None = None,
) -> tuple[list[item_means.Scored], pd.DataFrame]:
    """Return the scores of a model with their values by item, and the table of `measured`.

    A score is the mean over the seeds at the selected rate. Only accuracy has values by item: the share of seeds that
    are right.

    recipe       metrics, title, predict, selected_on_test
    predictions  see `measured`
    baselines    columns baseline, item, label, prediction, of the test split
    labels       number of labels; 0 for a predicted number
    in_training  test examples in the training text, see `items_in_training`
    """
    chains = measured(predictions, recipe["metrics"], labels)
    selected = chains.loc[chains["selected"], ["weights", "rate", "seed"]]
    test = predictions[predictions["split"] == "test"].merge(selected)
    note = " (development set, which also selects)" if recipe["selected_on_test"] else ""
    on, in_training_count = f"{recipe['title']}{note}", count_in_training(dict.fromkeys(test["item"]), in_training)
    predict, metrics = recipe["predict"], recipe["metrics"]
    scores = (score_of(metric, task, on, test, baselines, predict, labels) for metric in metrics)
    return [(replace(score, in_training_text=in_training_count), values) for score, values in scores], chains


def score_of(
    metric: str, task: str, on: str, test: pd.DataFrame, baselines: pd.DataFrame, predict: str, labels: int
) -> item_means.Scored:
    """Return the score of a metric and, for accuracy, the share of seeds that are right by item.

    on    set of items, in words
    test  predictions of the selected chains of pretrained and random weights
    """

    def of_seeds(weights: str) -> list[pd.DataFrame]:
        return [rows for _, rows in test[test["weights"] == weights].groupby("seed", sort=False)]

    function = metrics_of(labels)[metric]

    def measure(rows: pd.DataFrame) -> float:
        return function(rows["label"].to_numpy(), rows["prediction"].to_numpy())

    pretrained = of_seeds(PRETRAINED)
    items, truth = pretrained[0]["item"], pretrained[0]["label"].to_numpy()
    predictions = [rows["prediction"].to_numpy() for rows in pretrained]
    low, high = interval(function, truth, predictions)
    baseline_values = {name: measure(rows) for name, rows in baselines.groupby("baseline", sort=False)}
    random = of_seeds(RANDOM)
    if random:
        baseline_values["random_weights"] = float(np.mean([measure(rows) for rows in random]))
    report_names = names_of(list(baseline_values), predict)
    seeds = [measure(rows) for rows in pretrained]
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
        baselines={report_names[name]: value for name, value in baseline_values.items()},
        seeds=seeds,
        split="test",
    )
    if metric != "accuracy":
        return score, {}
    return score, dict(zip(items, np.mean([of_seed == truth for of_seed in predictions], axis=0).tolist(), strict=True))
