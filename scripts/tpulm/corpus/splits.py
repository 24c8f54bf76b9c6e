"""Assign each document of a text to a split, by the keys of its parts, and write the splits.

Two documents are the same if their keys are. Test wins over validation, validation over train. Memory holds one byte
per document, and one partition of the keys at a time: those in a range of values.

The columns of a split are `text` and, where the responses count, `responses`: the characters of each.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write
from tpulm.corpus.documents import (
    BEYOND,
    DUPLICATE,
    RESPONSES,
    TEST,
    TRAIN,
    VALIDATION,
    DocumentFile,
    count_documents,
    count_dropped,
    read_columns,
    refuse_empty,
)
from tpulm.corpus.near_duplicates import Partitions, drop_near_duplicates
from tpulm.corpus.parts import key_numbers
from tpulm.corpus.statistics import Figures
from tpulm.specs.artifacts import SPLITS, lengths_file

PARTITION = 4_000_000  # about so many documents have their keys in memory at once


class Keys:
    """The keys of all parts, by partition."""

    def __init__(self, parts: Sequence[str], documents: int):
        """Sort the keys into partitions; parts  paths, also in a bucket; documents  number of all."""
        self.halves = Partitions(documents, PARTITION, 3)
        self.partitions = self.halves.count
        self.read = lru_cache(1)(self._read)
        first = 0
        for part in parts:
            for batch in read_columns(part, "key"):
                self.halves.add(*key_numbers(batch), np.arange(first, first + batch.num_rows, dtype=np.uint64))
                first += batch.num_rows

    def _read(self, partition: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the documents of a partition sorted by key, the start of each key, and each document's key index."""
        high, low, numbers = self.halves.read(partition)
        rows = numbers.astype(np.int64)
        order = np.lexsort((low, high))
        high, low, rows = high[order], low[order], rows[order]
        new = np.ones(len(rows), bool)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return rows, np.flatnonzero(new), np.cumsum(new) - 1


