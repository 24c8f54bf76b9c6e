"""Compute the scores of a model on items: bits per byte of held-out documents, and accuracy on pairs of sentences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write
from tpulm.evaluation.item_means import Scored, mean_score
from tpulm.evaluation.material import PASSAGE, Item, Passage, read_items
from tpulm.evaluation.overlap import count_in_training, items_in_training
from tpulm.specs.artifacts import OF_RESPONSES
from tpulm.specs.scores import KIND, MASKED, OF_TEXT

BASELINES = {"unigram": "unigram", "kneser_ney": "5-gram"}
Costs = Mapping[Passage, float]


@dataclass(frozen=True)
class Material:
    """Items that a model is scored on, with the costs of baselines.

    baselines  nats of each passage, by the baseline's name
    overlaps   files of find_overlap: items in the training text
    """

    items: list[Item]
    baselines: Mapping[str, Costs]
    overlaps: Sequence[str]

    @classmethod
    def of(cls, inputs: Mapping, kind: str, documents: int | None = None) -> "Material":
        """Return the material of a job's inputs.

        inputs     material; ngrams and overlaps, which are optional
        kind       masked or causal; masked models are scored on all tokens
        documents  limit of each split, those that were drawn first; all by default
        """
        drawn: dict[str, list[Item]] = {}
        for item in (item for path in inputs["material"] for item in read_items(path)):
            drawn.setdefault(item.part, []).append(item.whole if kind == MASKED else item)
        parts = (part[:documents] if part[0].split else part for part in drawn.values())
        items = [item for part in parts for item in part]
        rows = [row for path in inputs.get("ngrams", []) for row in pq.read_table(path).to_pylist()]
        passages = [Passage.of(row["text"], row["scored"]) for row in rows]
        costs = {name: [row[column] for row in rows] for column, name in BASELINES.items() if rows}
        baselines = {name: dict(zip(passages, nats, strict=True)) for name, nats in costs.items()}
        return cls(items, baselines, inputs.get("overlaps", []))

    @property
    def passages(self) -> list[Passage]:
        """Distinct passages of all items."""
        return list(dict.fromkeys(passage for item in self.items for passage in item.passages))

    def scored(
        self, model: str, kind: str, costs: Costs, extra_baselines: Mapping[str, Costs] | None = None
    ) -> Iterator[Scored]:
        """Yield the scores of a model on each set, and on the pairs of each kind.

        model            name, such as mlm/tiny
        kind             masked or causal
        costs            nats of each passage
        extra_baselines  nats of each passage by other models, by name

        Raises UserError for a cost that is not finite, as of weights that have diverged.
        """
        extra_baselines = extra_baselines or {}
        check_costs(model, costs)
        for name, baseline_costs in extra_baselines.items():
            check_costs(f"{model}: its {name}", baseline_costs)
        baselines = {**self.baselines, **extra_baselines}
        parts: dict[tuple[str, str], list[Item]] = {}
        for item in self.items:
            for kind_of_pair in dict.fromkeys(("", item.kind)):
                parts.setdefault((item.part, kind_of_pair), []).append(item)
        for (name, kind_of_pair), items in parts.items():
            for measure in OF_DOCUMENTS if items[0].split else OF_PAIRS:
                score, values = measure(items, costs, baselines, kind)
                in_training = count_in_training(values, items_in_training(self.overlaps, name))
                if kind_of_pair:
                    score = replace(score, on=f"{score.on}: {kind_of_pair}", part=KIND)
                yield replace(score, in_training_text=in_training), values


def check_costs(model: str, costs: Costs) -> None:
    """Raise UserError if the cost of a passage is not finite."""
    bad = sum(not math.isfinite(cost) for cost in costs.values())
    if bad:
        raise UserError(
            f"{model} cannot be scored: its loss is nan or inf for {bad:,} of {len(costs):,} texts; allowed: finite "
            "numbers. Its training has diverged, or its precision is too low: try a lower learning_rate, or float32."
        )


def bits_per_byte(items: Sequence[Item], costs: Costs, baselines: Mapping[str, Costs], kind: str) -> Scored:
    """Return the bits of all scored text of a set divided by its bytes."""
    passages = [passage for item in items for passage in item.passages]
    sizes = np.array([passage.bytes for passage in passages], np.float64)

    def bits(model_costs: Costs) -> np.ndarray:
        return np.array([model_costs[passage] for passage in passages]) / np.log(2) / sizes

    return mean_score(
        [item.item for item in items],
        bits(costs),
        {name: bits(model_costs) for name, model_costs in baselines.items()},
        sizes,
        group="text",
        metric=OF_TEXT[kind],
        set=items[0].set,
        on=items[0].part if all(passage.is_whole for passage in passages) else f"{items[0].part}{OF_RESPONSES}",
        higher_is_better=False,
        split=items[0].split,
    )


def accuracy(pairs: Sequence[Item], costs: Costs, baselines: Mapping[str, Costs], kind: str) -> Scored:
    """Return the share of pairs whose good sentence is likelier; equal likelihoods count half."""

    def right(model_costs: Costs) -> np.ndarray:
        margins = np.array([model_costs[bad] - model_costs[good] for good, bad in (pair.passages for pair in pairs)])
        return np.where(np.abs(margins) < 1e-9, 0.5, margins > 0)

    return mean_score(
        [pair.item for pair in pairs],
        right(costs),
        {name: right(model_costs) for name, model_costs in baselines.items()},
        group="pairs",
        metric="accuracy",
        set=pairs[0].set,
        on=pairs[0].set,
        higher_is_better=True,
        chance=0.5,
    )


# Measures of each set of documents, and of each set of pairs.
OF_DOCUMENTS, OF_PAIRS = (bits_per_byte,), (accuracy,)


def write_costs(path: str | Path, passages: Sequence[Passage], costs: Mapping[str, np.ndarray]) -> None:
    """Write passages and their costs in nats as Parquet: text, scored, and a column for each model."""
    table = pa.Table.from_pylist([passage.row for passage in passages], pa.schema(PASSAGE))
    for name, nats in costs.items():
        table = table.append_column(name, pa.array(nats, pa.float64()))
    with atomic_write(path) as partial:
        pq.write_table(table, partial, compression="zstd")
