"""Intervals by the bootstrap (Efron 1979): how far a score would move with other items of the same kind."""

import numpy as np

from tpulm.core.random_streams import generator
from tpulm.core.scores import FEWEST

RESAMPLES = 1000
LIMITS = (2.5, 97.5)  # percentiles
NORMAL = 1.959964  # of the normal distribution, for the same limits
Limits = tuple[float, float] | tuple[None, None]
AT_ONCE = 1 << 24  # numbers of items that are drawn together


def interval(values: np.ndarray, weights: np.ndarray | None = None) -> Limits:
    """Return the limits of the 95 % percentile interval of a weighted mean, items drawn with replacement.

    values   float64 [items]; weights  of that shape, such as bytes; 1 by default

    None where they are fewer than FEWEST. Where all items are right, or all wrong, so is every resample, and the limits
    are those of Wilson's interval for a share (1927). The same items in the same order give the same interval.
    """
    if len(values) < FEWEST:
        return None, None
    if weights is None and values[0] in (0, 1) and np.all(values == values[0]):
        away = NORMAL**2 / (len(values) + NORMAL**2)
        return (1 - away, 1.0) if values[0] else (0.0, away)
    weights = np.ones(len(values)) if weights is None else weights
    random, means = generator("intervals", len(values)), []
    rows = max(1, AT_ONCE // len(values))
    for first in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - first)
        drawn = random.multinomial(len(values), np.full(len(values), 1 / len(values)), size)
        means.append(drawn @ (values * weights) / (drawn @ weights))
    low, high = np.percentile(np.concatenate(means), LIMITS)
    return float(low), float(high)
