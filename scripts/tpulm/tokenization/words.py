"""Count the distinct words of a text in bounded memory."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from zlib import crc32

import numpy as np

from tpulm.core.errors import UserError
from tpulm.tokenization.pipeline import SPACE, SPECIALS, Cutting

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
        raise UserError("corpus: the training split has no words, so there is nothing to train a tokenizer on.")
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
