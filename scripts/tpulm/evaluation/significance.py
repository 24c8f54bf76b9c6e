"""Is the difference between two models real? Tests over the items that both were scored on, and over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tpulm.core.random_streams import generator
from tpulm.core.scores import IN_TRAINING, Score
from tpulm.evaluation.intervals import interval
from tpulm.evaluation.items import Values

LEVEL = 0.05
DRAWS = 9999
SEED = 1
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

    def values(self, score: str) -> list[float]:
        """Return the value of a score, of each run."""
        return [scores[score].value for scores in self.scores]

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
        rng=generator(SEED, len(differences)),
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


def compared(one: Trained, two: Trained) -> list[dict]:
    """Return a row for each score that both models have, by COLUMNS; none for items in the training text of each.

    difference  second minus first, with its 95 % interval over items
    p_items     of the permutation test over items; p_seeds  of Welch's test over seeds
    p           the larger of the two, raised so that it stands for all scores of the pair together (`holm`)
    verdict     of the second model: better, worse or cannot tell; because  what limits it
    """
    names = [name for name in one.common if name in two.common and not name.endswith(IN_TRAINING)]
    rows = [row_of(one, two, name) for name in names]
    larger = [max((p for p in (row["p_items"], row["p_seeds"]) if p is not None), default=None) for row in rows]
    for row, p in zip(rows, holm(larger), strict=True):
        row["p"] = p
        row["verdict"], row["because"] = verdict(row)
    return rows


def row_of(one: Trained, two: Trained, score: str) -> dict:
    """Return what is known of a score of two models before all are weighed together."""
    names = sorted(one.shared(score) & two.shared(score))
    first, second = one.values(score), two.values(score)
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
        "p_seeds": over_seeds(first, second),
        "seeds_first": len(first),
        "seeds_second": len(second),
    }
    if len(names) > 1:
        differences = two.of_items(score, names) - one.of_items(score, names)
        low, high = interval(differences)
        row |= {"low": low, "high": high, "p_items": permuted(differences)}
    return row


def verdict(row: Mapping) -> tuple[str, str]:
    """Return what a row says of the second model: better, worse or cannot tell; and why."""
    if row["p_items"] is None:
        return CANNOT_TELL, "no items that both were scored on"
    if row["p"] >= LEVEL:
        return CANNOT_TELL, f"p = {row['p']:.2g}"
    found = "better" if (row["difference"] > 0) == row["higher_is_better"] else "worse"
    one_seed = min(row["seeds_first"], row["seeds_second"]) == 1
    return found, "of these weights; with one seed, it says nothing of training again" if one_seed else ""
