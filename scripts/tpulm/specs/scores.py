"""The scores of a model, which evaluations write, and `compare` and the report read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpulm.core.files import read_json, write_json
from tpulm.specs.artifacts import HELD_OUT, OF_RESPONSES

# Items of a set that a score is over: all, or those of one kind.
WHOLE, KIND = "whole", "kind"
# Kinds of models. The pseudo-bits per byte of masked models are no likelihood, and cannot be compared with one.
MASKED, CAUSAL = "masked", "causal"
BITS_PER_BYTE, PSEUDO_BITS_PER_BYTE = "bits_per_byte", "pseudo_bits_per_byte"
# The metric of bits per byte by kind.
OF_TEXT = {MASKED: PSEUDO_BITS_PER_BYTE, CAUSAL: BITS_PER_BYTE}
# Baselines: a guess, the base model of a finetuned one, and a model that knows only the frequencies of tokens.
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
# Fewest items of a score with an interval and comparisons. With 20, the percentiles of a bootstrap are 9 % narrower
# than Student's t, with 2 they are 89 % narrower (Hesterberg 2015, "narrowness bias").
FEWEST = 20


@dataclass(frozen=True)
class Score:
    """A score of a model, with its baselines.

    group             tokens, text, pairs, responses, task or harness
    metric            such as loss (nats per predicted token), bits_per_byte or accuracy
    set               name of the text, of the pairs or of the task
    on                items of the set that it was measured on, in words for a reader of the report
    value             mean over the items, and over the seeds if there are several
    low, high         limits of its 95 % interval; None without one, such as with fewer than FEWEST items
    higher_is_better  the direction
    items             number of documents, pairs or examples of the mean
    chance            value of a guess; None if it makes no sense
    baselines         values of simpler models on the same items, by name
    seeds             value of each seed, if a task was learned several times
    step              of the checkpoint; None for the final model
    part              items of the set: WHOLE or KIND
    split             validation or test; None for other items
    in_training_text  number of items that share words with the model's training text; None for an external model
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
        """Return the score with its baselines in words, for logs and tables."""
        limits = "" if self.low is None else f" [{self.low:.4f}, {self.high:.4f}]"
        seeds = f", seeds {', '.join(f'{seed:.3f}' for seed in self.seeds)}" if self.seeds else ""
        others = "".join(f", {name} {value:.3f}" for name, value in self.compared_with.items())
        return f"{self.on}: {self.metric.replace('_', ' ')} {self.value:.4f}{limits}{seeds}{others}"

    @property
    def leads(self) -> bool:
        """Whether it is over all items of a set, and not on the validation split."""
        return self.part == WHOLE and self.split != "validation"

    @property
    def compared_with(self) -> dict[str, float]:
        """The values of the baselines, chance included, by name."""
        if self.metric == PSEUDO_BITS_PER_BYTE:  # the baselines' are likelihoods
            return {}
        return self.baselines | ({} if self.chance is None else {CHANCE: self.chance})

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The name and value of the best baseline; None without baselines."""
        values = sorted(self.compared_with.items(), key=lambda item: item[1], reverse=self.higher_is_better)
        return values[0] if values else None

    @property
    def comparison(self) -> str:
        """The verdicts on it and its baselines in words; "" without baselines."""
        words: dict[str, list[str]] = {}
        for name, value in self.compared_with.items():
            words.setdefault(IN_WORDS[self.verdict_against(value)], []).append(name)
        return "; ".join(f"{how} {', '.join(names)}" for how, names in words.items())

    @property
    def few(self) -> bool:
        """Whether it has too few items for an interval and comparisons."""
        return self.items < FEWEST

    def verdict_against(self, baseline: float) -> str:
        """Return the `verdict` on the score and another value; FEW with fewer than FEWEST items."""
        return FEW if self.few else verdict(self.value, baseline, self.higher_is_better, self.low, self.high)


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
            baselines={name: values[metric] for name, values in baselines.items() if metric in values},
            split=split,
        )
        for metric in (LOSS, ACCURACY)
    ]


def by_source(text: str, sources: Iterable[str], manifests: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return name, split and manifest of the records that measure each source of a text; sources  their names."""
    return [(f"{text} ({source})", "validation", place) for source, place in zip(sources, manifests, strict=True)]


def find_scores(scores: Iterable[Score], **fields: Any) -> Iterator[Score]:
    """Yield the scores whose fields have these values."""
    return (score for score in scores if all(getattr(score, key) == value for key, value in fields.items()))


def verdict(value: float, baseline: float, higher_is_better: bool, low: float | None, high: float | None) -> str:
    """Return whether a value is BETTER or WORSE than a baseline, or SAME: equal, or the baseline in its interval.

    low, high  of the value's interval; None without one
    """
    within = low is not None and high is not None and low <= baseline <= high
    if within or value == baseline:
        return SAME
    return BETTER if (value > baseline) == higher_is_better else WORSE


def write_scores(path: str | Path, model: str, kind: str, scores: Iterable[Score], **facts: Any) -> None:
    """Write the scores of a model, such as mlm/tiny; kind  masked or causal; facts  more keys of the file."""
    header = {"model": model, "kind": kind, **facts}
    write_json(path, header | {"scores": [asdict(score) for score in scores]})


def read_scores(path: str | Path) -> tuple[dict[str, Any], list[Score]]:
    """Return the facts in a file of scores, including `model` and `kind`, and the scores."""
    content = read_json(path)
    return {key: value for key, value in content.items() if key != "scores"}, scores_in(content)


def scores_in(content: Mapping[str, Any]) -> list[Score]:
    """Return the scores in the content of a file of scores; until 0.4.0, also in what 0.2.0 wrote."""
    if "scores" in content:  # 0.2.0 wrote no `set`
        return [Score(**{"set": row["on"].partition(" ")[0], **row}) for row in content["scores"]]
    texts = content.get("loss") or {f"corpus_{split}": {"after": content[split]} for split in HELD_OUT}
    scores = []
    for name, figures in texts.items():
        text, _, split = name.replace("finetune_", "finetune-text_").rpartition("_")
        baselines = {BASE: figures["before"]} if "before" in figures else {}
        if "frequency_loss" in figures["after"]:
            baselines[FREQUENCIES] = {LOSS: figures["after"]["frequency_loss"]}
        predicted = figures.get("predicted", figures["after"].get("predicted", "all"))
        scores += token_scores(text, split, predicted, figures["after"], baselines)
    return scores
