"""The distinct words of a text, counted in bounded memory, and the characters that a vocabulary of it has."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from zlib import crc32

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models

from tpulm.core.errors import UserError
from tpulm.tokenization.encoding import folded, split_at_spaces
from tpulm.tokenization.pipeline import Recipe, untrained

# Distinct chunks of text are held up to this size: the sum of their lengths in characters, and WORD for each. It bounds
# the memory of counting and of each trainer.
LIMIT = 7_000_000
WORD = 6
SLICE = 1_000_000  # characters that are split at a time
LONGEST_CHUNK = 2_000_000  # characters of a text without spaces that are split at a time
LONGEST = 256  # characters of a word; the memory of a trainer depends on it, and a vocabulary has no pieces across cuts
# What is longer than a word of a language, such as base64: no pieces are made of it, as in SentencePiece, unless it is
# most of the text. Chinese or Thai without spaces is not meant, nor are lines of short words.
LONG = re.compile(f"([!-~]{{{LONGEST + 1},}})")
CODE_POINTS = 0x110000
BOUNDARY = re.compile(" (?=[!-~])")  # a space that begins a word, whatever the normalizer makes of what follows


@dataclass(frozen=True)
class Words:
    """The distinct words of a text: occurrences by word, in sorted order, and the characters of all words.

    characters  occurrences of each
    first       those that begin a word
    other       those at any other place in a word
    long        characters of the text that match LONG, and are in none of these words
    """

    counts: dict[str, int]
    characters: dict[str, int]
    first: set[str]
    other: set[str]
    long: int = 0

    def restricted(self, alphabet: set[str]) -> "Words":
        """Return these words with the characters of an alphabet only, cut at those that it lacks."""
        rare = set(self.characters) - alphabet
        counts = self.counts
        if rare:
            cuts = dict.fromkeys(map(ord, rare), " ")  # no word has a space
            cut = Counter[str]()
            for word, count in counts.items():
                parts = [word] if rare.isdisjoint(word) else list(filter(None, word.translate(cuts).split(" ")))
                for part in parts:
                    cut[part] += count
            counts = dict(sorted(cut.items()))
        characters = {character: self.characters.get(character, 0) for character in sorted(alphabet)}
        # What follows a rare character begins a word of WordPiece, where any character may be.
        return Words(counts, characters, *((alphabet, alphabet) if rare else (self.first, self.other)), self.long)


def most_of(characters: Mapping[str, int], coverage: float) -> set[str]:
    """Return the most frequent characters that are this share of a text, as SentencePiece chooses them.

    characters  occurrences of each
    """
    total, reached, kept = sum(characters.values()), 0, set[str]()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if reached / total >= coverage:
            break
        reached += count
        kept.add(character)
    return kept


def count_words(batches: Iterable[list[str]], recipe: Recipe) -> Words:
    """Count the words that a recipe's pre-tokenizer makes of documents, given in lists; long ones in parts.

    Text is counted in chunks, each from a space that begins a word to the next one, and the pre-tokenizer gets each
    distinct chunk once. If these become too many, the rarest are dropped; of equally rare ones, those with the highest
    checksum, so that the others are from all over the text. Characters of dropped words are counted nevertheless.
    Raises UserError if there are no words.
    """
    special = re.compile(
        "|".join([*map(re.escape, recipe.special), *(["<0x[0-9A-F]{2}>"] if recipe.byte_fallback else [])])
    )
    # Normalization can make a special token of other characters.
    tally = Tally(untrained(models.BPE(), recipe), special if recipe.normalization == "nfkc" else None)
    chunks, size = Counter[str](), 0
    for texts in slices(special, batches):
        large = pa.array(texts, pa.large_string())
        parts, _ = split_at_spaces(folded(large) if recipe.whitespace == "fold" else large)
        values, counts = parts.value_counts().flatten()
        for chunk, count in zip(values.to_pylist(), counts.to_pylist(), strict=True):
            if chunk not in chunks:
                size += len(chunk) + WORD
            chunks[chunk] += count
        if size > 2 * LIMIT:
            chunks, size = most_frequent(chunks, tally)
    if size > LIMIT:
        chunks, _ = most_frequent(chunks, tally)
    tally.add(chunks.items(), kept=True)
    if not tally.counts and not tally.long:
        raise UserError("corpus: the training split has no words, so that a tokenizer cannot be trained.")
    return tally.words()


class Tally:
    """Words and characters that were counted so far."""

    def __init__(self, tokenizer: Tokenizer, special: re.Pattern | None):
        """Take the tokenizer whose normalizer and pre-tokenizer make words, and what no word may have in it."""
        self.special = special
        self.normalizer, self.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        self.counts, self.long = Counter[str](), Counter[str]()
        self.characters = np.zeros(CODE_POINTS, np.int64)
        self.first, self.other = np.zeros((2, CODE_POINTS), bool)

    def add(self, chunks: Iterable[tuple[str, int]], kept: bool) -> None:
        """Count the characters of chunks with their occurrences, and the words, where these are kept."""
        words, counts, longs = list[str](), list[int](), list[bool]()
        for chunk, count in chunks:
            for word in self.words_of(chunk):
                for number, part in enumerate(LONG.split(word) if len(word) > LONGEST else [word]):
                    for start in range(0, len(part), LONGEST):
                        words.append(part[start : start + LONGEST])
                        counts.append(count)
                        longs.append(number % 2 == 1)  # `split` returns what matches between the rest
        lengths = np.array([len(word) for word in words], np.int64)
        codes = code_points("".join(words))
        begins = np.zeros(len(codes), bool)
        begins[np.cumsum(lengths) - lengths] = True
        self.characters += np.bincount(codes, np.repeat(counts, lengths), CODE_POINTS).astype(np.int64)
        self.first[codes[begins]] = True
        self.other[codes[~begins]] = True
        if kept:
            for word, count, long in zip(words, counts, longs, strict=True):
                (self.long if long else self.counts)[word] += count

    def words_of(self, chunk: str) -> Iterator[str]:
        """Yield the words of a chunk."""
        normalized = self.normalizer.normalize_str(chunk) if self.normalizer else chunk
        words = (word for word, _ in self.pre_tokenizer.pre_tokenize_str(normalized))
        return (word for word in words if not (self.special and self.special.search(word)))

    def words(self) -> Words:
        """Return all."""
        where = np.flatnonzero(self.characters)
        characters = dict(zip(map(chr, where.tolist()), self.characters[where].tolist(), strict=True))
        first, other = (set(map(chr, np.flatnonzero(mask).tolist())) for mask in (self.first, self.other))
        short, long = (sum(len(word) * count for word, count in c.items()) for c in (self.counts, self.long))
        if long > short:
            self.counts, long = self.counts + self.long, 0
        return Words(dict(sorted(self.counts.items())), characters, first, other, long)


def slices(special: re.Pattern, batches: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield documents in lists of about SLICE characters, long ones in parts: at spaces, if there are any.

    A special token in the text becomes a space, since it is never cut into pieces.
    """
    held, size = list[str](), 0
    for texts in batches:
        for document in texts:
            text, start = special.sub(" ", document), 0
            while start < len(text):
                found = BOUNDARY.search(text, start + SLICE, start + LONGEST_CHUNK)
                stop = found.start() if found else start + LONGEST_CHUNK
                held.append(text[start:stop])
                size += len(held[-1])
                start = stop
                if size >= SLICE:
                    yield held
                    held, size = [], 0
    if held:
        yield held


def most_frequent(chunks: Counter[str], tally: Tally) -> tuple[Counter[str], int]:
    """Return the most frequent chunks, up to LIMIT, and their size; tally the characters of the others."""
    order = sorted(chunks.items(), key=lambda item: (-item[1], crc32(item[0].encode()), item[0]))
    sizes = list(accumulate(len(chunk) + WORD for chunk, _ in order))
    kept = bisect_right(sizes, LIMIT)
    tally.add(order[kept:], kept=False)
    return Counter(dict(order[:kept])), sizes[kept - 1] if kept else 0


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text, uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
