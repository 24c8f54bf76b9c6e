"""The distinct words of a text, counted in bounded memory: what cuts a text into words, and which documents count."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from zlib import crc32

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tpulm.core.errors import UserError
from tpulm.core.random_streams import generator
from tpulm.specs.artifacts import SPECIAL_TOKENS

SPECIALS = list(SPECIAL_TOKENS)
SPACE = "▁"
# Of a piece of WordPiece that does not begin a word.
PREFIX = "##"


@dataclass(frozen=True)
class Cutting:
    """How words are cut before a vocabulary is trained: longer ones into parts, one character always on its own.

    A vocabulary has no pieces across cuts. The memory of a trainer depends on the longest word.
    """

    longest: int
    alone: str = ""

    def parts(self, word: str) -> list[str]:
        """Return a word in parts of 1 to `longest` characters."""
        if len(word) <= self.longest and not (self.alone and self.alone in word):
            return [word]
        alone = re.escape(self.alone)
        return re.findall(f"{alone}|[^{alone}]{{1,{self.longest}}}" if alone else f"(?s).{{1,{self.longest}}}", word)


WHOLE = Cutting(longest=256)
# The time that WordPiece takes for a word grows with the square of its length. A word that begins with its prefix could
# not be told from the middle of another word.
SHORT = Cutting(longest=100, alone=PREFIX[0])


def untrained(model: models.Model) -> Tokenizer:
    """Return a tokenizer with the published procedure's normalizer, pre-tokenizer, template and decoder."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"')])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    if isinstance(model, models.WordPiece):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(),
                pre_tokenizers.Split(SHORT.alone, "isolated"),
                pre_tokenizers.FixedLength(SHORT.longest),
            ]
        )
        tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex(f"^{PREFIX}"), ""), decoders.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", SPECIALS.index("[CLS]")), ("[SEP]", SPECIALS.index("[SEP]"))],
    )
    return tokenizer


def assemble(model: models.Model) -> Tokenizer:
    """Return the tokenizer of a trained model, in which the special tokens have the ids 0 to 4."""
    tokenizer = untrained(model)
    # The space before a masked word belongs to that word: [MASK] takes it along.
    tokenizer.add_special_tokens([AddedToken(t, lstrip=t == "[MASK]", normalized=False) for t in SPECIALS])
    return tokenizer


def check_smallest(vocab_size: int, characters: int, what: str) -> None:
    """Check that a vocabulary can hold every character. Raises UserError.

    characters  pieces of one character that it needs
    what        describes them
    """
    smallest = characters + len(SPECIALS)
    if vocab_size < smallest:
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size}; allowed: {smallest} or more, because the text has {what}, and "
            f"there are {len(SPECIALS)} special tokens."
        )


def check_largest(vocab_size: int, largest: int) -> None:
    """Check that the text has as many pieces as were asked for. Raises UserError."""
    if largest < vocab_size:
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size}; allowed: {largest} or less, "
            "because the text has no more pieces that repeat."
        )


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
        self,
        read: Callable[[np.ndarray], Iterable[list[str]]],
        lengths: Sequence[np.ndarray],
        characters: int,
        seed: int,
    ):
        """Draw.

        read        function that yields the documents with ascending numbers, in lists
        lengths     characters of each document, integers of shape [documents] of some at a time
        characters  how many of the corpus to take, on average
        """
        self.read = read
        self.corpus_documents = sum(map(len, lengths))
        self.corpus_characters = sum(int(own.sum(dtype=np.int64)) for own in lengths)
        # At least as high as the lowest, so that one document is chosen.
        lowest = min((draws.min() for _, _, draws in drawn(seed, lengths)), default=1.0)
        limit = max(lowest, characters / max(self.corpus_characters, 1))
        chosen, self.characters = [np.empty(0, np.int64)], 0
        for first, own, draws in drawn(seed, lengths):
            rows = np.flatnonzero(draws <= limit)
            chosen.append(rows + first)
            self.characters += int(own[rows].sum(dtype=np.int64))
        self.chosen = np.concatenate(chosen)
        self.documents = len(self.chosen)

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


