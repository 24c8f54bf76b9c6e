"""What a model is scored on, and its scores: bits per byte of held-out text, and pairs of sentences.

What is in the training text has the n-grams of tpulm.corpus.decontamination.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write, read_json
from tpulm.core.scores import (
    IN_TRAINING,
    IN_TRAINING_TEXT,
    KIND,
    MASKED,
    OF_TEXT,
    WHOLE,
    Score,
    write_scores,
)
from tpulm.corpus.decontamination import contained, hash_ngrams, hash_words
from tpulm.evaluation.documents import Passage, TextSet, bytes_of, passages_of, read_sample
from tpulm.evaluation.intervals import interval
from tpulm.evaluation.minimal_pairs import PairSet, read_pairs
from tpulm.specs.artifacts import MADE_PAIRS, VALIDATION


def find_overlap(
    sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], training: Iterable[Sequence[str]], n: int
) -> dict:
    """Return which items of each set share a word n-gram with a training document.

    sets      by name: the items and their texts
    training  the training documents in order, in batches

    items, checked   how many there are, and have n words or more
    overlapping, share   of these, how many and which part share one
    found            of each that does: item; ngrams, the share of its n-grams that the training text has; document, the
                     first training document with one, by its number; shared, the words of that n-gram
    """
    hashed = {name: hash_ngrams(*hash_words(texts), n, short=False) for name, (_, texts) in sets.items()}
    wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in hashed.values())]))
    documents = first_documents(wanted, training, n)
    record = {}
    for name, (items, texts) in sets.items():
        hashes, counts = hashed[name]
        own = documents[np.searchsorted(wanted, hashes)]
        begins = np.cumsum(counts) - counts
        found = []
        for item, text, begin, count in zip(items, texts, begins, counts, strict=True):
            places = own[begin : begin + count]
            if (places >= 0).any():
                place = int(np.flatnonzero(places >= 0)[0])
                words = [word for word in text.split() if any(map(str.isalnum, word))][place : place + n]
                share = float((places >= 0).mean())
                found.append({"item": item, "ngrams": share, "document": int(places[place]), "shared": " ".join(words)})
        checked = int((counts > 0).sum())
        share = len(found) / checked if checked else 0.0
        figures = {"items": len(items), "checked": checked, "overlapping": len(found), "share": share}
        record[name] = {**figures, "found": found}
    return record


def first_documents(wanted: np.ndarray, training: Iterable[Sequence[str]], n: int) -> np.ndarray:
    """Return the number of the first training document that has each n-gram, int64; -1 where none has it.

    wanted  hashes of n-grams, uint64, sorted, each once
    """
    documents = np.full(len(wanted), -1, np.int64)
    start = 0
    for texts in training:
        hashes, counts = hash_ngrams(*hash_words(texts), n, short=False)
        there = np.flatnonzero(contained(hashes, wanted))
        owners = start + np.searchsorted(np.cumsum(counts), there, side="right")
        # From the last to the first, so that the first one stays.
        places = np.searchsorted(wanted, hashes[there])[::-1]
        new = documents[places] < 0
        documents[places[new]] = owners[::-1][new]
        start += len(texts)
    return documents


def told(found: Mapping, n: int) -> Iterator[str]:
    """Yield a line about each set that overlaps; found  as `find_overlap` returns it for n words."""
    for name, own in found.items():
        if own["overlapping"]:
            words = f"{n} words with training documents ({100 * own['share']:.1f} %)"
            yield f"{name}: {own['overlapping']} of {own['checked']} share {words}"


def overlapping(records: Iterable[Mapping], name: str) -> set[str]:
    """Return the items of a set that any of the texts overlaps with; records  as `find_overlap` returns them."""
    return {found["item"] for record in records for found in record.get(name, {"found": []})["found"]}


# What the pairs that are made of the corpus are called.
MADE = "pairs made of held-out text"
BASELINES = {"unigram": "unigram", "kneser_ney": "5-gram"}
ITEMS = pa.schema([("score", pa.string()), ("item", pa.string()), ("value", pa.float64())])
Costs = Mapping[Passage, float]


@dataclass(frozen=True)
class Material:
    """Texts and pairs that a model is scored on, with what stands beside its scores.

    texts, pairs   the sets
    baselines      by name: what each text costs a simpler model, nats
    overlaps       what training texts share with it, as `find_overlap` says it
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
    def of(cls, inputs: Mapping, recipe: Mapping, kind: str) -> "Material":
        """Return what a job names: inputs texts, pairs, ngrams, overlaps; recipe texts, pairs, documents, step.

        kind  of the model, masked or causal: masked ones are trained on all tokens
        """
        names = zip(inputs["texts"], recipe["texts"], strict=True)
        texts = [one for path, name in names for one in read_sample(path, name, recipe["documents"])]
        texts = [one.whole for one in texts] if kind == MASKED else texts
        baselines: dict[str, dict[Passage, float]] = {name: {} for name in BASELINES.values()}
        for path in inputs["ngrams"]:
            columns = pq.read_table(path).to_pydict()
            for column, name in BASELINES.items():
                baselines[name] |= dict(zip(passages_of(columns), columns[column], strict=True))
        return cls(
            texts,
            read_sets(inputs["pairs"], recipe["pairs"]),
            {name: own for name, own in baselines.items() if own},
            [read_json(path)["sets"] for path in inputs["overlaps"]],
            recipe.get("step"),
            recipe.get("selects"),
        )

    @property
    def distinct(self) -> list[Passage]:
        """Every text that is to be scored, each once."""
        held_out = [text for one in self.texts for text in one.texts]
        return list(dict.fromkeys([*held_out, *sentences_of(self.pairs)]))

    def results(self, costs: Costs, kind: str, baselines: Mapping[str, Costs]) -> Iterator[tuple[Score, dict]]:
        """Yield each score of a model with its value by item.

        costs   of each text, nats; kind  masked or causal; baselines  of models that stand beside it
        """
        beside = {**self.baselines, **baselines}
        for texts in self.texts:
            chosen = list(zip(texts.items, texts.texts, strict=True))
            for part, on, some in self.parts(texts.name, texts.scored, chosen):
                score, values = bits_per_byte(on, some, costs, beside, kind)
                yield replace(score, part=part, split=texts.split), values
        for pairs in self.pairs:
            by_item = [(pair.item, pair) for pair in pairs.pairs]
            for part, on, some in self.parts(pairs.name, pairs.name, by_item):
                score, values = accuracy(on, some, costs, beside)
                yield replace(score, part=part, split=VALIDATION if pairs.name == self.selects else None), values
            phenomena = defaultdict(list)
            for item, pair in by_item:
                phenomena[pair.phenomenon].append((item, pair))
            for phenomenon, some in phenomena.items():
                score, values = accuracy(f"{pairs.name}: {phenomenon}", some, costs, beside)
                yield replace(score, part=KIND), values

    def parts(self, name: str, on: str, chosen: list[tuple]) -> Iterator[tuple[str, str, list[tuple]]]:
        """Yield a set, and apart those of its items that are in a training text: which part it is, its name, itself.

        on  what of the set `name` is scored, in words
        """
        yield WHOLE, on, chosen
        seen = overlapping(self.overlaps, name)
        inside = [one for one in chosen if one[0] in seen]
        if inside:
            yield IN_TRAINING_TEXT, f"{on}{IN_TRAINING}", inside

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


