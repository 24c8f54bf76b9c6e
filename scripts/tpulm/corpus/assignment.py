"""Decide which split each document of a text goes to, from the keys of its parts and nothing else.

Two documents are the same when their keys are. Test wins over validation, validation over train. Memory holds one byte
per document and, of the keys, one partition at a time: those in a range of values.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from tpulm.config.artifacts import SPLITS
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.corpus.decisions import BEYOND, DUPLICATE, TEST, TRAIN, VALIDATION, count_dropped, refuse_empty
from tpulm.corpus.near_duplicates import drop_near_duplicates
from tpulm.corpus.partitions import Partitions
from tpulm.corpus.parts import key_numbers
from tpulm.corpus.provenance import merged
from tpulm.corpus.tables import read_columns

PARTITION = 4_000_000  # documents of which the keys are in memory at once, about


class Keys:
    """The keys of all parts, by partition."""

    def __init__(self, parts: Sequence[str], documents: int):
        """Take the paths of the parts, which may lie in a bucket; documents is the number of theirs."""
        self.halves = Partitions(documents, PARTITION, 3)
        self.partitions = self.halves.count
        self.read = lru_cache(1)(self._read)
        first = 0
        for part in parts:
            for batch in read_columns(part, "key"):
                self.halves.add(*key_numbers(batch), np.arange(first, first + batch.num_rows, dtype=np.uint64))
                first += batch.num_rows

    def _read(self, partition: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the documents of a partition, int64 in the order of their keys, and where each key begins among them.

        Also, for each document, the number of its key within the partition.
        """
        high, low, numbers = self.halves.read(partition)
        rows = numbers.astype(np.int64)
        order = np.lexsort((low, high))
        high, low, rows = high[order], low[order], rows[order]
        new = np.ones(len(rows), bool)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return rows, np.flatnonzero(new), np.cumsum(new) - 1


def assign_text(recipe: dict, parts: Sequence[str], records: Sequence[str]) -> tuple[np.ndarray, dict]:
    """Return the split of each document of a text, as `assign` does, and splits.json, what is recorded of them.

    recipe          key, and what `assign` and `merged` take
    parts, records  paths of the parts, and of what was recorded of each

    The record has the source; `documents`, how many each part has; and what `assign` says of those that were dropped.
    """
    found = list(map(read_json, records))
    source = merged(recipe, found)
    splits, told = assign(recipe["key"], recipe, parts, found)
    return splits, source | told | {"documents": [record["documents"] for record in found]}


def assign(where: str, recipe: dict, parts: Sequence[str], records: Sequence[dict]) -> tuple[np.ndarray, dict]:
    """Return the split of each document, and what there is to say of those that were dropped.

    where    config key of the text, for the messages
    recipe   parts (the split that each part is named for), held_out, max_documents; near_duplicates (threshold), where
             they are to be dropped
    parts    paths of the parts
    records  what `write_part` returned for each

    The first is uint8 of shape [documents]: an index of SPLITS, or another code of `decisions`. The second has how many
    documents of each split were `dropped`, by reason, and examples. Splits that no part is named for are held out of
    train. Raises UserError when a split stays empty.
    """
    named = np.array([SPLITS.index(split) for split in recipe["parts"]], np.uint8)
    counts = [record["documents"] for record in records]
    codes = np.repeat(named, counts)
    keys = Keys(parts, len(codes))
    most = recipe["max_documents"]
    limit(codes, TEST, most)
    if {TEST, VALIDATION} <= set(named.tolist()):
        drop_known(keys, codes, VALIDATION, (TEST,))
    limit(codes, VALIDATION, most)
    distinct = drop_known(keys, codes, TRAIN, (TEST, VALIDATION))
    dropped = count_dropped(recipe["parts"], records, codes)
    for split in (TEST, VALIDATION):
        if split in named:
            refuse_empty(where, SPLITS[split], int((codes == split).sum()), dropped)
    shares = {split: recipe["held_out"][SPLITS[split]] for split in (TEST, VALIDATION) if split not in named}
    if distinct and shares:
        carve(where, shares, keys, codes, distinct)
    told = {}
    if "near_duplicates" in recipe:
        examples = drop_near_duplicates(parts, codes, recipe["near_duplicates"]["threshold"])
        told = {"near_duplicates": recipe["near_duplicates"] | {"examples": examples}}
        dropped = count_dropped(recipe["parts"], records, codes)
    refuse_empty(where, SPLITS[TRAIN], int((codes == TRAIN).sum()), dropped)
    return codes, {"dropped": dropped} | told


def limit(codes: np.ndarray, split: int, most: int | None) -> None:
    """Keep the first `most` documents of a split."""
    if most is not None:
        codes[np.flatnonzero(codes == split)[most:]] = BEYOND


def drop_known(keys: Keys, codes: np.ndarray, split: int, others: Iterable[int]) -> int:
    """Drop the documents of a split that are in other splits, too; return how many distinct ones are left."""
    distinct = 0
    for partition in range(keys.partitions):
        rows, starts, groups = keys.read(partition)
        if len(rows):
            own = codes[rows] == split
            known = np.logical_or.reduceat(np.isin(codes[rows], list(others)), starts)
            codes[rows[own & known[groups]]] = DUPLICATE
            distinct += int((np.logical_or.reduceat(own, starts) & ~known).sum())
    return distinct


def carve(where: str, shares: dict[int, float], keys: Keys, codes: np.ndarray, distinct: int) -> None:
    """Hold documents out of train: the lowest keys for test, the next for validation.

    shares    fraction of the distinct documents for each split to carve. A document's place does not depend on the
              order of the documents, and a share's end moves only a little when documents are added.
    distinct  number of distinct documents of train

    Raises UserError when nothing would be left to train on.
    """
    sizes = {split: max(1, int(share * distinct + 0.5)) for split, share in shares.items()}
    if sum(sizes.values()) >= distinct:
        named = " and ".join(f"{size} for {SPLITS[split]}" for split, size in sizes.items())
        raise UserError(f"{where}: holding out {named} of {distinct} distinct documents leaves none to train on.")
    lowest = np.repeat(np.array(list(sizes), np.uint8), list(sizes.values()))
    passed = 0
    for partition in range(keys.partitions):
        rows, starts, groups = keys.read(partition)
        if passed >= len(lowest):
            break
        if len(rows):
            own = codes[rows] == TRAIN
            present = np.logical_or.reduceat(own, starts)
            rank = passed + np.cumsum(present) - 1
            chosen = own & (rank < len(lowest))[groups]
            codes[rows[chosen]] = lowest[rank[groups[chosen]]]
            passed += int(present.sum())
