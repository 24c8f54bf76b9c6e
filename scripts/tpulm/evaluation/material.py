"""Draw, read and write the items that models are scored on: held-out documents and pairs of sentences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.files import atomic_write
from tpulm.core.random_streams import generator
from tpulm.corpus.documents import RESPONSES, count_documents, damage_named, read_column
from tpulm.specs.artifacts import HELD_OUT

PASSAGE = [pa.field("text", pa.string()), pa.field("scored", RESPONSES.type)]
COLUMNS = pa.schema(
    [*((name, pa.string()) for name in ("set", "split", "kind", "item")), ("passages", pa.list_(pa.struct(PASSAGE)))]
)


class Passage(NamedTuple):
    """A text, and the spans (start, stop) of its characters that are scored."""

    text: str
    scored: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str, spans: Iterable[Mapping[str, int]] | None = None) -> "Passage":
        """Return a text with spans, each with `start` and `stop`; None scores all of the text."""
        if spans is None:
            return cls(text, ((0, len(text)),))
        return cls(text, tuple((span["start"], span["stop"]) for span in spans))

    @property
    def is_whole(self) -> bool:
        """Whether all of the text is scored."""
        return self.scored == ((0, len(self.text)),)

    @property
    def bytes(self) -> int:
        """Number of bytes of UTF-8 that are scored."""
        return sum(len(self.text[start:stop].encode()) for start, stop in self.scored)

    @property
    def row(self) -> dict:
        """The passage as a row of a table."""
        return {"text": self.text, "scored": [{"start": start, "stop": stop} for start, stop in self.scored]}

    def beginning(self, characters: int) -> "Passage":
        """Return the passage cut after `characters`, spans included."""
        spans = [(start, min(stop, characters)) for start, stop in self.scored if start < characters]
        return Passage(self.text[:characters], tuple(spans))


class Item(NamedTuple):
    """A document with one passage, or a pair with two: the good sentence and the bad one.

    set    name of the text, or of the set of pairs
    split  of a document, "" for a pair
    kind   phenomenon of a pair, "" for a document
    item   name within the set
    """

    set: str
    split: str
    kind: str
    item: str
    passages: tuple[Passage, ...]

    @property
    def part(self) -> str:
        """Set and split that it is scored with, such as `corpus test`; for pairs, the set."""
        return f"{self.set} {self.split}".strip()

    @property
    def whole(self) -> "Item":
        """The item with all of each text scored, for models that are trained on all tokens."""
        return self._replace(passages=tuple(Passage.of(passage.text) for passage in self.passages))


def write_items(path: str | Path, items: Iterable[Item]) -> int:
    """Write items as Parquet; return their number."""
    rows = [item._asdict() | {"passages": [passage.row for passage in item.passages]} for item in items]
    with atomic_write(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, COLUMNS), partial, compression="zstd")
    return len(rows)


def read_items(path: str | Path) -> list[Item]:
    """Return the items of a Parquet file. Raises UserError for a damaged file."""
    with damage_named(str(path)):
        rows = pq.read_table(path).to_pylist()
    return [
        Item(**row | {"passages": tuple(Passage.of(entry["text"], entry["scored"]) for entry in row["passages"])})
        for row in rows
    ]


def draw(collection: str, files: Mapping[str, Sequence[str]], recipe: Mapping) -> Iterator[Item]:
    """Yield documents of each held-out split of a text in the order of a seeded draw, smaller draws first.

    files   Parquet files of each split
    recipe  documents (of each split), characters (of each document), seed, responses (whether only these are scored)
    """
    for number, split in enumerate(HELD_OUT):
        total = sum(map(count_documents, files[split]))
        rows = generator("scored documents", recipe["seed"], number).permutation(total)[: recipe["documents"]]
        texts = read_in_order(files[split], rows, "text")
        spans = read_in_order(files[split], rows, RESPONSES.name) if recipe.get("responses") else [None] * len(rows)
        for row, text, responses in zip(rows, texts, spans, strict=True):
            passage = Passage.of(text, responses).beginning(recipe["characters"])
            if passage.bytes:  # 0 if its responses begin after the cut
                yield Item(collection, split, "", f"{collection}/{split}/{row}", (passage,))


def read_in_order(files: Sequence[str], rows: np.ndarray, column: str) -> list:
    """Return the values of a column in these rows of the files, in the order of `rows`."""
    order = np.argsort(rows)
    values = [value for batch in read_column(files, rows[order], column=column) for value in batch.to_pylist()]
    return [values[place] for place in np.argsort(order)]
