"""Find training documents that share a word n-gram with held-out documents or with benchmarks; hash word n-grams.

A word is a run of characters between white space, in lower case and without what is neither letter nor digit.

Brown et al. 2020 (appendix C) drop documents that share 13 words. Memory holds 16 bytes for each n-gram to avoid.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tpulm.corpus.documents import CONTAMINATED, EXAMPLE_CHARACTERS, EXAMPLES, TEST, TRAIN, VALIDATION, read_columns

KNOWN_WORDS = 1_000_000  # most words whose hashes are kept
# Odd, so that multiplication loses no bits: the golden ratio, and the constants of SplitMix64 (Steele et al. 2014).
FACTOR, MIX_1, MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class WordHashes(dict[str, int]):
    """The 64-bit hash of each run of characters; 0 for one without letters and digits."""

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
    sums = np.zeros(len(begin), np.uint64)
    for offset in range(n):
        inside = left[begin] > offset
        sums *= FACTOR
        sums[inside] += hashes[begin[inside] + offset]
    ends = np.concatenate([[0], np.cumsum(starts)])
    positions = np.concatenate([[0], np.cumsum(counts)])
    return mix(sums), np.diff(ends[positions]).astype(np.int64)


def mix(values: np.ndarray) -> np.ndarray:
    """Return uint64 values each of whose bits depends on all bits of `values`: the last steps of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * MIX_1
    values = (values ^ (values >> np.uint64(27))) * MIX_2
    return values ^ (values >> np.uint64(31))


WAITING = 1 << 22  # n-grams that are collected before they are sorted


def held_out_texts(parts: Sequence[str], codes: np.ndarray) -> Iterator[list[str]]:
    """Yield the held-out documents of the parts, in batches; codes  split of each document."""
    first = 0
    for part in parts:
        for batch in read_columns(part, "text"):
            batch_codes = codes[first : first + batch.num_rows]
            yield batch["text"].filter((batch_codes == TEST) | (batch_codes == VALIDATION)).to_pylist()
            first += batch.num_rows


def ngrams_of(batches: Iterable[Sequence[str | None]], n: int) -> np.ndarray:
    """Return the distinct hashes of the word n-grams of texts, uint64, sorted."""
    known, waiting, size = np.empty(0, np.uint64), [np.empty(0, np.uint64)], 0
    for batch in batches:
        hashes, _ = hash_ngrams(*hash_words(text for text in batch if text), n, short=False)
        waiting.append(hashes)
        size += len(hashes)
        if size > max(WAITING, len(known) // 4):
            known, waiting, size = np.unique(np.concatenate([known, *waiting])), [], 0
    return np.unique(np.concatenate([known, *waiting]))


def find_contaminated(part: str, codes: np.ndarray, avoided: np.ndarray, n: int) -> dict:
    """Return the `rows` of the training documents of a part that have an n-gram to avoid, and `examples`.

    codes    split of each document of the part
    avoided  hashes of n-grams, as `ngrams_of` returns them

    An example has the beginning of a text, and its first n-gram to avoid.
    """
    rows: list[int] = []
    examples: list[dict[str, str]] = []
    first = 0
    for batch in read_columns(part, "text"):
        train_rows = np.flatnonzero(codes[first : first + batch.num_rows] == TRAIN)
        texts = batch["text"].take(train_rows).to_pylist()
        hashes, counts = hash_ngrams(*hash_words(texts), n, short=False)
        ends = np.cumsum(counts)
        places = np.flatnonzero(contained(hashes, avoided))
        documents, where = np.unique(np.searchsorted(ends, places, side="right"), return_index=True)
        rows += (train_rows[documents] + first).tolist()
        for document, place in zip(documents, places[where], strict=True):
            if len(examples) < EXAMPLES:
                start = int(place - (ends[document] - counts[document]))
                words = [word for word in texts[document].split() if any(map(str.isalnum, word))]
                shown = {"text": texts[document], "ngram": " ".join(words[start : start + n])}
                examples.append({key: text[:EXAMPLE_CHARACTERS] for key, text in shown.items()})
        first += batch.num_rows
    return {"rows": rows, "examples": examples}


def drop_contaminated(codes: np.ndarray, documents: Sequence[int], results: Sequence[dict]) -> None:
    """Drop what `find_contaminated` found in each part.

    codes      split of each document of the parts; that of contaminated ones becomes CONTAMINATED
    documents  number of documents of each part
    """
    first = 0
    for count, part in zip(documents, results, strict=True):
        codes[np.array(part["rows"], int) + first] = CONTAMINATED
        first += count


def count_contaminated(results: Sequence[dict], dropped: dict) -> dict:
    """Return examples of what `find_contaminated` found in all parts, and count it in `dropped`."""
    dropped["train"]["contaminated"] = sum(len(part["rows"]) for part in results)
    return {"examples": [example for part in results for example in part["examples"]][:EXAMPLES]}


def contained(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return whether each value is in `known`, which is sorted: bool of shape [values]."""
    if not len(known):
        return np.zeros(len(values), bool)
    distinct, back = np.unique(values, return_inverse=True)
    places = np.minimum(np.searchsorted(known, distinct), len(known) - 1)
    return (known[places] == distinct)[back]
