"""Find items of an evaluation that share a word n-gram of tpulm.corpus.decontamination with training documents."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tpulm.core.files import read_json
from tpulm.corpus.decontamination import contained, hash_ngrams, hash_words, ngrams_of


def find_overlap(
    sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], training: Iterable[Sequence[str]], n: int
) -> dict[str, list[str]]:
    """Return the items that share a word n-gram with a training document, by the name of their set.

    sets      names of items and their texts, by the name of the set
    training  batches of training documents
    """
    wanted = ngrams_of((texts for _, texts in sets.values()), n)
    shared = np.zeros(len(wanted), bool)
    for documents in training:
        hashes, _ = hash_ngrams(*hash_words(documents), n, short=False)
        shared[np.searchsorted(wanted, hashes[contained(hashes, wanted)])] = True
    overlaps = {}
    for name, (items, texts) in sets.items():
        hashes, counts = hash_ngrams(*hash_words(texts), n, short=False)
        places = np.flatnonzero(contained(hashes, wanted[shared]))
        owners = np.searchsorted(np.cumsum(counts), places, side="right")
        overlaps[name] = list(dict.fromkeys(items[owner] for owner in owners))
    return overlaps


def items_in_training(paths: Sequence[str | Path], name: str) -> set[str] | None:
    """Return the items of a set that share an n-gram with any training text; None without paths.

    paths  files of find_overlap, one for each training text
    """
    return {item for path in paths for item in read_json(path)["found"].get(name, [])} if paths else None


def count_in_training(items: Iterable[str], in_training: Collection[str] | None) -> int | None:
    """Return the number of items in the result of `items_in_training`; None if that is None."""
    return None if in_training is None else sum(item in in_training for item in items)
