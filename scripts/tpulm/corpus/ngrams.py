"""Hashes of the word n-grams of documents, for near-duplicates and decontamination.

A word is a run of characters between white space, in lower case and without what is neither letter nor digit.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

KNOWN_WORDS = 1_000_000  # that are kept with their hashes
# Odd, so that multiplication loses no bits: the golden ratio, and the constants of SplitMix64 (Steele et al. 2014).
FACTOR, MIX_1, MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class WordHashes(dict[str, int]):
    """The 64-bit hash of each run of characters; 0 where no letter or digit is in it."""

    def __missing__(self, token: str) -> int:
        """Hash a run of characters that is new."""
        word = "".join(filter(str.isalnum, token.lower()))
        digest = hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest() if word else b""
        if len(self) >= KNOWN_WORDS:
            self.clear()
        self[token] = int.from_bytes(digest, "little")
        return self[token]


HASHES = WordHashes()


def hash_words(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the words of all texts, uint64 of shape [words], and how many each text has, int64."""
    flat: list[int] = []
    ends = [0]
    for text in texts:
        flat += map(HASHES.__getitem__, text.split())
        ends.append(len(flat))
    hashes = np.array(flat, np.uint64)
    words = np.concatenate([[0], np.cumsum(hashes != 0)])
    return hashes[hashes != 0], np.diff(words[ends]).astype(np.int64)


def hash_ngrams(hashes: np.ndarray, counts: np.ndarray, n: int, short: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the n-grams of texts, uint64 of shape [n-grams], and how many each text has, int64.

    hashes, counts  the words, as `hash_words` returns them
    short           whether all words of a text with fewer than n count as one n-gram
    """
    first = np.repeat(np.cumsum(counts) - counts, counts)
    left = np.repeat(counts, counts) - (np.arange(len(hashes)) - first)  # words from here to the end of the text
    starts = left >= n
    if short:
        starts |= left == np.repeat(counts, counts)
    begin = np.flatnonzero(starts)
    found = np.zeros(len(begin), np.uint64)
    for offset in range(n):
        inside = left[begin] > offset
        found *= FACTOR
        found[inside] += hashes[begin[inside] + offset]
    ends = np.concatenate([[0], np.cumsum(starts)])
    positions = np.concatenate([[0], np.cumsum(counts)])
    return mix(found), np.diff(ends[positions]).astype(np.int64)


def mix(values: np.ndarray) -> np.ndarray:
    """Return uint64 values whose bits all depend on all bits of those given: the last steps of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * MIX_1
    values = (values ^ (values >> np.uint64(27))) * MIX_2
    return values ^ (values >> np.uint64(31))
