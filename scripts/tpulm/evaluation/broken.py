"""Pairs of sentences that are made of text: each sentence beside one that an edit has broken."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tpulm.core.random_streams import generator
from tpulm.evaluation.pairs import Pair

DOCUMENTS = 5000  # that sentences are taken from, at most
SHORTEST, LONGEST = 5, 20  # words of a sentence
BOUNDARY = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(\[])")
# Of each pair, one agrees with what is around it.
AGREEMENT = ("is are", "was were", "has have", "does do", "this these", "a an")
OTHERS = {one: other for pair in map(str.split, AGREEMENT) for one, other in (pair, pair[::-1])}
# A closing bracket becomes one that nothing has opened.
CLOSING = {")": "]", "]": ")", "}": ")"}
OPENING = {")": "(", "]": "[", "}": "{"}


def sentences(texts: Iterable[str]) -> list[str]:
    """Return the sentences of texts that are neither short nor long, each once, with single spaces between words."""
    found: dict[str, None] = {}
    for text in texts:
        for sentence in BOUNDARY.split(" ".join(text.split())):
            if SHORTEST <= sentence.count(" ") + 1 <= LONGEST:
                found[sentence] = None
    return list(found)


@dataclass
class Breaker:
    """Breaks sentences; `equals` has for each word all words that are as frequent, of words that come twice or more."""

    equals: dict[str, list[str]]

    @classmethod
    def of(cls, known: Sequence[str]) -> "Breaker":
        """Return what breaks sentences of a text, of which these are known."""
        counts = Counter(word for sentence in known for word in sentence.split() if word.isalpha())
        groups: dict[int, list[str]] = defaultdict(list)
        for word in sorted(counts):
            groups[counts[word]].append(word)
        return cls({word: groups[count] for word, count in counts.items() if count > 1 and len(groups[count]) > 1})

    def swapped(self, words: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the places of two neighbouring words, and these the other way round."""
        for place in range(1, len(words) - 1):
            one, other = words[place : place + 2]
            if one.isalpha() and other.isalpha() and one.lower() != other.lower():
                yield place, [other, one]

    def replaced(self, words: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the places of words, and others that are as frequent in the text."""
        for place, word in enumerate(words):
            if place and word in self.equals:
                yield from ((place, [other]) for other in self.equals[word] if other != word)

    def disagreeing(self, words: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the places of words that agree with others in English, and what does not."""
        for place, word in enumerate(words):
            if word in OTHERS:
                yield place, [OTHERS[word]]

    def unclosed(self, words: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the places of closing brackets, and brackets of another kind; of sentences where brackets match."""
        text = " ".join(words)
        if any(text.count(OPENING[closing]) != text.count(closing) for closing in CLOSING):
            return
        for place, word in enumerate(words):
            for index, mark in enumerate(word):
                if mark in CLOSING:
                    yield place, [word[:index] + CLOSING[mark] + word[index + 1 :]]


KINDS = {
    "neighbouring words swapped": Breaker.swapped,
    "word replaced by one as frequent": Breaker.replaced,
    "agreement broken": Breaker.disagreeing,
    "bracket broken": Breaker.unclosed,
}


def make_pairs(texts: Sequence[str], number: int, seed: int) -> list[Pair]:
    """Return pairs of sentences of texts, up to `number` of each of KINDS: of some text there are none of a kind."""
    known = sentences(texts)
    breaker, found = Breaker.of(known), []
    for kind, (name, edits) in enumerate(KINDS.items()):
        random, made = generator(seed, kind), 0
        for place in random.permutation(len(known)):
            words = known[place].split()
            chosen = one_of(list(edits(breaker, words)), random)
            if chosen:
                where, instead = chosen
                bad = [*words[:where], *instead, *words[where + len(instead) :]]
                found.append(Pair(f"{kind}-{made}", name, known[place], " ".join(bad)))
                made += 1
            if made == number:
                break
    return found


def one_of(candidates: list, random: np.random.Generator) -> tuple[int, list[str]] | None:
    """Return one of several, or None where there is none."""
    return candidates[random.integers(len(candidates))] if candidates else None
