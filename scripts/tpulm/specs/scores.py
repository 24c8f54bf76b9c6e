"""Scores of a model: what evaluations write, and what `compare` and the report read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpulm.core.files import read_json, write_json
from tpulm.specs.artifacts import HELD_OUT, OF_RESPONSES

# Which items of a set a score is of: all, or those of one kind.
WHOLE, KIND = "whole", "kind"
# Kinds of models. What masked ones have for bits per byte is no likelihood, and not to be held against one.
MASKED, CAUSAL = "masked", "causal"
BITS_PER_BYTE, PSEUDO_BITS_PER_BYTE = "bits_per_byte", "pseudo_bits_per_byte"
# The metric that says bits per byte of text, by kind.
OF_TEXT = {MASKED: PSEUDO_BITS_PER_BYTE, CAUSAL: BITS_PER_BYTE}
# Baselines: a guess, the model that a finetuned one is made from, and a model that knows only how often tokens occur.
CHANCE, BASE, FREQUENCIES = "chance", "base model", "token frequencies"
# Groups of scores: of predicted tokens of records, and of generated responses.
TOKENS, RESPONSES = "tokens", "responses"
LOSS, ACCURACY = "loss", "accuracy"
BETTER, SAME, WORSE, FEW = "better", "no significant difference", "worse", "too few items"
IN_WORDS = {
    BETTER: "better than",
    SAME: "no significant difference from",
    WORSE: "worse than",
    FEW: "too few items to compare with",
}
# Items from which on a score has an interval and is compared. With 20, the percentiles of a bootstrap are 9 % narrower
# than Student's t, with 2 they are 89 % narrower (Hesterberg 2015, "narrowness bias").
FEWEST = 20


@dataclass(frozen=True)
class Score:
    """One number that says how good a model is, with its baselines.

    group             tokens, text, pairs, responses, task or harness
    metric            such as loss (nats per predicted token), bits_per_byte or accuracy
    set               name of the text, of the pairs or of the task
    on                what of the set it was measured on, in words that a reader of the report understands
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
    set: str = ""

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
        """The baselines: chance, and the values of simpler models by the same measure."""
        if self.metric == PSEUDO_BITS_PER_BYTE:  # the baselines' are likelihoods
            return {}
        return self.baselines | ({} if self.chance is None else {CHANCE: self.chance})

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The name and the value of the baseline that is hardest to beat; None without baselines."""
        values = sorted(self.compared_with.items(), key=lambda item: item[1], reverse=self.higher_is_better)
        return values[0] if values else None

    @property
    def comparison(self) -> str:
        """How it stands beside its baselines, in words; empty without baselines."""
        words: dict[str, list[str]] = {}
        for name, value in self.compared_with.items():
            words.setdefault(IN_WORDS[self.beside(value)], []).append(name)
        return "; ".join(f"{how} {', '.join(names)}" for how, names in words.items())

    @property
    def few(self) -> bool:
        """Whether it has too few items for an interval, and to be compared with anything."""
        return self.items < FEWEST

    def beside(self, other: float) -> str:
        """Return the verdict on it and another value, see `verdict`; FEW where it has fewer than FEWEST items."""
        return FEW if self.few else verdict(self.value, other, self.higher_is_better, self.low, self.high)


def token_scores(
    text: str, split: str, predicted: str, figures: Mapping, baselines: Mapping[str, Mapping[str, float]]
) -> list[Score]:
    """Return the loss and the accuracy on the predicted tokens of a split as scores.

    text, split  of the records; predicted  all (tokens) or responses
    figures      loss (nats per token), accuracy, predictions
    baselines    figures of simpler models on the same tokens, by the name of the model
    """
    return [
        Score(
            group=TOKENS,
            metric=metric,
            set=text,
            on=f"{text} {split}{OF_RESPONSES if predicted == RESPONSES else ''}",
            value=figures[metric],
            low=None,
            high=None,
            higher_is_better=metric == ACCURACY,
            items=int(figures["predictions"]),
            baselines={name: own[metric] for name, own in baselines.items() if metric in own},
            split=split,
        )
        for metric in (LOSS, ACCURACY)
    ]


def find_scores(scores: Iterable[Score], **fields: Any) -> Iterator[Score]:
    """Yield the scores whose fields have these values."""
    return (score for score in scores if all(getattr(score, key) == value for key, value in fields.items()))


def verdict(value: float, other: float, higher_is_better: bool, low: float | None, high: float | None) -> str:
    """Return whether a value is BETTER or WORSE than another one, or SAME: equal to it, or with it in the interval.

    low, high  of the value's interval; None where it has none
    """
    within = low is not None and high is not None and low <= other <= high
    if within or value == other:
        return SAME
    return BETTER if (value > other) == higher_is_better else WORSE


def write_scores(path: str | Path, model: str, kind: str, scores: Iterable[Score], **facts: Any) -> None:
    """Write the scores of a model, such as mlm/tiny, of a kind: masked or causal; facts  what else is known of it."""
    head = {"model": model, "kind": kind, **facts}
    write_json(path, head | {"scores": [asdict(score) for score in scores]})


def read_scores(path: str | Path) -> tuple[dict[str, Any], list[Score]]:
    """Return the facts in a file of scores, `model` and `kind` among them, and the scores."""
    found = read_json(path)
    return {key: value for key, value in found.items() if key != "scores"}, scores_in(found)


def scores_in(content: Mapping[str, Any]) -> list[Score]:
    """Return the scores of the content of a file, also of a metrics.json of version 0.2.0."""
    if "scores" in content:  # without `set` before 0.3.0
        return [Score(**{"set": row["on"].partition(" ")[0], **row}) for row in content["scores"]]
    texts = content.get("loss") or {f"corpus_{split}": {"after": content[split]} for split in HELD_OUT}
    found = []
    for name, figures in texts.items():
        text, _, split = name.replace("finetune_", "finetune-text_").rpartition("_")
        others = {BASE: figures["before"]} if "before" in figures else {}
        if "frequency_loss" in figures["after"]:
            others[FREQUENCIES] = {LOSS: figures["after"]["frequency_loss"]}
        predicted = figures.get("predicted", figures["after"].get("predicted", "all"))
        found += token_scores(text, split, predicted, figures["after"], others)
    return found
