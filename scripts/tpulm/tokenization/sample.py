"""Which documents a vocabulary is trained on: all, or a seeded sample of a corpus that is larger than needed."""

from collections.abc import Callable, Iterable, Iterator

from tpulm.core.random_streams import generator

CHARACTERS = 100_000_000  # of the text that the vocabulary of a causal model is trained on, at most


class Sample:
    """Documents of a corpus, each drawn with the same probability, about `characters` worth; all if there are no more.

    Iterating yields the chosen documents, in the order of the corpus and in lists of at least one. One document at
    least is chosen. Only one batch is held in memory.
    """

    def __init__(self, read: Callable[[], Iterable[list[str]]], characters: int, seed: int):
        """Read the corpus once to learn its size.

        read        returns the batches of documents from the start
        characters  how many of the corpus to take, on average
        """
        self.read, self.seed = read, seed
        self.corpus_documents = self.corpus_characters = self.documents = self.characters = 0
        lowest, draws = 1.0, generator(seed)
        for texts in read():
            self.corpus_documents += len(texts)
            self.corpus_characters += sum(map(len, texts))
            lowest = min(lowest, draws.random(len(texts)).min(initial=1.0))
        self.limit = max(lowest, characters / max(self.corpus_characters, 1))

    def __iter__(self) -> Iterator[list[str]]:
        self.documents = self.characters = 0
        draws = generator(self.seed)
        for texts in self.read():
            chosen = [text for text, draw in zip(texts, draws.random(len(texts)), strict=True) if draw <= self.limit]
            self.documents += len(chosen)
            self.characters += sum(map(len, chosen))
            if chosen:
                yield chosen

    def record(self) -> dict[str, int]:
        """Return how many documents and characters of how many the last complete iteration yielded."""
        return {
            "training_documents": self.documents,
            "training_characters": self.characters,
            "corpus_documents": self.corpus_documents,
            "corpus_characters": self.corpus_characters,
        }