def drawn(seed: int, lengths: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield some documents at a time: the number of the first, their lengths, and for each a number from 0 to 1."""
    draws, first = generator(seed), 0
    for own in lengths:
        for start in range(0, len(own), DRAWS):
            some = own[start : start + DRAWS]
            yield first + start, some, draws.random(len(some))
        first += len(own)


SPECIAL = re.compile("|".join(map(re.escape, SPECIALS)))
# Distinct words are held up to this size: the sum of their lengths in characters, and WORD for each word. It bounds the
# memory of counting and of each trainer.
LIMIT = 7_000_000
WORD = 6
SLICE = 1_000_000  # characters that are split into words at a time


@dataclass(frozen=True)
class Words:
    """The distinct words of a text: occurrences by word, in sorted order, and the characters of all words.

    first  characters that begin a word
    other  characters at any other place in a word
    """

    counts: dict[str, int]
    first: set[str]
    other: set[str]


def count_words(batches: Iterable[list[str]], cutting: Cutting) -> Words:
    """Count words as the pre-tokenizer makes them: "a  b" has "▁a", "▁" and "▁b", cut into parts by `cutting`.

    If the distinct words become too many, the rarest are dropped; of equally rare ones, those with the highest
    checksum, so that the others are from all over the text. Raises UserError if there are none.
    """
    counts = Counter[str]()
    first, other = set[str](), set[str]()
    size = 0
    for text in slices(batches):
        known = len(counts)
        counts.update(text.split(" "))
        for word in list(islice(counts, known, None)):
            parts = cutting.parts(word)
            if len(parts) > 1:
                count = counts.pop(word)
                size += sum(len(part) + WORD for part in set(parts) if part not in counts)
                for part in parts:
                    counts[part] += count
            else:
                size += len(word) + WORD
            first.update(part[0] for part in parts)
            other.update(*(part[1:] for part in parts))
        if size > 2 * LIMIT:
            counts, size = most_frequent(counts)
    if not counts:
        raise UserError("corpus: the training split has no words, so that a tokenizer cannot be trained.")
    if size > LIMIT:
        counts, _ = most_frequent(counts)
    return Words(dict(sorted(counts.items())), first, other)


def slices(batches: Iterable[list[str]]) -> Iterator[str]:
    """Yield the text in strings of about SLICE characters, normalized, in which splitting at spaces gives the words.

    A special token in the text becomes a space, since it is never cut into pieces. A text that begins with a space
    gets no second one from the pre-tokenizer.
    """
    held: list[str] = []
    size = 0
    for texts in batches:
        for document in texts:
            text = SPECIAL.sub(" ", document)
            start = 0
            while start < len(text):
                stop = text.find(" ", start + SLICE)
                stop = len(text) if stop < 0 else stop
                held.append(text[start + (text[start] in (" ", SPACE)) : stop])
                size += stop - start
                start = stop
                if size >= SLICE:
                    yield normalized(held)
                    held, size = [], 0
    if held:
        yield normalized(held)


def normalized(texts: list[str]) -> str:
    """Join texts by spaces, and replace and insert what the normalizer and the pre-tokenizer do."""
    text = " ".join(texts).replace("``", '"').replace("''", '"').replace(SPACE, " ")
    return SPACE + text.replace(" ", " " + SPACE)


def most_frequent(counts: Counter[str]) -> tuple[Counter[str], int]:
    """Return the most frequent words, up to LIMIT, and their size."""
    order = sorted(counts.items(), key=lambda item: (-item[1], crc32(item[0].encode()), item[0]))
    sizes = list(accumulate(len(word) + WORD for word, _ in order))
    kept = bisect_right(sizes, LIMIT)
    return Counter(dict(order[:kept])), sizes[kept - 1] if kept else 0


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text, uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
