"""Compute scores that are means over items, with bootstrap intervals (Efron 1979), and write them to files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.files import atomic_write
from tpulm.core.random_streams import generator
from tpulm.specs.scores import FEWEST, Score, write_scores

RESAMPLES = 1000
LIMITS = (2.5, 97.5)  # percentiles
NORMAL = 1.959964  # quantile of the normal distribution for the same limits
AT_ONCE = 1 << 24  # counts that are drawn together, to bound memory
COLUMNS = pa.schema([("score", pa.string()), ("item", pa.string()), ("value", pa.float64())])
Limits = tuple[float, float] | tuple[None, None]
Scored = tuple[Score, Mapping[str, float]]  # a score and its value by item, empty where it is no mean over items


def interval(values: np.ndarray, weights: np.ndarray | None = None) -> Limits:
    """Return (low, high), the 95 % interval of a weighted mean; (None, None) for fewer than FEWEST items.

    values   float64 [items]
    weights  float64 [items], such as bytes; 1 by default

    The limits are percentiles of the means of RESAMPLES samples of items, drawn with replacement. If all values are 0,
    or all are 1, without weights, these do not differ: then the interval is that of Wilson (1927) for a share. The same
    values in the same order have the same interval.
    """
    if len(values) < FEWEST:
        return None, None
    if weights is None and values[0] in (0, 1) and np.all(values == values[0]):
        margin = NORMAL**2 / (len(values) + NORMAL**2)
        return (1 - margin, 1.0) if values[0] else (0.0, margin)
    weights = np.ones(len(values)) if weights is None else weights
    random, means = generator("intervals", len(values)), []
    rows = max(1, AT_ONCE // len(values))
    for first in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - first)
        drawn = random.multinomial(len(values), np.full(len(values), 1 / len(values)), size)
        means.append(drawn @ (values * weights) / (drawn @ weights))
    low, high = np.percentile(np.concatenate(means), LIMITS)
    return float(low), float(high)


def mean_score(
    items: Sequence[str],
    values: np.ndarray,
    baselines: Mapping[str, np.ndarray],
    weights: np.ndarray | None = None,
    **fields: Any,
) -> Scored:
    """Return the weighted mean over items as a `Score`, and by item its value times its weight over the mean weight.

    values     float64 [items]
    baselines  float64 [items] of other models, by name; the score has their weighted means
    weights    float64 [items], such as bytes; 1 by default
    fields     other fields of the score
    """
    shares = np.ones(len(items)) if weights is None else weights / weights.mean()
    low, high = interval(values, weights)
    contributions = values * shares
    means = {name: float(np.mean(baseline_values * shares)) for name, baseline_values in baselines.items()}
    score = Score(value=float(contributions.mean()), low=low, high=high, items=len(items), baselines=means, **fields)
    return score, dict(zip(items, contributions.tolist(), strict=True))


def write_scored(
    output: Mapping, model: Mapping, kind: str, scored: Iterable[Scored], say: Callable[[str], None]
) -> None:
    """Write the scores of a model as JSON, and their values by item as Parquet: score, item, value.

    output  paths: scores, by_item
    model   path; step of a checkpoint
    kind    masked or causal
    say     logs the leading scores
    """
    scored = [(replace(score, step=model.get("step")), values) for score, values in scored]
    values_by_item = ((score.name, *value) for score, values in scored for value in values.items())
    rows = [dict(zip(COLUMNS.names, row, strict=True)) for row in values_by_item]
    with atomic_write(output["by_item"]) as partial:
        pq.write_table(pa.Table.from_pylist(rows, COLUMNS), partial, compression="zstd")
    scores = [score for score, _ in scored]
    write_scores(output["scores"], model["path"], kind, scores)
    for score in scores:
        if score.leads:
            say(str(score))