def assign_splits(where: str, recipe: dict, parts: Sequence[str], records: Sequence[dict]) -> tuple[np.ndarray, dict]:
    """Return the split of each document, and a record of the dropped ones.

    where    config key of the text, for messages
    recipe   parts (the split that each part is named for), held_out, max_documents; near_duplicates (threshold), to
             drop them
    parts    paths of the parts
    records  results of `write_part` for the parts

    The codes are uint8 of shape [documents]: an index of SPLITS, or another code of tpulm.corpus.documents. The record
    has `dropped`, counts by split and reason, and examples of near-duplicates. Splits that no part is named for are
    held out of train. Raises UserError if a split stays empty.
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
    for split in sorted({TEST, VALIDATION} & set(named.tolist())):
        refuse_empty(where, SPLITS[split], int((codes == split).sum()), dropped)
    shares = {split: recipe["held_out"][SPLITS[split]] for split in (TEST, VALIDATION) if split not in named}
    if distinct and shares:
        hold_out(where, shares, keys, codes, distinct)
    near = {}
    if "near_duplicates" in recipe:
        examples = drop_near_duplicates(parts, codes, recipe["near_duplicates"]["threshold"])
        near = {"near_duplicates": recipe["near_duplicates"] | {"examples": examples}}
    dropped = count_dropped(recipe["parts"], records, codes)
    for split, name in enumerate(SPLITS):
        refuse_empty(where, name, int((codes == split).sum()), dropped)
    return codes, {"dropped": dropped} | near


def limit(codes: np.ndarray, split: int, most: int | None) -> None:
    """Keep the first `most` documents of a split."""
    if most is not None:
        codes[np.flatnonzero(codes == split)[most:]] = BEYOND


def drop_known(keys: Keys, codes: np.ndarray, split: int, others: Iterable[int]) -> int:
    """Drop the documents of a split that are also in other splits; return the number of distinct ones left."""
    distinct = 0
    for partition in range(keys.partitions):
        rows, starts, groups = keys.read(partition)
        if len(rows):
            in_split = codes[rows] == split
            known = np.logical_or.reduceat(np.isin(codes[rows], list(others)), starts)
            codes[rows[in_split & known[groups]]] = DUPLICATE
            distinct += int((np.logical_or.reduceat(in_split, starts) & ~known).sum())
    return distinct


def hold_out(where: str, shares: dict[int, float], keys: Keys, codes: np.ndarray, distinct: int) -> None:
    """Hold documents out of train: the lowest keys for test, the next for validation.

    shares    fraction of the distinct documents for each split to hold out. The choice does not depend on the order of
              the documents, and changes only a little when documents are added.
    distinct  number of distinct documents of train

    Raises UserError if no training document would be left.
    """
    sizes = {split: max(1, int(share * distinct + 0.5)) for split, share in shares.items()}
    if sum(sizes.values()) >= distinct:
        named = " and ".join(f"{size} for {SPLITS[split]}" for split, size in sizes.items())
        raise UserError(f"{where}: holding out {named} of {distinct} distinct documents leaves no training documents.")
    lowest = np.repeat(np.array(list(sizes), np.uint8), list(sizes.values()))
    passed = 0
    for partition in range(keys.partitions):
        rows, starts, groups = keys.read(partition)
        if passed >= len(lowest):
            break
        if len(rows):
            in_train = codes[rows] == TRAIN
            present = np.logical_or.reduceat(in_train, starts)
            rank = passed + np.cumsum(present) - 1
            chosen = in_train & (rank < len(lowest))[groups]
            codes[rows[chosen]] = lowest[rank[groups[chosen]]]
            passed += int(present.sum())


SCHEMA = pa.schema({"text": pa.string()})


class SplitFile(DocumentFile):
    """The file of a split, with the figures of its documents, in total and by source."""

    def __init__(self, path: Path, most: int | None, schema: pa.Schema):
        """Open `path` for writing at most `most` documents."""
        super().__init__(path, schema)
        self.figures, self.most = Figures(), most
        self.sources: dict[str, dict[str, int]] = {}

    def take(self, batch: pa.RecordBatch, chosen: np.ndarray, source: str) -> None:
        """Write the documents at these indices of a batch of text and words."""
        figures = self.figures
        if self.most is not None:
            chosen = chosen[: self.most - figures.documents]
        if len(chosen):
            picked = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
            characters = figures.characters
            responses = picked[RESPONSES.name] if RESPONSES.name in self.schema.names else None
            figures.add(picked["text"], pc.sum(picked["words"]).as_py(), responses)
            self.add(picked.select(self.schema.names))
            counts = self.sources.setdefault(source, {"documents": 0, "characters": 0})
            counts["documents"] += len(chosen)
            counts["characters"] += figures.characters - characters


def write_splits(
    recipe: dict, parts: Sequence[str], codes: np.ndarray, outputs: dict[str, str]
) -> tuple[dict[str, dict], dict[str, dict]]:
    """Write the documents of the parts to one file per split; return the figures of each split, and of each source.

    recipe   max_documents (of each split, None for all); for several sources also sources (the name for each part) and
             weights (by name)
    codes    split of each document of the parts, as `assign_splits` returns it
    outputs  path of each split; a file next to it, .lengths.npy, gets the length of each document
    """
    names = recipe.get("sources", [""] * len(parts))
    weights = [recipe.get("weights", {}).get(name, 1.0) for name in names]
    most = recipe["max_documents"]
    schema = SCHEMA.append(RESPONSES) if recipe.get("responses") else SCHEMA
    with contextlib.ExitStack() as stack:
        partial = {split: stack.enter_context(atomic_write(outputs[split])) for split in SPLITS}
        files = {
            split: stack.enter_context(contextlib.closing(SplitFile(partial[split], most, schema))) for split in SPLITS
        }
        for time in range(math.ceil(max(weights))):
            for number, batch, batch_codes in with_codes(
                parts, codes, [weight > time for weight in weights], schema.names
            ):
                batch_codes = np.where(
                    taken_again(batch, weights[number], time) | (batch_codes != TRAIN), batch_codes, len(SPLITS)
                )
                for code, split in enumerate(SPLITS):
                    if not time or code == TRAIN:
                        files[split].take(batch, np.flatnonzero(batch_codes == code), names[number])
        for split in SPLITS:
            lengths = stack.enter_context(atomic_write(lengths_file(outputs[split])))
            with open(lengths, "wb") as file:
                np.save(file, np.concatenate(files[split].figures.lengths))
    figures = {split: files[split].figures.as_dict() for split in SPLITS}
    by_source = {
        name: {split: files[split].sources.get(name, {"documents": 0, "characters": 0}) for split in SPLITS}
        for name in dict.fromkeys(names)
    }
    return figures, by_source


def with_codes(
    parts: Sequence[str], codes: np.ndarray, wanted: Sequence[bool], columns: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray]]:
    """Yield the number of each wanted part, its documents a row group at a time, and the codes of these."""
    counts = list(map(count_documents, parts))
    for number, first in enumerate(np.cumsum([0, *counts[:-1]]).tolist()):
        if wanted[number]:
            for batch in read_columns(parts[number], *columns, "words", "key"):
                yield number, batch, codes[first : first + batch.num_rows]
                first += batch.num_rows


def taken_again(batch: pa.RecordBatch, weight: float, time: int) -> np.ndarray:
    """Return whether each document of a batch is taken once more, after it was taken `time` times: bool [documents].

    A document is taken floor(weight) times, and once more if its random key is low enough. The second half of the key
    is compared: the first decides which documents are held out.
    """
    share = weight - time
    if share >= 1:
        return np.ones(batch.num_rows, bool)
    _, low = key_numbers(batch)
    return (low >> 11).astype(np.float64) < share * 2.0**53  # which a float64 holds exactly
