"""Count the distinct words of a text in bounded memory, and choose the characters of a vocabulary."""

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
from tpulm.tokenization.pipeline import Recipe, tokenizer_around

# Largest size of all distinct chunks of text: their characters, and WORD for each. It bounds the memory of counting and
# of each trainer.
LIMIT = 7_000_000
WORD = 6
SLICE = 1_000_000  # characters that are split at a time
LONGEST_CHUNK = 2_000_000  # characters of a text without spaces that are split at a time
LONGEST = 256  # characters of a word; the memory of a trainer depends on it, and a vocabulary has no pieces across cuts
# Strings longer than a word of a language, such as base64. As in SentencePiece, they make no pieces, unless they are
# most of the text. Chinese or Thai without spaces does not match, nor do lines of short words.
LONG = re.compile(f"([!-~]{{{LONGEST + 1},}})")
CODE_POINTS = 0x110000
BOUNDARY = re.compile(" (?=[!-~])")  # a space that begins a word with any normalizer


@dataclass(frozen=True)
class Words:
    """The distinct words of a text, and the characters of all words.

    counts      occurrences by word, sorted
    characters  occurrences by character
    first       characters that begin a word
    other       characters at any other position in a word
    long        number of characters that match LONG, and are in none of these words
    """

    counts: dict[str, int]
    characters: dict[str, int]
    first: set[str]
    other: set[str]
    long: int = 0

    def restricted(self, alphabet: set[str]) -> "Words":
        """Return the words without the characters that an alphabet lacks: a word is cut there into several."""
        rare = set(self.characters) - alphabet
        counts = self.counts
        if rare:
            cuts = dict.fromkeys(map(ord, rare), " ")  # no word has a space
            counts_of_parts = Counter[str]()
            for word, count in counts.items():
                parts = [word] if rare.isdisjoint(word) else list(filter(None, word.translate(cuts).split(" ")))
                for part in parts:
                    counts_of_parts[part] += count
            counts = dict(sorted(counts_of_parts.items()))
        characters = {character: self.characters.get(character, 0) for character in sorted(alphabet)}
        # Any character may follow a rare one, and so begin a word of WordPiece.
        return Words(counts, characters, *((alphabet, alphabet) if rare else (self.first, self.other)), self.long)


def most_of(characters: Mapping[str, int], coverage: float) -> set[str]:
    """Return the most frequent characters that cover this share of a text, as SentencePiece chooses them.

    characters  occurrences of each
    """
    total, reached, chosen = sum(characters.values()), 0, set[str]()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if reached / total >= coverage:
            break
        reached += count
        chosen.add(character)
    return chosen


def count_words(batches: Iterable[list[str]], recipe: Recipe) -> Words:
    """Return the words that a recipe's pre-tokenizer makes of batches of documents; long ones in parts.

    Text is counted in chunks, each from a space that begins a word to the next one, and the pre-tokenizer gets each
    distinct chunk once. If there are too many, the rarest are dropped, but not their characters; among equally rare
    ones, the checksum decides, so that the others are from all over the text. Raises UserError if there are no words.
    """
    special = re.compile(
        "|".join([*map(re.escape, recipe.special), *(["<0x[0-9A-F]{2}>"] if recipe.byte_fallback else [])])
    )
    # Normalization can make a special token of other characters.
    tally = Tally(tokenizer_around(models.BPE(), recipe), special if recipe.normalization == "nfkc" else None)
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
    tally.add(chunks.items(), keep_words=True)
    if not tally.counts and not tally.long:
        raise UserError("corpus: the training split has no words, so that a tokenizer cannot be trained.")
    return tally.words()


class Tally:
    """Counts of words and characters so far."""

    def __init__(self, tokenizer: Tokenizer, special: re.Pattern | None):
        """Take a tokenizer for its normalizer and pre-tokenizer; words that match `special` are left out."""
        self.special = special
        self.normalizer, self.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        self.counts, self.long = Counter[str](), Counter[str]()
        self.characters = np.zeros(CODE_POINTS, np.int64)
        self.first, self.other = np.zeros((2, CODE_POINTS), bool)

    def add(self, chunks: Iterable[tuple[str, int]], keep_words: bool) -> None:
        """Count the characters of chunks with their occurrences, and with `keep_words` the words, too."""
        words, counts, longs = list[str](), list[int](), list[bool]()
        for chunk, count in chunks:
            for word in self.words_of(chunk):
                for number, part in enumerate(LONG.split(word) if len(word) > LONGEST else [word]):
                    for start in range(0, len(part), LONGEST):
                        words.append(part[start : start + LONGEST])
                        counts.append(count)
                        longs.append(number % 2 == 1)  # odd parts of `split` are the matches
        lengths = np.array([len(word) for word in words], np.int64)
        codes = code_points("".join(words))
        begins = np.zeros(len(codes), bool)
        begins[np.cumsum(lengths) - lengths] = True
        self.characters += np.bincount(codes, np.repeat(counts, lengths), CODE_POINTS).astype(np.int64)
        self.first[codes[begins]] = True
        self.other[codes[~begins]] = True
        if keep_words:
            for word, count, long in zip(words, counts, longs, strict=True):
                (self.long if long else self.counts)[word] += count

    def words_of(self, chunk: str) -> Iterator[str]:
        """Yield the words of a chunk."""
        normalized = self.normalizer.normalize_str(chunk) if self.normalizer else chunk
        words = (word for word, _ in self.pre_tokenizer.pre_tokenize_str(normalized))
        return (word for word in words if not (self.special and self.special.search(word)))

    def words(self) -> Words:
        """Return the counts as `Words`."""
        where = np.flatnonzero(self.characters)
        characters = dict(zip(map(chr, where.tolist()), self.characters[where].tolist(), strict=True))
        first, other = (set(map(chr, np.flatnonzero(mask).tolist())) for mask in (self.first, self.other))
        short, long = (sum(len(word) * count for word, count in c.items()) for c in (self.counts, self.long))
        if long > short:
            self.counts, long = self.counts + self.long, 0
        return Words(dict(sorted(self.counts.items())), characters, first, other, long)


def slices(special: re.Pattern, batches: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield documents in lists of about SLICE characters, long ones in parts, cut at spaces if there are any.

    A special token in the text becomes a space, since it is never cut.
    """
    parts, size = list[str](), 0
    for texts in batches:
        for document in texts:
            text, start = special.sub(" ", document), 0
            while start < len(text):
                space = BOUNDARY.search(text, start + SLICE, start + LONGEST_CHUNK)
                stop = space.start() if space else start + LONGEST_CHUNK
                parts.append(text[start:stop])
                size += len(parts[-1])
                start = stop
                if size >= SLICE:
                    yield parts
                    parts, size = [], 0
    if parts:
        yield parts


def most_frequent(chunks: Counter[str], tally: Tally) -> tuple[Counter[str], int]:
    """Return the most frequent chunks of a size up to LIMIT, and that size; count the others' characters in `tally`."""
    order = sorted(chunks.items(), key=lambda item: (-item[1], crc32(item[0].encode()), item[0]))
    sizes = list(accumulate(len(chunk) + WORD for chunk, _ in order))
    number = bisect_right(sizes, LIMIT)
    tally.add(order[number:], keep_words=False)
    return Counter(dict(order[:number])), sizes[number - 1] if number else 0


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text, uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
