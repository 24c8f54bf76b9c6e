"""Is the difference between two models real? Tests over the items that both were scored on, and over seeds."""

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
    """Return the value of each item, by the name of the score."""
    found: dict[str, Values] = {}
    table = pq.read_table(path, columns=list(ITEM_COLUMNS))
    for score, item, value in zip(*(table[name].to_pylist() for name in ITEM_COLUMNS), strict=True):
        found.setdefault(score, {})[item] = value
    return found


LEVEL = 0.05
DRAWS = 9999
AT_ONCE = 1 << 22  # numbers in memory
CANNOT_TELL = "cannot tell"
COLUMNS = (
    *("first", "second", "score", "higher_is_better", "value_first", "value_second", "difference", "low", "high"),
    *("items", "seeds_first", "seeds_second", "p_items", "p_seeds", "p", "verdict", "because"),
)


@dataclass(frozen=True)
class Trained:
    """A model by the scores of its runs, which differ by their seed only.

    name    how to call it; scores  of each run, by Score.name; items  value of each item of
    a score, of each run
    """

    name: str
    scores: Sequence[Mapping[str, Score]]
    items: Sequence[Mapping[str, Values]]

    @property
    def common(self) -> list[str]:
        """The scores that all of its runs have, in the order of the first."""
        return [name for name in self.scores[0] if all(name in scores for scores in self.scores)]

    def values(self, score: str, names: Sequence[str]) -> list[float]:
        """Return the value of a score on these items, of each run; without any, as each run has it."""
        if not names:
            return [scores[score].value for scores in self.scores]
        return [float(np.mean([items[score][name] for name in names])) for items in self.items]

    def shared(self, score: str) -> set[str]:
        """Return the items of a score that all runs have; none for a score without items."""
        return set.intersection(*(set(items.get(score, {})) for items in self.items))

    def of_items(self, score: str, names: Sequence[str]) -> np.ndarray:
        """Return the values of these items, mean over the runs: float64 [items]."""
        return np.mean([[items[score][name] for name in names] for items in self.items], 0)


def permuted(differences: np.ndarray) -> float:
    """Return the two-sided p-value of the paired permutation test of a mean of 0.

    differences  float64 [items]; under the hypothesis, each is as likely with the other sign (Fisher 1935). Exact for
                 few items, else by `DRAWS` seeded draws
    """
    if not differences.any():
        return 1.0
    found = stats.permutation_test(
        (differences, np.zeros_like(differences)),
        lambda one, other, axis: (one - other).mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=DRAWS,
        batch=max(1, AT_ONCE // (2 * len(differences))),
        rng=generator("significance", len(differences)),
    )
    return float(found.pvalue)


def over_seeds(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Welch's t-test; None where a model has one seed only, or all seeds agree."""
    if min(len(one), len(two)) < 2 or np.var(one) + np.var(two) == 0:
        return None
    return float(stats.ttest_ind(one, two, equal_var=False).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values that stay below a level for all tests together (Holm 1979); None stays None."""
    order = sorted((index for index, value in enumerate(values) if value is not None), key=lambda i: values[i] or 0.0)
    found: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * (values[index] or 0.0)))
        found[index] = highest
    return found


def compare_scores(one: Trained, two: Trained) -> list[dict]:
    """Return a row for each score that both models have, by COLUMNS.

    value_first, value_second, difference (second minus first), low and high (its 95 % interval)
             of the items that both were scored on; of a score without items, such as a perplexity, of each model's own,
             without an interval
    seeds_first, seeds_second
             how many runs; of models of one run, how many seeds a task was learned with
    p_items  of the permutation test over items; p_seeds  of Welch's test over seeds
    p        the larger of the two, raised so that it stands for all scores of the pair together (`holm`)
    verdict  of the second model: better, worse or cannot tell; because  what limits it
    """
    names = [name for name in one.common if name in two.common]
    rows = [comparison_row(one, two, name) for name in names]
    larger = [max((p for p in (row["p_items"], row["p_seeds"]) if p is not None), default=None) for row in rows]
    again = min(len(one.scores), len(two.scores)) > 1
    for row, p in zip(rows, holm(larger), strict=True):
        row["p"] = p
        row["verdict"], row["because"] = judged(row, again)
    return rows


def comparison_row(one: Trained, two: Trained, score: str) -> dict:
    """Return the tests of one score of two models, before the correction for several tests."""
    names = sorted(one.shared(score) & two.shared(score))
    has_items = bool(one.shared(score) or two.shared(score))
    first, second = one.values(score, names), two.values(score, names)
    seeds = first, second
    same = len(names) == one.scores[0][score].items == two.scores[0][score].items
    if len(one.scores) == len(two.scores) == 1 and (same or not has_items):
        seeds = one.scores[0][score].seeds or first, two.scores[0][score].seeds or second
    row = {
        "first": one.name,
        "second": two.name,
        "score": score,
        "higher_is_better": one.scores[0][score].higher_is_better,
        "value_first": float(np.mean(first)),
        "value_second": float(np.mean(second)),
        "difference": float(np.mean(second) - np.mean(first)),
        "low": None,
        "high": None,
        "items": len(names),
        "p_items": None,
        "p_seeds": over_seeds(*seeds) if names or not has_items else None,
        "seeds_first": len(seeds[0]),
        "seeds_second": len(seeds[1]),
    }
    if len(names) > 1:
        differences = two.of_items(score, names) - one.of_items(score, names)
        low, high = interval(differences)
        row |= {"low": low, "high": high, "p_items": permuted(differences)}
    return row


def judged(row: Mapping, again: bool) -> tuple[str, str]:
    """Return the verdict on the second model, better, worse or cannot tell, and the reason.

    again  whether both models were trained with several seeds
    """
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
    found = verdict(row["value_second"], row["value_first"], row["higher_is_better"], None, None)
    return found, "; ".join(limits)
