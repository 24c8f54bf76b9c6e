"""Whether what models are scored on is in the text that they were trained on: word n-grams in both.

The hashes are those of the corpus's decontamination, tpulm.corpus.ngrams.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tpulm.corpus.contamination import contained
from tpulm.corpus.ngrams import hash_ngrams, hash_words


def find_overlap(
    sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], training: Iterable[Sequence[str]], n: int
) -> dict:
    """Return which items of each set share a word n-gram with a training document.

    sets      by name: the items and their texts
    training  the training documents in order, in batches

    items, checked   how many there are, and have n words or more
    overlapping, share   of these, how many and which part share one
    found            of each that does: item; ngrams, the share of its n-grams that the training text has; document, the
                     first training document with one, by its number; shared, the words of that n-gram
    """
    hashed = {name: hash_ngrams(*hash_words(texts), n, short=False) for name, (_, texts) in sets.items()}
    wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in hashed.values())]))
    documents = first_documents(wanted, training, n)
    record = {}
    for name, (items, texts) in sets.items():
        hashes, counts = hashed[name]
        own = documents[np.searchsorted(wanted, hashes)]
        begins = np.cumsum(counts) - counts
        found = []
        for item, text, begin, count in zip(items, texts, begins, counts, strict=True):
            places = own[begin : begin + count]
            if (places >= 0).any():
                place = int(np.flatnonzero(places >= 0)[0])
                words = [word for word in text.split() if any(map(str.isalnum, word))][place : place + n]
                share = float((places >= 0).mean())
                found.append({"item": item, "ngrams": share, "document": int(places[place]), "shared": " ".join(words)})
        checked = int((counts > 0).sum())
        share = len(found) / checked if checked else 0.0
        figures = {"items": len(items), "checked": checked, "overlapping": len(found), "share": share}
        record[name] = {**figures, "found": found}
    return record


def first_documents(wanted: np.ndarray, training: Iterable[Sequence[str]], n: int) -> np.ndarray:
    """Return the number of the first training document that has each n-gram, int64; -1 where none has it.

    wanted  hashes of n-grams, uint64, sorted, each once
    """
    documents = np.full(len(wanted), -1, np.int64)
    start = 0
    for texts in training:
        hashes, counts = hash_ngrams(*hash_words(texts), n, short=False)
        there = np.flatnonzero(contained(hashes, wanted))
        owners = start + np.searchsorted(np.cumsum(counts), there, side="right")
        # From the last to the first, so that the first one stays.
        places = np.searchsorted(wanted, hashes[there])[::-1]
        new = documents[places] < 0
        documents[places[new]] = owners[::-1][new]
        start += len(texts)
    return documents


def told(found: Mapping, n: int) -> Iterator[str]:
    """Yield a line about each set that overlaps; found  as `find_overlap` returns it for n words."""
    for name, own in found.items():
        if own["overlapping"]:
            words = f"{n} words with training documents ({100 * own['share']:.1f} %)"
            yield f"{name}: {own['overlapping']} of {own['checked']} share {words}"


def overlapping(records: Iterable[Mapping], name: str) -> set[str]:
    """Return the items of a set that any of the texts overlaps with; records  as `find_overlap` returns them."""
    return {found["item"] for record in records for found in record.get(name, {"found": []})["found"]}
