"""Intervals by the bootstrap (Efron 1979): how far a score would move with other items of the same kind."""

import numpy as np

from tpulm.core.random_streams import generator

RESAMPLES = 1000
LIMITS = (2.5, 97.5)  # percentiles
AT_ONCE = 1 << 24  # numbers of items that are drawn together
SEED = 13


def interval(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """Return the limits of the 95 % percentile interval of a weighted mean, items drawn with replacement.

    values   float64 [items]; weights  of that shape, such as bytes; 1 by default

    The same items in the same order give the same interval.
    """
    weights = np.ones(len(values)) if weights is None else weights
    random, means = generator(SEED, len(values)), []
    rows = max(1, AT_ONCE // len(values))
    for first in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - first)
        drawn = random.multinomial(len(values), np.full(len(values), 1 / len(values)), size)
        means.append(drawn @ (values * weights) / (drawn @ weights))
    low, high = np.percentile(np.concatenate(means), LIMITS)
    return float(low), float(high)
