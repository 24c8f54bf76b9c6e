"""Items that models are scored on: held-out documents, drawn by a seed, and pairs of sentences, as rows of a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.files import atomic_write
from tpulm.core.random_streams import generator
from tpulm.corpus.documents import RESPONSES, count_documents, read_column, whole
from tpulm.specs.artifacts import HELD_OUT

PASSAGE = [pa.field("text", pa.string()), pa.field("scored", RESPONSES.type)]
COLUMNS = pa.schema(
    [*((name, pa.string()) for name in ("set", "split", "kind", "item")), ("passages", pa.list_(pa.struct(PASSAGE)))]
)


class Passage(NamedTuple):
    """A text, and the characters of it that are scored, given what is before each: spans of (start, stop)."""

    text: str
    scored: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str, spans: Iterable[Mapping[str, int]] | None = None) -> "Passage":
        """Return a text with its spans, each with `start` and `stop`; without any, all of the text is scored."""
        if spans is None:
            return cls(text, ((0, len(text)),))
        return cls(text, tuple((span["start"], span["stop"]) for span in spans))

    @property
    def is_whole(self) -> bool:
        """Whether all of the text is scored."""
        return self.scored == ((0, len(self.text)),)

    @property
    def bytes(self) -> int:
        """How many bytes of UTF-8 are scored."""
        return sum(len(self.text[start:stop].encode()) for start, stop in self.scored)

    @property
    def row(self) -> dict:
        """The passage as a row of a table."""
        return {"text": self.text, "scored": [{"start": start, "stop": stop} for start, stop in self.scored]}

    def beginning(self, characters: int) -> "Passage":
        """Return the first characters, with what of the spans is among them."""
        kept = [(start, min(stop, characters)) for start, stop in self.scored if start < characters]
        return Passage(self.text[:characters], tuple(kept))


class Item(NamedTuple):
    """A document, which has one passage, or a pair, which has two: the good sentence and the bad one.

    set    name of a text or of a set of pairs; item  its name within the set
    split  of a document, "" for a pair; kind  what a pair is about, "" for a document
    """

    set: str
    split: str
    kind: str
    item: str
    passages: tuple[Passage, ...]

    @property
    def part(self) -> str:
        """The part of its set that it is scored with: `corpus test`, or all pairs."""
        return f"{self.set} {self.split}".strip()

    @property
    def whole(self) -> "Item":
        """The same with all of each text scored, as models are that are trained on all tokens."""
        return self._replace(passages=tuple(Passage.of(passage.text) for passage in self.passages))


def write_items(path: str | Path, items: Iterable[Item]) -> int:
    """Write items as Parquet. Returns how many there are."""
    rows = [item._asdict() | {"passages": [passage.row for passage in item.passages]} for item in items]
    with atomic_write(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, COLUMNS), partial, compression="zstd")
    return len(rows)


def read_items(path: str | Path) -> list[Item]:
    """Return the items of a file. Raises UserError when it is damaged."""
    with whole(str(path)):
        rows = pq.read_table(path).to_pylist()
    return [
        Item(**row | {"passages": tuple(Passage.of(one["text"], one["scored"]) for one in row["passages"])})
        for row in rows
    ]


def draw(collection: str, files: Mapping[str, Sequence[str]], recipe: Mapping) -> Iterator[Item]:
    """Yield documents of a text, those of each held-out split in the order in which they were drawn.

    files   of each held-out split
    recipe  documents of each, so that the first of them are those of a smaller number; characters of a document, seed;
            responses, where these are scored
    """
    for number, split in enumerate(HELD_OUT):
        total = sum(map(count_documents, files[split]))
        rows = generator("scored documents", recipe["seed"], number).permutation(total)[: recipe["documents"]]
        texts = read_in_order(files[split], rows, "text")
        spans = read_in_order(files[split], rows, RESPONSES.name) if recipe.get("responses") else [None] * len(rows)
        for row, text, responses in zip(rows, texts, spans, strict=True):
            passage = Passage.of(text, responses).beginning(recipe["characters"])
            if passage.bytes:  # where a response begins later, nothing is scored
                yield Item(collection, split, "", f"{collection}/{split}/{row}", (passage,))


def read_in_order(files: Sequence[str], rows: np.ndarray, column: str) -> list:
    """Return the values of a column of documents with these numbers, in this order."""
    order = np.argsort(rows)
    values = [value for batch in read_column(files, rows[order], column=column) for value in batch.to_pylist()]
    return [values[place] for place in np.argsort(order)]
