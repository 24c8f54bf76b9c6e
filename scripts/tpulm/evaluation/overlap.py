"""Items of an evaluation that share a word n-gram with training documents, as tpulm.corpus.decontamination has them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tpulm.core.files import read_json
from tpulm.corpus.decontamination import contained, hash_ngrams, hash_words, ngrams_of


def find_overlap(
    sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], training: Iterable[Sequence[str]], n: int
) -> dict[str, list[str]]:
    """Return the items of each set that share a word n-gram with a training document, by the name of the set.

    sets      by name: the items and their texts
    training  the training documents, in batches
    """
    wanted = ngrams_of((texts for _, texts in sets.values()), n)
    shared = np.zeros(len(wanted), bool)
    for documents in training:
        hashes, _ = hash_ngrams(*hash_words(documents), n, short=False)
        shared[np.searchsorted(wanted, hashes[contained(hashes, wanted)])] = True
    found = {}
    for name, (items, texts) in sets.items():
        hashes, counts = hash_ngrams(*hash_words(texts), n, short=False)
        places = np.flatnonzero(contained(hashes, wanted[shared]))
        owners = np.searchsorted(np.cumsum(counts), places, side="right")
        found[name] = list(dict.fromkeys(items[owner] for owner in owners))
    return found


def items_in_training(paths: Sequence[str | Path], name: str) -> set[str] | None:
    """Return the items of a set that any of the training texts shares an n-gram with; None without such a text.

    paths  files of find_overlap, one for each training text
    """
    return {item for path in paths for item in read_json(path)["found"].get(name, [])} if paths else None


def count_in_training(items: Iterable[str], found: Collection[str] | None) -> int | None:
    """Return how many items are among those that `items_in_training` returns; None where it returns None."""
    return None if found is None else sum(item in found for item in items)
