"""Which documents a vocabulary is trained on: all, or a seeded sample of a corpus that is larger than needed."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tpulm.core.random_streams import generator

# Of the text that the vocabulary of a causal model is trained on, and that a tokenizer is evaluated on, at most.
# SentencePiece holds some 20 bytes for each.
CHARACTERS = 50_000_000
DRAWS = 1 << 20  # made at once


class Sample:
    """Documents of a corpus, each drawn with the same probability, about `characters` worth; all if there are no more.

    Iterating yields the chosen documents, in the order of the corpus and in lists of at least one. One document at
    least is chosen. Only one list is held in memory.
    """

    def __init__(
        self, read: Callable[[np.ndarray], Iterable[list[str]]], lengths: np.ndarray, characters: int, seed: int
    ):
        """Draw.

        read        function that yields the documents with ascending numbers, in lists
        lengths     characters of each document, integers of shape [documents]
        characters  how many of the corpus to take, on average
        """
        self.read = read
        self.corpus_documents, self.corpus_characters = len(lengths), int(lengths.sum(dtype=np.int64))
        # A draw is compared with the lowest one, too, so that one document at least is chosen.
        limit = max(min((draws.min() for _, draws in drawn(seed, len(lengths))), default=1.0),
                    characters / max(self.corpus_characters, 1))  # fmt: skip
        chosen = [np.flatnonzero(draws <= limit) + first for first, draws in drawn(seed, len(lengths))]
        self.chosen = np.concatenate([np.empty(0, np.int64), *chosen])
        self.documents, self.characters = len(self.chosen), int(lengths[self.chosen].sum(dtype=np.int64))

    def __iter__(self) -> Iterator[list[str]]:
        return iter(self.read(self.chosen))

    def record(self) -> dict[str, int]:
        """Return how many documents and characters of how many are chosen."""
        return {
            "training_documents": self.documents,
            "training_characters": self.characters,
            "corpus_documents": self.corpus_documents,
            "corpus_characters": self.corpus_characters,
        }


def drawn(seed: int, documents: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield a number from 0 to 1 for each document, some at once, and the number of the first of these documents."""
    draws = generator(seed)
    for first in range(0, documents, DRAWS):
        yield first, draws.random(min(DRAWS, documents - first))
