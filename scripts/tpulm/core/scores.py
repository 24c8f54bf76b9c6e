"""Scores of a model: what evaluations write, and what `compare` and the report read."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpulm.core.files import read_json, write_json

# What ends `on` where a score is of those items only that overlap with text that the model was trained on.
IN_TRAINING = ", in the training text"


@dataclass(frozen=True)
class Score:
    """One number that says how good a model is, with what it is to be held against.

    group             text, pairs, task or harness
    metric            such as bits_per_byte or accuracy
    on                what it was measured on, in words that a reader of the report understands
    value             mean over the items, and over the seeds where there are several
    low, high         limits of its 95 % interval; None where it has none
    higher_is_better  the direction
    items             documents, pairs or examples that the value is a mean over
    chance            value of a guess; None where it makes no sense
    baselines         values of simpler models on the same items, by their name
    seeds             value of each seed, where a task was learned several times
    step              of the checkpoint; None for the model that the run ends with
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

    @property
    def name(self) -> str:
        """Its key in a table of values by item."""
        return f"{self.metric}: {self.on}"


def write_scores(path: str | Path, model: str, kind: str, scores: Iterable[Score]) -> None:
    """Write the scores of a model, such as mlm/tiny, of a kind: masked or causal."""
    write_json(path, {"model": model, "kind": kind, "scores": [asdict(score) for score in scores]})


def read_scores(path: str | Path) -> tuple[dict[str, Any], list[Score]]:
    """Return a file's `model` and `kind`, and its scores."""
    found = read_json(path)
    return {"model": found["model"], "kind": found["kind"]}, [Score(**score) for score in found["scores"]]
