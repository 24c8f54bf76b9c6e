"""Decontamination: training documents that share a word n-gram with held-out documents or with benchmarks.

Brown et al. 2020 (appendix C) drop documents that share 13 words. Memory holds 16 bytes for each n-gram to avoid.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tpulm.corpus.decisions import CONTAMINATED, EXAMPLE_CHARACTERS, EXAMPLES, TEST, TRAIN, VALIDATION
from tpulm.corpus.ngrams import hash_ngrams, hash_words
from tpulm.corpus.tables import read_columns

WAITING = 1 << 22  # n-grams that are gathered before they are sorted in


def held_out_texts(parts: Sequence[str], codes: np.ndarray) -> Iterator[list[str]]:
    """Yield the held-out documents of the parts, in batches; codes has the split of each document."""
    first = 0
    for part in parts:
        for batch in read_columns(part, "text"):
            own = codes[first : first + batch.num_rows]
            yield batch["text"].filter((own == TEST) | (own == VALIDATION)).to_pylist()
            first += batch.num_rows


def ngrams_of(batches: Iterable[Sequence[str | None]], n: int) -> np.ndarray:
    """Return the distinct hashes of the word n-grams of texts, uint64, sorted."""
    known, waiting, size = np.empty(0, np.uint64), [np.empty(0, np.uint64)], 0
    for batch in batches:
        found, _ = hash_ngrams(*hash_words(text for text in batch if text), n, short=False)
        waiting.append(found)
        size += len(found)
        if size > max(WAITING, len(known) // 4):
            known, waiting, size = np.unique(np.concatenate([known, *waiting])), [], 0
    return np.unique(np.concatenate([known, *waiting]))


def find_contaminated(part: str, codes: np.ndarray, avoided: np.ndarray, n: int) -> dict:
    """Return the `rows` of the training documents of a part that have an n-gram to avoid, and `examples`.

    codes    split of each document of the part
    avoided  hashes of n-grams, as `ngrams_of` returns them

    An example is the beginning of a text, and its first n-gram that is to be avoided.
    """
    rows: list[int] = []
    examples: list[dict[str, str]] = []
    first = 0
    for batch in read_columns(part, "text"):
        own = np.flatnonzero(codes[first : first + batch.num_rows] == TRAIN)
        texts = batch["text"].take(own).to_pylist()
        hashes, counts = hash_ngrams(*hash_words(texts), n, short=False)
        ends = np.cumsum(counts)
        places = np.flatnonzero(contained(hashes, avoided))
        documents, where = np.unique(np.searchsorted(ends, places, side="right"), return_index=True)
        rows += (own[documents] + first).tolist()
        for document, place in zip(documents, places[where], strict=True):
            if len(examples) < EXAMPLES:
                start = int(place - (ends[document] - counts[document]))
                words = [word for word in texts[document].split() if any(map(str.isalnum, word))]
                shown = {"text": texts[document], "ngram": " ".join(words[start : start + n])}
                examples.append({key: text[:EXAMPLE_CHARACTERS] for key, text in shown.items()})
        first += batch.num_rows
    return {"rows": rows, "examples": examples}


def drop_contaminated(codes: np.ndarray, documents: Sequence[int], found: Sequence[dict]) -> None:
    """Drop what `find_contaminated` found in each part.

    codes      split of each document of the parts; that of contaminated ones becomes CONTAMINATED
    documents  number of documents of each part
    """
    first = 0
    for count, part in zip(documents, found, strict=True):
        codes[np.array(part["rows"], int) + first] = CONTAMINATED
        first += count


def count_contaminated(found: Sequence[dict], dropped: dict) -> dict:
    """Return examples of what `find_contaminated` found in all parts, and count it in `dropped`."""
    dropped["train"]["contaminated"] = sum(len(part["rows"]) for part in found)
    return {"examples": [example for part in found for example in part["examples"]][:EXAMPLES]}


def contained(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return whether each value is among sorted ones, which are looked through in order."""
    if not len(known):
        return np.zeros(len(values), bool)
    distinct, back = np.unique(values, return_inverse=True)
    places = np.minimum(np.searchsorted(known, distinct), len(known) - 1)
    return (known[places] == distinct)[back]
