"""Draw a random sample of the documents of a corpus."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tpulm.core.random_streams import generator

# Characters on which the vocabulary of a causal model is trained, and a tokenizer is evaluated, at most. SentencePiece
# holds up to some 60 bytes for each.
CHARACTERS = 50_000_000
DRAWS = 1 << 20  # random numbers that are made at once


class Sample:
    """Documents of a corpus, each drawn with the same probability, about `characters` worth; all if there are no more.

    Iterating yields the chosen documents, in the order of the corpus and in lists of at least one. One document at
    least is chosen. Only one list is held in memory.
    """

    def __init__(
        self,
        read: Callable[[np.ndarray], Iterable[list[str]]],
        lengths: Sequence[np.ndarray],
        characters: int,
        seed: int,
    ):
        """Draw the documents.

        read        yields the documents with these ascending numbers, in lists
        lengths     characters of each document, in arrays of integers of shape [documents]
        characters  number to take, on average
        """
        self.read = read
        self.corpus_documents = sum(map(len, lengths))
        self.corpus_characters = sum(int(part.sum(dtype=np.int64)) for part in lengths)
        # The limit is at least the lowest draw, so that one document is chosen.
        lowest = min((draws.min() for _, _, draws in drawn(seed, lengths)), default=1.0)
        limit = max(lowest, characters / max(self.corpus_characters, 1))
        chosen, self.characters = [np.empty(0, np.int64)], 0
        for first, chunk, draws in drawn(seed, lengths):
            rows = np.flatnonzero(draws <= limit)
            chosen.append(rows + first)
            self.characters += int(chunk[rows].sum(dtype=np.int64))
        self.chosen = np.concatenate(chosen)
        self.documents = len(self.chosen)

    def __iter__(self) -> Iterator[list[str]]:
        return iter(self.read(self.chosen))

    def record(self) -> dict[str, int]:
        """Return the numbers of documents and characters, of the sample and of the corpus."""
        return {
            "training_documents": self.documents,
            "training_characters": self.characters,
            "corpus_documents": self.corpus_documents,
            "corpus_characters": self.corpus_characters,
        }


def drawn(seed: int, lengths: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield chunks of documents: the number of the first, their lengths, and a draw from 0 to 1 for each."""
    draws, first = generator("sampled documents", seed), 0
    for part in lengths:
        for start in range(0, len(part), DRAWS):
            chunk = part[start : start + DRAWS]
            yield first + start, chunk, draws.random(len(chunk))
        first += len(part)
