"""Test whether differences between two models are significant, over their common items and over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy import stats

from tpulm.core.random_streams import generator
from tpulm.evaluation.item_means import interval
from tpulm.specs.scores import FEWEST, Score, verdict

ITEM_COLUMNS = ("score", "item", "value")
Values = dict[str, float]


def read_values(path: str | Path) -> dict[str, Values]:
    """Return the value of each item by the name of the score, from a file of `item_means.write_scored`."""
    values_by_score: dict[str, Values] = {}
    table = pq.read_table(path, columns=list(ITEM_COLUMNS))
    for score, item, value in zip(*(table[name].to_pylist() for name in ITEM_COLUMNS), strict=True):
        values_by_score.setdefault(score, {})[item] = value
    return values_by_score


LEVEL = 0.05
DRAWS = 9999
AT_ONCE = 1 << 22  # numbers in memory, the limit of a batch of permutations
CANNOT_TELL = "cannot tell"
COLUMNS = (
    *("first", "second", "score", "higher_is_better", "value_first", "value_second", "difference", "low", "high"),
    *("items", "seeds_first", "seeds_second", "p_items", "p_seeds", "p", "verdict", "because"),
)


@dataclass(frozen=True)
class Trained:
    """A model with the scores of its runs, which differ only in their seed.

    scores  of each run, by Score.name
    items   of each run: value of each item, by Score.name
    """

    name: str
    scores: Sequence[Mapping[str, Score]]
    items: Sequence[Mapping[str, Values]]

    @property
    def common(self) -> list[str]:
        """Names of the scores that all runs have, in the order of the first run."""
        return [name for name in self.scores[0] if all(name in scores for scores in self.scores)]

    def values(self, score: str, names: Sequence[str]) -> list[float]:
        """Return the mean of each run over these items; without items, each run's value of the score."""
        if not names:
            return [scores[score].value for scores in self.scores]
        return [float(np.mean([items[score][name] for name in names])) for items in self.items]

    def shared(self, score: str) -> set[str]:
        """Return the items of a score that all runs have; empty for a score without items."""
        return set.intersection(*(set(items.get(score, {})) for items in self.items))

    def of_items(self, score: str, names: Sequence[str]) -> np.ndarray:
        """Return the means over the runs of the values of these items, float64 [items]."""
        return np.mean([[items[score][name] for name in names] for items in self.items], 0)


def permuted(differences: np.ndarray) -> float:
    """Return the two-sided p-value of a mean of 0 by a paired permutation test (Fisher 1935)."""
    if not differences.any():
        return 1.0
    result = stats.permutation_test(
        (differences, np.zeros_like(differences)),
        lambda first, second, axis: (first - second).mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=DRAWS,
        batch=max(1, AT_ONCE // (2 * len(differences))),
        rng=generator("significance", len(differences)),
    )
    return float(result.pvalue)


def over_seeds(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Welch's t-test; None if a model has only one seed, or without variance."""
    if min(len(first), len(second)) < 2 or np.var(first) + np.var(second) == 0:
        return None
    return float(stats.ttest_ind(first, second, equal_var=False).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values with the correction of Holm (1979) for several tests; None stays None."""
    order = sorted((index for index, value in enumerate(values) if value is not None), key=lambda i: values[i] or 0.0)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * (values[index] or 0.0)))
        adjusted[index] = highest
    return adjusted


def compare_scores(first: Trained, second: Trained) -> list[dict]:
    """Return a row with COLUMNS for each score that both models have.

    value_first, value_second, difference (second minus first), low, high (95 % interval of the difference)
             on the common items; for a score without items, such as a perplexity, the models' values without interval
    seeds_first, seeds_second
             number of runs; for models with one run, number of finetuning seeds of a task
    p_items  p-value of the permutation test over items
    p_seeds  p-value of Welch's test over seeds
    p        the larger of the two, corrected for all scores of the pair (`holm`)
    verdict  on the second model: better, worse or cannot tell
    because  limits of the verdict
    """
    names = [name for name in first.common if name in second.common]
    rows = [comparison_row(first, second, name) for name in names]
    larger = [max((p for p in (row["p_items"], row["p_seeds"]) if p is not None), default=None) for row in rows]
    again = min(len(first.scores), len(second.scores)) > 1
    for row, p in zip(rows, holm(larger), strict=True):
        row["p"] = p
        row["verdict"], row["because"] = judged(row, again)
    return rows


def comparison_row(first: Trained, second: Trained, score: str) -> dict:
    """Return the row of one score without p, verdict and because."""
    names = sorted(first.shared(score) & second.shared(score))
    has_items = bool(first.shared(score) or second.shared(score))
    first_values, second_values = first.values(score, names), second.values(score, names)
    seeds = first_values, second_values
    scored_on_same_items = len(names) == first.scores[0][score].items == second.scores[0][score].items
    if len(first.scores) == len(second.scores) == 1 and (scored_on_same_items or not has_items):
        seeds = first.scores[0][score].seeds or first_values, second.scores[0][score].seeds or second_values
    row = {
        "first": first.name,
        "second": second.name,
        "score": score,
        "higher_is_better": first.scores[0][score].higher_is_better,
        "value_first": float(np.mean(first_values)),
        "value_second": float(np.mean(second_values)),
        "difference": float(np.mean(second_values) - np.mean(first_values)),
        "low": None,
        "high": None,
        "items": len(names),
        "p_items": None,
        "p_seeds": over_seeds(*seeds) if names or not has_items else None,
        "seeds_first": len(seeds[0]),
        "seeds_second": len(seeds[1]),
    }
    if len(names) > 1:
        differences = second.of_items(score, names) - first.of_items(score, names)
        low, high = interval(differences)
        row |= {"low": low, "high": high, "p_items": permuted(differences)}
    return row


def judged(row: Mapping, again: bool) -> tuple[str, str]:
    """Return the verdict on the second model (better, worse or cannot tell), and the reason for its limits."""
    if row["p"] is None:
        return CANNOT_TELL, "neither items that both were scored on nor seeds that differ"
    if row["p"] >= LEVEL:
        return CANNOT_TELL, f"p = {row['p']:.2g}"
    if row["p_seeds"] is None and row["items"] < FEWEST:
        return CANNOT_TELL, f"{row['items']} items, where {FEWEST} are needed"
    limits = []
    if row["p_items"] is None:
        limits.append("over seeds, on these items")
    if not again and row["p_seeds"] is None:
        limits.append("of these weights; with one seed, it says nothing of training again")
    elif not again:
        limits.append("of these weights, finetuned again; it says nothing of training them again")
    direction = verdict(row["value_second"], row["value_first"], row["higher_is_better"], None, None)
    return direction, "; ".join(limits)
