"""Scores of a model: what evaluations write, and what `compare` and the report read."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpulm.core.files import read_json, write_json

# Which items of a set a score is of: all, or those of one kind.
WHOLE, KIND = "whole", "kind"
# Kinds of models. What masked ones have for bits per byte is no likelihood, and not to be held against one.
MASKED, CAUSAL = "masked", "causal"
BITS_PER_BYTE, PSEUDO_BITS_PER_BYTE = "bits_per_byte", "pseudo_bits_per_byte"
# By kind: what a loss is the mean of, nats; the metric that says bits per byte of text, and what that follows from.
LOSSES = {
    MASKED: "cross entropy of a masked token, given the tokens around it",
    CAUSAL: "negative log-likelihood of a token, given those before it",
}
OF_TEXT = {MASKED: PSEUDO_BITS_PER_BYTE, CAUSAL: BITS_PER_BYTE}
LIKELIHOODS = {
    # Kauf and Ivanova 2023: a token is masked together with the rest of its word.
    MASKED: "pseudo-log-likelihood, within_word_l2r",
    CAUSAL: "log-likelihood, exact",
}
# What stands beside a score: a guess, and the model that a finetuned one is made from.
CHANCE, BASE = "chance", "base model"
RESPONSES = "responses"  # the group of what generated responses are worth
BETTER, LEVEL, WORSE, FEW = "better", "level", "worse", "too few items"
# Items from which on a score has an interval and is compared. With 20, the percentiles of a bootstrap are 9 % narrower
# than Student's t, with 2 they are 89 % narrower (Hesterberg 2015, "narrowness bias").
FEWEST = 20


@dataclass(frozen=True)
class Score:
    """One number that says how good a model is, with what it is to be held against.

    group             text, pairs, responses, task or harness
    metric            such as bits_per_byte or accuracy
    on                what it was measured on, in words that a reader of the report understands
    value             mean over the items, and over the seeds where there are several
    low, high         limits of its 95 % interval; None where it has none, such as with fewer than FEWEST items
    higher_is_better  the direction
    items             documents, pairs or examples that the value is a mean over
    chance            value of a guess; None where it makes no sense
    baselines         values of simpler models on the same items, by their name
    seeds             value of each seed, where a task was learned several times
    step              of the checkpoint; None for the model that the run ends with
    part              which of the items it is of: WHOLE or KIND
    split             validation or test; None where the items are of neither
    in_training_text  how many of the items share words with text that the model was trained on here; None of a model
                      that was trained elsewhere
    """

    group: str
    metric: str
    on: str
    value: float
    low: float | None
    high: float | None
    higher_is_better: bool
    items: int
    chance: float | None = None
    baselines: dict[str, float] = field(default_factory=dict)
    seeds: list[float] = field(default_factory=list)
    step: int | None = None
    part: str = WHOLE
    split: str | None = None
    in_training_text: int | None = None

    @property
    def name(self) -> str:
        """Its key among the scores of a model, and in a table of values by item."""
        return f"{self.group}, {self.metric}: {self.on}"

    def __str__(self) -> str:
        """Return it in words, as logs and tables have it, with its baselines."""
        limits = "" if self.low is None else f" [{self.low:.4f}, {self.high:.4f}]"
        seeds = f", seeds {', '.join(f'{seed:.3f}' for seed in self.seeds)}" if self.seeds else ""
        others = "".join(f", {name} {value:.3f}" for name, value in self.compared_with.items())
        return f"{self.on}: {self.metric.replace('_', ' ')} {self.value:.4f}{limits}{seeds}{others}"

    @property
    def leads(self) -> bool:
        """Whether it stands for the others: of all items of a set, and not of the validation split."""
        return self.part == WHOLE and self.split != "validation"

    @property
    def compared_with(self) -> dict[str, float]:
        """The values that it is to be held against: chance and those of baselines that are of the same measure."""
        if self.metric == PSEUDO_BITS_PER_BYTE:  # the baselines' are likelihoods
            return {}
        return self.baselines | ({} if self.chance is None else {CHANCE: self.chance})

    @property
    def few(self) -> bool:
        """Whether it has too few items for an interval, and to be compared with anything."""
        return self.items < FEWEST

    def beside(self, other: float) -> str:
        """Return what it is beside another value, see `verdict`; FEW where it has fewer than FEWEST items."""
        return FEW if self.few else verdict(self.value, other, self.higher_is_better, self.low, self.high)


def measured_as(kind: str, model: str) -> dict[str, Any]:
    """Return what metrics.json says of its figures: of which kind they are, and where bits per byte of text are.

    model  such as mlm/tiny: its scores have them, if the config asks for them, in a file below results/
    """
    in_bytes = {"metric": OF_TEXT[kind], "of": LIKELIHOODS[kind], "file": f"evaluation/{model}/scores.json"}
    return {"measured_as": {"kind": kind, "loss": LOSSES[kind], "perplexity": "exp(loss)", "bits_per_byte": in_bytes}}


def verdict(value: float, other: float, higher_is_better: bool, low: float | None, high: float | None) -> str:
    """Return whether a value is BETTER or WORSE than another one, or LEVEL: equal to it, or with it in the interval.

    low, high  of the value's interval; None where it has none
    """
    within = low is not None and high is not None and low <= other <= high
    if within or value == other:
        return LEVEL
    return BETTER if (value > other) == higher_is_better else WORSE


def write_scores(path: str | Path, model: str, kind: str, scores: Iterable[Score]) -> None:
    """Write the scores of a model, such as mlm/tiny, of a kind: masked or causal."""
    write_json(path, {"model": model, "kind": kind, "scores": [asdict(score) for score in scores]})


def read_scores(path: str | Path) -> tuple[dict[str, Any], list[Score]]:
    """Return a file's `model` and `kind`, and its scores."""
    found = read_json(path)
    return {"model": found["model"], "kind": found["kind"]}, [Score(**score) for score in found["scores"]]
