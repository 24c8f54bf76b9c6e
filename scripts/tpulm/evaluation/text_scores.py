"""What a model is scored on, and its scores: bits per byte of held-out text, and pairs of sentences."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write
from tpulm.core.scores import KIND, MASKED, OF_TEXT, Score, write_scores
from tpulm.evaluation.documents import Passage, TextSet, bytes_of, passages_of, read_sample
from tpulm.evaluation.intervals import interval
from tpulm.evaluation.minimal_pairs import Pair, read_pairs
from tpulm.evaluation.overlap import count_in_training, items_in_training

BASELINES = {"unigram": "unigram", "kneser_ney": "5-gram"}
ITEMS = pa.schema([("score", pa.string()), ("item", pa.string()), ("value", pa.float64())])
Costs = Mapping[Passage, float]


@dataclass(frozen=True)
class Material:
    """Texts and pairs that a model is scored on, with what stands beside its scores.

    texts          sets of documents; pairs  sets of pairs, by name
    baselines      by name: what each text costs a simpler model, nats
    overlaps       files of find_overlap: which items are in the text that the model was trained on
    step           of the checkpoint that is scored; None for the model that a run ends with
    """

    texts: list[TextSet]
    pairs: dict[str, list[Pair]]
    baselines: dict[str, Costs]
    overlaps: Sequence[str]
    step: int | None = None

    @classmethod
    def of(cls, inputs: Mapping, recipe: Mapping, kind: str) -> "Material":
        """Return what a job names: inputs texts, pairs, ngrams, overlaps; recipe documents, step.

        kind  of the model, masked or causal: masked ones are trained on all tokens
        """
        texts = [one for path in inputs["texts"] for one in read_sample(path, recipe["documents"])]
        texts = [one.whole for one in texts] if kind == MASKED else texts
        baselines: dict[str, dict[Passage, float]] = {name: {} for name in BASELINES.values()}
        for path in inputs["ngrams"]:
            columns = pq.read_table(path).to_pydict()
            for column, name in BASELINES.items():
                baselines[name] |= dict(zip(passages_of(columns), columns[column], strict=True))
        return cls(
            texts,
            read_sets(inputs["pairs"]),
            {name: own for name, own in baselines.items() if own},
            inputs["overlaps"],
            recipe.get("step"),
        )

    @property
    def distinct(self) -> list[Passage]:
        """Every text that is to be scored, each once."""
        held_out = [text for one in self.texts for text in one.texts]
        sentences = [one for pairs in self.pairs.values() for pair in pairs for one in (pair.good, pair.bad)]
        return list(dict.fromkeys([*held_out, *sentences]))

    def results(self, costs: Costs, kind: str, baselines: Mapping[str, Costs]) -> Iterator[tuple[Score, dict]]:
        """Yield each score of a model with its value by item.

        costs   of each text, nats; kind  masked or causal; baselines  of models that stand beside it
        """
        beside = {**self.baselines, **baselines}
        for texts in self.texts:
            chosen = list(zip(texts.items, texts.texts, strict=True))
            score, values = bits_per_byte(texts.scored, chosen, costs, beside, kind)
            found = items_in_training(self.overlaps, texts.name)
            yield replace(score, split=texts.split, in_training_text=count_in_training(values, found)), values
        for name, pairs in self.pairs.items():
            found = items_in_training(self.overlaps, name)
            score, values = accuracy(name, pairs, costs, beside)
            yield replace(score, in_training_text=count_in_training(values, found)), values
            phenomena = defaultdict(list)
            for pair in pairs:
                phenomena[pair.phenomenon].append(pair)
            for phenomenon, some in phenomena.items():
                score, values = accuracy(f"{name}: {phenomenon}", some, costs, beside)
                yield replace(score, part=KIND, in_training_text=count_in_training(values, found)), values

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
            f"{model} cannot be scored: its loss is nan or inf for {bad:,} of {len(costs):,} texts; allowed: finite "
            "numbers. Its training has diverged, or its precision is too low: try a lower learning_rate, or float32."
        )


def read_sets(paths: Sequence[str]) -> dict[str, list[Pair]]:
    """Return sets of pairs by their names in the config, which their files have."""
    return {Path(path).stem: read_pairs(path) for path in paths}


def bits_per_byte(
    on: str, chosen: list[tuple[str, Passage]], costs: Costs, beside: Mapping[str, Costs], kind: str
) -> tuple[Score, dict[str, float]]:
    """Return the bits per byte of documents, and by document its bits by the bytes of a mean document.

    Of documents whose responses are scored, both the bits and the bytes are those of the responses. So the mean over
    the documents is the bits of all by the bytes of all. A masked model's are no likelihood, and have a name of their
    own.
    """
    sizes = np.array([bytes_of(text) for _, text in chosen], np.float64)

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


def accuracy(
    on: str, pairs: Sequence[Pair], costs: Costs, beside: Mapping[str, Costs]
) -> tuple[Score, dict[str, float]]:
    """Return the share of pairs whose good sentence is likelier, and 1 or 0 by pair; half where both are as likely."""

    def right(own: Costs) -> np.ndarray:
        margins = np.array([own[pair.bad] - own[pair.good] for pair in pairs])
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
        items=len(pairs),
        chance=0.5,
        baselines={name: float(right(own).mean()) for name, own in beside.items()},
    )
    return score, dict(zip((pair.item for pair in pairs), values.tolist(), strict=True))


def write_items(path: str | Path, found: Sequence[tuple[Score, dict[str, float]]]) -> None:
    """Write the values of scores by item as Parquet: score, item, value."""
    rows = [
        {"score": score.name, "item": item, "value": value} for score, values in found for item, value in values.items()
    ]
    with atomic_write(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, ITEMS), partial, compression="zstd")


def in_a_line(scores: Sequence[Score]) -> str:
    """Return the scores that stand for the others, with what each is to be held against."""
    said = []
    for score in scores:
        if score.leads:
            beside = ", ".join(f"{name} {value:.3f}" for name, value in score.compared_with.items())
            metric = score.metric.replace("_", " ")
            said.append(f"{score.on}: {metric} {score.value:.3f}{f' ({beside})' if beside else ''}")
    return "; ".join(said)