def read_sets(paths: Sequence[str], names: Sequence[str]) -> list[PairSet]:
    """Return sets of pairs by their names in the config, those that have pairs."""
    sets = [read_pairs(path, MADE if name == MADE_PAIRS else name) for path, name in zip(paths, names, strict=True)]
    return [one for one in sets if one.pairs]


def sentences_of(sets: Sequence[PairSet]) -> list[str]:
    """Return the sentences of sets of pairs."""
    return [sentence for one in sets for pair in one.pairs for sentence in (pair.good, pair.bad)]


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


def in_a_line(scores: Sequence[Score]) -> str:
    """Return the scores that stand for the others, with what each is to be held against."""
    said = []
    for score in scores:
        if score.leads:
            beside = ", ".join(f"{name} {value:.3f}" for name, value in score.compared_with.items())
            metric = score.metric.replace("_", " ")
            said.append(f"{score.on}: {metric} {score.value:.3f}{f' ({beside})' if beside else ''}")
    return "; ".join(said)


def spoken(scores: Sequence[Score]) -> Iterator[str]:
    """Yield a line about each score."""
    for score in scores:
        beside = "".join(f", {name} {value:.3f}" for name, value in score.baselines.items())
        limits = "" if score.low is None else f" ({score.low:.3f} to {score.high:.3f})"
        yield f"{score.name} {score.value:.3f}{limits}{beside}"
