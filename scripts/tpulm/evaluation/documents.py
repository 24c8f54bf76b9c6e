"""Held-out documents that models are scored on: drawn by a seed, the same for every model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.files import atomic_write
from tpulm.core.random_streams import generator
from tpulm.corpus.documents import count_documents, read_rows, whole
from tpulm.specs.artifacts import HELD_OUT

COLUMNS = pa.schema([("split", pa.string()), ("item", pa.string()), ("text", pa.string())])


@dataclass(frozen=True)
class TextSet:
    """Documents that are scored together.

    name   in words, such as corpus validation
    items  name of each document; texts  what of it is scored
    split  that they are of
    """

    name: str
    items: list[str]
    texts: list[str]
    split: str


def draw(files: Sequence[str], number: int, *key: int) -> tuple[np.ndarray, list[str]]:
    """Return rows of documents of a split, int64 [drawn], and the documents, in the order in which they were drawn.

    number  how many at most, so that the first of them are those of a smaller number
    key     of the random numbers
    """
    total = sum(map(count_documents, files))
    rows = generator(*key).permutation(total)[:number]
    order = np.argsort(rows)
    ascending = [text for batch in read_rows(files, rows[order]) for text in batch]
    texts = [""] * len(rows)
    for place, text in zip(order, ascending, strict=True):
        texts[place] = text
    return rows, texts


def write_sample(path: str | Path, collection: str, files: Mapping[str, Sequence[str]], recipe: Mapping) -> int:
    """Draw documents of a text and write them as Parquet: split, item, text. Returns how many there are.

    files   of each held-out split; recipe  documents of each, characters of a document, seed
    """
    table: dict[str, list[str]] = {name: [] for name in COLUMNS.names}
    for number, split in enumerate(HELD_OUT):
        rows, texts = draw(files[split], recipe["documents"], recipe["seed"], number)
        table["split"] += [split] * len(rows)
        table["item"] += [f"{collection}/{split}/{row}" for row in rows]
        table["text"] += [text[: recipe["characters"]] for text in texts]
    with atomic_write(path) as partial:
        pq.write_table(pa.table(table, COLUMNS), partial, compression="zstd")
    return len(table["item"])


def read_sample(path: str | Path, collection: str, documents: int | None = None) -> list[TextSet]:
    """Return the documents that `write_sample` wrote, those of each split as a set.

    documents  of each split, at most: those that were drawn first; all by default

    Raises UserError when the file is damaged.
    """
    with whole(str(path)):
        columns = pq.read_table(path).to_pydict()
    rows = list(zip(*(columns[name] for name in COLUMNS.names), strict=True))
    found = []
    for split in HELD_OUT:
        own = [(item, text) for name, item, text in rows if name == split][:documents]
        if own:
            items, texts = map(list, zip(*own, strict=True))
            found.append(TextSet(f"{collection} {split}", items, texts, split))
    return found
