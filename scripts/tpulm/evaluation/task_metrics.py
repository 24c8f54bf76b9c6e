"""The metrics of tasks, from labels and predictions, and their intervals."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats
from sklearn import metrics

from tpulm.core.random_streams import generator
from tpulm.evaluation import intervals

BOOTSTRAP = 4  # key of the bootstrap's random stream


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of predictions that are right."""
    return float((labels == predictions).mean())


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 score: of label 1 where there are two labels, otherwise the mean over the labels (macro)."""
    if max(labels.max(), predictions.max()) <= 1:
        return float(metrics.f1_score(labels, predictions, pos_label=1.0, zero_division=0.0))
    return float(metrics.f1_score(labels, predictions, average="macro", zero_division=0.0))


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


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": correlation(stats.pearsonr),
    "spearman": correlation(stats.spearmanr),
}


def interval(
    metric: str, labels: np.ndarray, predictions: Sequence[np.ndarray], groups: np.ndarray
) -> tuple[float, float]:
    """Return the 95 % interval of the mean of a metric over seeds: percentiles of a bootstrap over examples.

    labels       float64 [items]; predictions  of each seed, the same shape
    groups       int64 [items]: items of one example, such as its words, are drawn together

    Efron and Tibshirani 1993, chapter 13. It says nothing of the spread over seeds, which stands beside it.
    """
    count = int(groups.max()) + 1
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(count + 1))
    random, found = generator(BOOTSTRAP, count), []
    alone = len(labels) == count
    for _ in range(intervals.RESAMPLES):
        drawn = random.integers(0, count, count)
        rows = order[drawn] if alone else np.concatenate([order[starts[one] : starts[one + 1]] for one in drawn])
        found.append(np.mean([METRICS[metric](labels[rows], one[rows]) for one in predictions]))
    low, high = np.percentile(found, intervals.LIMITS)
    return float(low), float(high)
