"""Count unigram and Kneser-Ney 5-gram models (Chen and Goodman 1999), the baselines of scores on texts."""

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

    keys      of each n-gram, sorted: number of its first n-1 tokens in the table below, times the base, plus last token
    counts    of each n-gram: its occurrences, or, below the highest order, the different tokens before it
    totals    sum of these counts, by the number of the first n-1 tokens
    kinds     different n-grams, by the number of the first n-1 tokens
    discount  subtracted from each count
    """

    keys: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float


class KneserNey:
    """A 5-gram model of token ids."""

    def __init__(self, documents: Ids, vocabulary: int, discounts: Sequence[float] | None = None):
        """Count the n-grams of documents with marks of start and end.

        vocabulary  number of tokens
        discounts   of each order, from 1 on; by default n1 / (n1 + 2 n2), where nk is the number of n-grams with the
                    count k (Ney, Essen and Kneser 1994)
        """
        self.start, self.base = vocabulary + 1, vocabulary + 2
        stream, predicted = joined([[*ids, vocabulary] for ids in documents], self.start)
        numbers, keys = [np.zeros(len(stream), np.int64)], []
        for _ in range(ORDER):
            unique_keys, numbered = np.unique(shifted(numbers[-1]) * self.base + stream, return_inverse=True)
            keys.append(unique_keys)
            numbers.append(numbered)
        places = np.flatnonzero(predicted)
        self.tables: list[Table] = []
        for order in range(ORDER, 0, -1):
            counts = np.bincount(numbers[order][places], minlength=len(keys[order - 1]))
            # One place of each n-gram remains, so that the next lower order counts different n-grams.
            _, first = np.unique(numbers[order][places], return_index=True)
            places = places[first]
            discount = estimate(counts) if discounts is None else discounts[order - 1]
            context = keys[order - 1] // self.base
            size = len(keys[order - 2]) if order > 1 else 1
            totals = np.bincount(context, counts, size)
            kinds = np.bincount(context[counts > 0], minlength=size)
            self.tables.insert(0, Table(keys[order - 1], counts, totals, kinds, discount))

    def nats(self, documents: Ids, scored: Scored = None) -> np.ndarray:
        """Return the negative log-likelihood of each document in nats, end excluded, float64 [documents].

        scored  see `sum_by_document`
        """
        stream, predicted = joined(documents, self.start)
        numbers = np.zeros(len(stream), np.int64)
        shares = np.full(len(stream), 1 / (self.base - 1))
        for table in self.tables:
            context = shifted(numbers)
            keys = context * self.base + stream
            places = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
            known = (table.keys[places] == keys) & (context >= 0)
            counts = np.where(known, table.counts[places], 0)
            totals = np.where(context >= 0, table.totals[context], 0)
            backoff = table.discount * table.kinds[context] * shares
            smoothed = (np.maximum(counts - table.discount, 0) + backoff) / np.maximum(totals, 1)
            shares = np.where(totals > 0, smoothed, shares)
            numbers = np.where(known, places, -1)
        return sum_by_document(-np.log(shares[predicted]), documents, scored)


class Unigram:
    """A model of token ids without context, by their frequencies plus one (Laplace)."""

    def __init__(self, documents: Ids, vocabulary: int):
        """Count the tokens of documents; vocabulary  number of tokens."""
        flat = np.fromiter((token for ids in documents for token in ids), np.int64)
        counts = np.bincount(flat, minlength=vocabulary) + 1
        self.costs = np.log(counts.sum()) - np.log(counts)

    def nats(self, documents: Ids, scored: Scored = None) -> np.ndarray:
        """Return the negative log-likelihood of each document in nats, see `KneserNey.nats`."""
        flat = np.fromiter((token for ids in documents for token in ids), np.int64)
        return sum_by_document(self.costs[flat], documents, scored)


def joined(documents: Ids, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return concatenated documents with start marks, int64 [tokens], and bool [tokens], False for marks."""
    marks = [start] * (ORDER - 1)
    stream = np.fromiter((token for ids in documents for token in (*marks, *ids)), np.int64)
    return stream, stream != start


def shifted(values: np.ndarray) -> np.ndarray:
    """Return values shifted right by one, with 0 as the first."""
    return np.concatenate([np.zeros(1, values.dtype), values[:-1]])


def estimate(counts: np.ndarray) -> float:
    """Return the discount of an order from its counts; 0.5 if none of them is 1."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once else 0.5


def sum_by_document(values: np.ndarray, documents: Ids, scored: Scored = None) -> np.ndarray:
    """Return the sum of the values of each document's tokens, float64 [documents].

    scored  1 for each token of a document that counts, 0 for others; None if all tokens of it count
    """
    if scored is not None:
        counted = (np.ones(len(ids)) if mask is None else mask for ids, mask in zip(documents, scored, strict=True))
        values = values * np.concatenate([np.empty(0), *counted])
    owners = np.repeat(np.arange(len(documents)), [len(ids) for ids in documents])
    return np.bincount(owners, values, len(documents))


# Limit of counted tokens: each takes some 500 bytes of memory.
TOKENS = 10_000_000
# Characters of about as many tokens, in vocabularies with long tokens.
CHARACTERS = 5 * TOKENS


def encoded_documents(tokenizer: TextTokenizer, documents: Iterable[Sequence[str]]) -> list[np.ndarray]:
    """Return the token ids of each document, int32 [tokens], up to TOKENS in all; documents  in batches."""
    encoded: list[np.ndarray] = []
    room = TOKENS
    for texts in documents:
        for ids in tokenizer.encode(list(texts)):
            encoded.append(np.array(ids[:room], np.int32))
            room -= len(encoded[-1])
            if not room:
                return encoded
    return encoded


def ngram_costs(
    tokenizer: TextTokenizer, training: Sequence[np.ndarray], passages: Sequence[Passage]
) -> dict[str, np.ndarray]:
    """Return the negative log-likelihood of each passage in nats, float64 [passages], by n-gram model."""
    encoded = encode_passages(tokenizer, passages)
    ids, scored, unknown = [text.ids for text in encoded], [text.scored for text in encoded], unknown_nats(encoded)
    models = {"unigram": Unigram, "kneser_ney": KneserNey}
    return {name: model(training, tokenizer.size).nats(ids, scored) + unknown for name, model in models.items()}
