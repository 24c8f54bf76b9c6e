"""Minimal pairs: sentences of which a model should find the good one likelier (BLiMP; Warstadt et al. 2020).

A file of pairs is JSON Lines: pairID, phenomenon, sentence_good, sentence_bad.

Pairs can be made of text: each sentence beside one that an edit has broken. What is broken leaves
the frequencies of words as they are, or changes them both ways as often: to count words, or to
prefer the shorter sentence, is no help.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tpulm.core.errors import UserError
from tpulm.core.files import write_text
from tpulm.core.random_streams import generator
from tpulm.corpus.files import import_datasets, load_hub, read_files, read_hub, reason
from tpulm.corpus.rows import Form, encodable

SENTENCES = ("sentence_good", "sentence_bad")


@dataclass(frozen=True)
class Pair:
    """A good sentence and a bad one; `item` names the pair within its set."""

    item: str
    phenomenon: str
    good: str
    bad: str


@dataclass(frozen=True)
class PairSet:
    """Pairs that are scored together, under a name in words."""

    name: str
    pairs: list[Pair]


class PairForm(Form):
    """How rows become pairs: of the columns of BLiMP, and the one that says what a pair is about."""

    def __post_init__(self) -> None:
        """Name the columns, each with the key of the config that names it."""
        self.templates: list = []
        phenomenon = self.recipe["phenomenon"]
        self.columns = {name: name for name in SENTENCES} | {phenomenon: "phenomenon"}

    def document(self, place: object, values: Sequence[object]) -> Any:
        """Return phenomenon, good and bad sentence of a row. Raises UserError for what is no text."""
        for name, value in zip(self.columns, values, strict=True):
            if not isinstance(value, str) or not value.strip():
                raise UserError(f"{place}: {name} ({self.where}) holds {value!r}; allowed: text.")
        good, bad, phenomenon = map(encodable, map(str, values))
        return phenomenon, good, bad


def read_pairs(path: str | Path, name: str) -> PairSet:
    """Return the pairs of a file that `write_pairs` wrote, under a name in words."""
    with open(path, encoding="utf-8", newline="\n") as file:  # str.splitlines would also split at U+2028 and others
        rows = [json.loads(line) for line in file]
    return PairSet(name, [Pair(r["pairID"], r["phenomenon"], r["sentence_good"], r["sentence_bad"]) for r in rows])


def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> None:
    """Write pairs as JSON Lines."""
    rows = (
        {"pairID": one.item, "phenomenon": one.phenomenon, "sentence_good": one.good, "sentence_bad": one.bad}
        for one in pairs
    )
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def fetch_pairs(name: str, recipe: Mapping, files: Sequence[str]) -> Iterator[Pair]:
    """Yield the pairs of a set that the config names, from its files or from a dataset of the hub.

    name  of the set; recipe  what the config says of it

    Raises UserError for what cannot be read, and for a set without pairs.
    """
    where, found = f"evaluation.pairs.sets.{name}", 0
    form = PairForm(where, recipe)
    rows: Any = read_dataset(where, recipe, form) if "dataset" in recipe else read_files(files, "line", form)
    for batch in rows:
        for row in batch:
            yield Pair(str(found), *row)
            found += 1
    if not found:
        raise UserError(f"{where} has no pairs; allowed: rows with {', '.join(form.columns)}.")


def read_dataset(where: str, recipe: Mapping, form: Form) -> Iterator:
    """Yield the rows of a dataset, of all its configurations unless the recipe names one, in batches."""
    for name in [recipe["name"]] if "name" in recipe else configurations(where, recipe):
        own = {**recipe, "name": name, "splits": {"train": recipe["split"]}}
        yield from read_hub(load_hub(where, own, form), recipe["dataset"], form)


def configurations(where: str, recipe: Mapping) -> list[str]:
    """Return the names of the configurations of a dataset. Raises UserError where it is not to be had."""
    datasets = import_datasets()
    try:
        return datasets.get_dataset_config_names(recipe["dataset"], revision=recipe.get("revision"))
    except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"{where}.dataset is {recipe['dataset']}, whose configurations could not be listed ({reason(error)}); it "
            "needs the network or a copy in the cache of `datasets`, and HF_TOKEN if it is not public."
        ) from error


DOCUMENTS = 5000  # that sentences are taken from, at most
SHORTEST, LONGEST = 5, 20  # words of a sentence
BOUNDARY = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(\[])")
# Of each two, one agrees with what is around it.
AGREEMENT = [("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"), ("this", "these"), ("a", "an")]
OTHERS = {one: other for pair in AGREEMENT for one, other in (pair, pair[::-1])}
OPENING = {")": "(", "]": "[", "}": "{"}
# For each word, all words that are as frequent, of words that come twice or more.
Equals = dict[str, list[str]]


class Edit(NamedTuple):
    """A sentence, as words, and broken; `change` is what was taken out and what was put in, of edits of two ways."""

    good: list[str]
    bad: list[str]
    change: tuple[str, str] = ("", "")


def sentences(texts: Iterable[str]) -> list[str]:
    """Return the sentences of texts that are neither short nor long, each once, with single spaces between words."""
    found: dict[str, None] = {}
    for text in texts:
        for sentence in BOUNDARY.split(" ".join(text.split())):
            if SHORTEST <= sentence.count(" ") + 1 <= LONGEST:
                found[sentence] = None
    return list(found)


def as_frequent(known: Iterable[str]) -> Equals:
    """Return the words of sentences that can stand for each other."""
    counts = Counter(word for sentence in known for word in sentence.split() if word.isalpha())
    groups: dict[int, list[str]] = defaultdict(list)
    for word in sorted(counts):
        groups[counts[word]].append(word)
    return {word: groups[count] for word, count in counts.items() if count > 1 and len(groups[count]) > 1}


def swapped(words: list[str], equals: Equals) -> Iterator[Edit]:
    """Yield the sentence with two neighbouring words swapped."""
    for place in range(1, len(words) - 1):
        one, other = words[place : place + 2]
        if one.isalpha() and other.isalpha() and one.lower() != other.lower():
            yield Edit(words, [*words[:place], other, one, *words[place + 2 :]])


def replaced(words: list[str], equals: Equals) -> Iterator[Edit]:
    """Yield the sentence with a word replaced by one that is as frequent."""
    for place, word in enumerate(words):
        for other in equals.get(word, []) if place else []:
            if other != word:
                yield Edit(words, [*words[:place], other, *words[place + 1 :]])


def disagreeing(words: list[str], equals: Equals) -> Iterator[Edit]:
    """Yield the sentence with a word replaced that agrees with others in English."""
    for place, word in enumerate(words):
        if word in OTHERS:
            yield Edit(words, [*words[:place], OTHERS[word], *words[place + 1 :]], (word, OTHERS[word]))


def unbalanced(words: list[str], equals: Equals) -> Iterator[Edit]:
    """Yield the sentence without one of its closing brackets or, if it has no brackets, with one too many."""
    text, open_ones, closing = " ".join(words), [], []
    for place, mark in enumerate(text):
        if mark in OPENING.values():
            open_ones.append(mark)
        elif mark in OPENING:
            if not open_ones or open_ones.pop() != OPENING[mark]:
                return
            closing.append(place)
    for place in closing if not open_ones else []:
        yield Edit(words, (text[:place] + text[place + 1 :]).split(), (text[place], ""))
    if not closing and not open_ones:
        for place, word in enumerate(words):
            if word.isalpha():
                yield Edit(words, [*words[:place], word + ")", *words[place + 1 :]], ("", ")"))


def one_each(known: Sequence[str], edits: Callable, equals: Equals, *key: int) -> Iterator[Edit]:
    """Yield an edit of each sentence that has one, in an order by the key."""
    random = generator(*key)
    for place in random.permutation(len(known)):
        candidates = list(edits(known[place].split(), equals))
        if candidates:
            yield candidates[random.integers(len(candidates))]


def both_ways(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield those edits, two by two, of which the second changes what the first one puts in its place."""
    waiting: dict[tuple[str, str], list[Edit]] = defaultdict(list)
    for edit in edits:
        if waiting[edit.change[::-1]]:
            yield waiting[edit.change[::-1]].pop(0)
            yield edit
        else:
            waiting[edit.change].append(edit)


KINDS: dict[str, Callable] = {
    "neighbouring words swapped": swapped,
    "word replaced by one as frequent": replaced,
    "agreement broken": disagreeing,
    "bracket unbalanced": unbalanced,
}
# Those of which each is made as often as its reverse.
TWO_WAYS = (disagreeing, unbalanced)


def make_pairs(texts: Sequence[str], number: int, seed: int) -> list[Pair]:
    """Return pairs of sentences of texts, up to `number` of each of KINDS: of some text there are none of a kind."""
    known = sentences(texts)
    equals, found = as_frequent(known), []
    for kind, (name, edits) in enumerate(KINDS.items()):
        made = one_each(known, edits, equals, seed, kind)
        if edits in TWO_WAYS:
            made = both_ways(made)
        for index, edit in enumerate(islice(made, number)):
            found.append(Pair(f"{kind}-{index}", name, " ".join(edit.good), " ".join(edit.bad)))
    return found
