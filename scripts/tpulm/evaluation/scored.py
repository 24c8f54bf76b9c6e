"""What a model is scored on, and its scores: bits per byte of held-out text, and pairs of sentences."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.config.evaluation_names import MADE_PAIRS, VALIDATION
from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write, read_json
from tpulm.core.scores import (
    IN_TRAINING,
    IN_TRAINING_TEXT,
    KIND,
    OF_TEXT,
    WHOLE,
    Score,
    write_scores,
)
from tpulm.evaluation.documents import TextSet, read_sample
from tpulm.evaluation.intervals import interval
from tpulm.evaluation.overlap import overlapping
from tpulm.evaluation.pairs import PairSet, read_pairs

# What the pairs that are made of the corpus are called.
MADE = "pairs made of held-out text"
BASELINES = {"unigram": "unigram", "kneser_ney": "5-gram"}
ITEMS = pa.schema([("score", pa.string()), ("item", pa.string()), ("value", pa.float64())])
Costs = Mapping[str, float]


@dataclass(frozen=True)
class Material:
    """Texts and pairs that a model is scored on, with what stands beside its scores.

    texts, pairs   the sets
    baselines      by name: what each text costs a simpler model, nats
    overlaps       what training texts share with it, as `overlap.find_overlap` says it
    step           of the checkpoint that is scored; None for the model that a run ends with
    selects        the set of pairs that checkpoints are selected by, which tests nothing then; None for none
    """

    texts: list[TextSet]
    pairs: list[PairSet]
    baselines: dict[str, Costs]
    overlaps: list[Mapping]
    step: int | None = None
    selects: str | None = None

    @classmethod
    def of(cls, inputs: Mapping, recipe: Mapping) -> "Material":
        """Return what a job names: inputs texts, pairs, ngrams, overlaps; recipe texts, pairs, documents, step."""
        names = zip(inputs["texts"], recipe["texts"], strict=True)
        texts = [one for path, name in names for one in read_sample(path, name, recipe["documents"])]
        baselines: dict[str, dict[str, float]] = {name: {} for name in BASELINES.values()}
        for path in inputs["ngrams"]:
            columns = pq.read_table(path).to_pydict()
            for column, name in BASELINES.items():
                baselines[name] |= dict(zip(columns["text"], columns[column], strict=True))
        return cls(
            texts,
            read_sets(inputs["pairs"], recipe["pairs"]),
            {name: own for name, own in baselines.items() if own},
            [read_json(path)["sets"] for path in inputs["overlaps"]],
            recipe.get("step"),
            recipe.get("selects"),
        )

    @property
    def distinct(self) -> list[str]:
        """Every text that is to be scored, each once."""
        held_out = [text for one in self.texts for text in one.texts]
        return list(dict.fromkeys(held_out + sentences_of(self.pairs)))

    def results(self, costs: Costs, kind: str, baselines: Mapping[str, Costs]) -> Iterator[tuple[Score, dict]]:
        """Yield each score of a model with its value by item.

        costs   of each text, nats; kind  masked or causal; baselines  of models that stand beside it
        """
        beside = {**self.baselines, **baselines}
        for texts in self.texts:
            chosen = list(zip(texts.items, texts.texts, strict=True))
            for part, on, some in self.parts(texts.name, chosen):
                score, values = bits_per_byte(on, some, costs, beside, kind)
                yield replace(score, part=part, split=texts.split), values
        for pairs in self.pairs:
            by_item = [(pair.item, pair) for pair in pairs.pairs]
            for part, on, some in self.parts(pairs.name, by_item):
                score, values = accuracy(on, some, costs, beside)
                yield replace(score, part=part, split=VALIDATION if pairs.name == self.selects else None), values
            phenomena = defaultdict(list)
            for item, pair in by_item:
                phenomena[pair.phenomenon].append((item, pair))
            for phenomenon, some in phenomena.items():
                score, values = accuracy(f"{pairs.name}: {phenomenon}", some, costs, beside)
                yield replace(score, part=KIND), values

    def parts(self, name: str, chosen: list[tuple]) -> Iterator[tuple[str, str, list[tuple]]]:
        """Yield a set, and apart those of its items that are in a training text: which part it is, its name, itself."""
        yield WHOLE, name, chosen
        seen = overlapping(self.overlaps, name)
        inside = [one for one in chosen if one[0] in seen]
        if inside:
            yield IN_TRAINING_TEXT, f"{name}{IN_TRAINING}", inside

    def write(self, output: Mapping, model: str, kind: str, costs: Costs, **baselines: Costs) -> list[Score]:
        """Write the scores of a model and its values by item; see `results`. Returns the scores.

        Raises UserError where a cost is no number, as of weights that have diverged.
        """
        check_costs(model, costs)
        for name, own in baselines.items():
            check_costs(f"{model}: its {name.replace('_', ' ')}", own)
        found = list(self.results(costs, kind, {name.replace("_", " "): own for name, own in baselines.items()}))
        write_items(output["by_item"], found)
        scores = [replace(score, step=self.step) for score, _ in found]
        write_scores(output["scores"], model, kind, scores)
        return scores


def check_costs(model: str, costs: Costs) -> None:
    """Raise UserError where a text costs no finite number of nats; model  such as mlm/tiny."""
    bad = sum(not math.isfinite(cost) for cost in costs.values())
    if bad:
        raise UserError(
            f"{model} cannot be scored: {bad:,} of {len(costs):,} texts cost it nan or inf nats; allowed: finite "
            "numbers. Its training has diverged, or its precision is too low: try a lower learning_rate, or float32."
        )


def read_sets(paths: Sequence[str], names: Sequence[str]) -> list[PairSet]:
    """Return sets of pairs by their names in the config, those that have pairs."""
    sets = [read_pairs(path, MADE if name == MADE_PAIRS else name) for path, name in zip(paths, names, strict=True)]
    return [one for one in sets if one.pairs]


def sentences_of(sets: Sequence[PairSet]) -> list[str]:
    """Return the sentences of sets of pairs."""
    return [sentence for one in sets for pair in one.pairs for sentence in (pair.good, pair.bad)]


def bits_per_byte(
    on: str, chosen: list[tuple[str, str]], costs: Costs, beside: Mapping[str, Costs], kind: str
) -> tuple[Score, dict[str, float]]:
    """Return the bits per byte of documents, and by document its bits by the bytes of a mean document.

    So the mean over the documents is the bits of all by the bytes of all. A masked model's are no likelihood, and have
    a name of their own.
    """
    sizes = np.array([len(text.encode()) for _, text in chosen], np.float64)

    def bits(own: Costs) -> np.ndarray:
        return np.array([own[text] for _, text in chosen]) / np.log(2)

    low, high = interval(bits(costs) / sizes, sizes)
    score = Score(
        group="text",
        metric=OF_TEXT[kind],
        on=on,
        value=float(bits(costs).sum() / sizes.sum()),
        low=low,
        high=high,
        higher_is_better=False,
        items=len(chosen),
        baselines={name: float(bits(own).sum() / sizes.sum()) for name, own in beside.items()},
    )
    values = bits(costs) / sizes.mean()
    return score, dict(zip((item for item, _ in chosen), values.tolist(), strict=True))


def accuracy(on: str, chosen: list[tuple], costs: Costs, beside: Mapping[str, Costs]) -> tuple[Score, dict[str, float]]:
    """Return the share of pairs whose good sentence is likelier, and 1 or 0 by pair; half where both are as likely."""

    def right(own: Costs) -> np.ndarray:
        margins = np.array([own[pair.bad] - own[pair.good] for _, pair in chosen])
        return np.where(np.abs(margins) < 1e-9, 0.5, margins > 0)

    values = right(costs)
    low, high = interval(values)
    score = Score(
        group="pairs",
        metric="accuracy",
        on=on,
        value=float(values.mean()),
        low=low,
        high=high,
        higher_is_better=True,
        items=len(chosen),
        chance=0.5,
        baselines={name: float(right(own).mean()) for name, own in beside.items()},
    )
    return score, dict(zip((item for item, _ in chosen), values.tolist(), strict=True))


def write_items(path: str | Path, found: Sequence[tuple[Score, dict[str, float]]]) -> None:
    """Write the values of scores by item as Parquet: score, item, value."""
    rows = [
        {"score": score.name, "item": item, "value": value} for score, values in found for item, value in values.items()
    ]
    with atomic_write(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, ITEMS), partial, compression="zstd")


def spoken(scores: Sequence[Score]) -> Iterator[str]:
    """Yield a line about each score."""
    for score in scores:
        beside = "".join(f", {name} {value:.3f}" for name, value in score.baselines.items())
        limits = "" if score.low is None else f" ({score.low:.3f} to {score.high:.3f})"
        yield f"{score.name} {score.value:.3f}{limits}{beside}"
