"""Models that count, unigram and 5-gram with Kneser-Ney smoothing (Chen and Goodman 1999): the baselines of texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tpulm.evaluation.material import Passage
from tpulm.evaluation.rows import encode_passages, unknown_nats
from tpulm.tokenization.tokenizer import TextTokenizer

ORDER = 5
Ids = Sequence[Sequence[int]]
Scored = Sequence[np.ndarray | None] | None


@dataclass(frozen=True)
class Table:
    """The n-grams of one order.

    keys    of each, sorted: the number of its first n-1 tokens in the table below, times the base, plus its last token
    counts  of each: how often it is there, or, below the highest order, after how many different tokens
    totals, kinds   by the number of the first n-1 tokens: the sum of these counts, and of how many n-grams
    discount        what is taken off each count
    """

    keys: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float


class KneserNey:
    """A 5-gram model of token ids."""

    def __init__(self, documents: Ids, vocabulary: int, discounts: Sequence[float] | None = None):
        """Count the n-grams of documents, each of which begins with marks of its start and ends with one of its end.

        vocabulary  how many tokens there are
        discounts   of each order, from 1 on; by default n1 / (n1 + 2 n2), where nk is how many n-grams have the count
                    k (Ney, Essen and Kneser 1994)
        """
        self.start, self.base = vocabulary + 1, vocabulary + 2
        stream, predicted = joined([[*ids, vocabulary] for ids in documents], self.start)
        numbers, keys = [np.zeros(len(stream), np.int64)], []
        for _ in range(ORDER):
            own, numbered = np.unique(shifted(numbers[-1]) * self.base + stream, return_inverse=True)
            keys.append(own)
            numbers.append(numbered)
        places = np.flatnonzero(predicted)
        self.tables: list[Table] = []
        for order in range(ORDER, 0, -1):
            counts = np.bincount(numbers[order][places], minlength=len(keys[order - 1]))
            # Of each n-gram, one place: there, the one that is shorter by its first token is counted once.
            _, first = np.unique(numbers[order][places], return_index=True)
            places = places[first]
            discount = estimate(counts) if discounts is None else discounts[order - 1]
            before = keys[order - 1] // self.base
            size = len(keys[order - 2]) if order > 1 else 1
            totals = np.bincount(before, counts, size)
            kinds = np.bincount(before[counts > 0], minlength=size)
            self.tables.insert(0, Table(keys[order - 1], counts, totals, kinds, discount))

    def nats(self, documents: Ids, scored: Scored = None) -> np.ndarray:
        """Return the negative log-likelihood of each document without its end, float64 [documents]."""
        stream, predicted = joined(documents, self.start)
        numbers = np.zeros(len(stream), np.int64)
        shares = np.full(len(stream), 1 / (self.base - 1))
        for table in self.tables:
            before = shifted(numbers)
            wanted = before * self.base + stream
            places = np.minimum(np.searchsorted(table.keys, wanted), len(table.keys) - 1)
            found = (table.keys[places] == wanted) & (before >= 0)
            counts = np.where(found, table.counts[places], 0)
            totals = np.where(before >= 0, table.totals[before], 0)
            rest = table.discount * table.kinds[before] * shares
            likely = (np.maximum(counts - table.discount, 0) + rest) / np.maximum(totals, 1)
            shares = np.where(totals > 0, likely, shares)
            numbers = np.where(found, places, -1)
        return sum_by_document(-np.log(shares[predicted]), documents, scored)


class Unigram:
    """A model of token ids without context, by their frequencies plus one (Laplace)."""

    def __init__(self, documents: Ids, vocabulary: int):
        """Count tokens; vocabulary  how many there are."""
        flat = np.fromiter((token for ids in documents for token in ids), np.int64)
        counts = np.bincount(flat, minlength=vocabulary) + 1
        self.costs = np.log(counts.sum()) - np.log(counts)

    def nats(self, documents: Ids, scored: Scored = None) -> np.ndarray:
        """Return the negative log-likelihood of each document, float64 [documents]; see `sum_by_document`."""
        flat = np.fromiter((token for ids in documents for token in ids), np.int64)
        return sum_by_document(self.costs[flat], documents, scored)


def joined(documents: Ids, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return documents one after another, int64 [tokens], marks of a start before each, and which are no marks."""
    marks = [start] * (ORDER - 1)
    stream = np.fromiter((token for ids in documents for token in (*marks, *ids)), np.int64)
    return stream, stream != start


def shifted(values: np.ndarray) -> np.ndarray:
    """Return values one place later, with 0 as the first."""
    return np.concatenate([np.zeros(1, values.dtype), values[:-1]])


def estimate(counts: np.ndarray) -> float:
    """Return the discount of an order by its counts; 0.5 where none of them is 1."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once else 0.5


def sum_by_document(values: np.ndarray, documents: Ids, scored: Scored = None) -> np.ndarray:
    """Return the sum of the values of each document, of which each token has one; float64 [documents].

    scored  of each document, 1 for each token whose value counts, and 0 for others; None where all do
    """
    if scored is not None:
        counted = (np.ones(len(ids)) if own is None else own for ids, own in zip(documents, scored, strict=True))
        values = values * np.concatenate([np.empty(0), *counted])
    owners = np.repeat(np.arange(len(documents)), [len(ids) for ids in documents])
    return np.bincount(owners, values, len(documents))


# Of training text that is counted, at most: each token takes some 500 bytes of memory.
TOKENS = 10_000_000
# About as many tokens as that, in vocabularies whose tokens are long.
CHARACTERS = 5 * TOKENS


def encoded_documents(tokenizer: TextTokenizer, documents: Iterable[Sequence[str]]) -> list[np.ndarray]:
    """Return the token ids of documents in batches, int32 [tokens] each, up to TOKENS of them in all."""
    found: list[np.ndarray] = []
    room = TOKENS
    for texts in documents:
        for ids in tokenizer.encode(list(texts)):
            found.append(np.array(ids[:room], np.int32))
            room -= len(found[-1])
            if not room:
                return found
    return found


def ngram_costs(
    tokenizer: TextTokenizer, training: Sequence[np.ndarray], passages: Sequence[Passage]
) -> dict[str, np.ndarray]:
    """Return the negative log-likelihood of each passage by each n-gram model, nats, float64 [passages]."""
    encoded = encode_passages(tokenizer, passages)
    ids, scored, unknown = [one.ids for one in encoded], [one.scored for one in encoded], unknown_nats(encoded)
    models = {"unigram": Unigram, "kneser_ney": KneserNey}
    return {name: model(training, tokenizer.size).nats(ids, scored) + unknown for name, model in models.items()}
