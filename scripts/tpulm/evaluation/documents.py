"""Held-out documents that models are scored on: drawn by a seed, the same for every model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.files import atomic_write
from tpulm.core.random_streams import generator
from tpulm.corpus.documents import RESPONSES, count_documents, read_rows, whole
from tpulm.specs.artifacts import HELD_OUT, OF_RESPONSES

COLUMNS = pa.schema([("split", pa.string()), ("item", pa.string()), ("text", pa.string())])


class Answered(NamedTuple):
    """A document whose responses are scored, given what is before each: the characters of each, as (start, stop)."""

    text: str
    responses: tuple[tuple[int, int], ...]


Passage = str | Answered  # what is scored: all of a text, or its responses


def text_of(passage: Passage) -> str:
    """Return the whole text of a passage."""
    return passage if isinstance(passage, str) else passage.text


def responses_of(passage: Passage) -> list[tuple[int, int]]:
    """Return the characters of a passage that are scored, as (start, stop)."""
    return [(0, len(passage))] if isinstance(passage, str) else list(passage.responses)


def bytes_of(passage: Passage) -> int:
    """Return how many bytes of UTF-8 of a passage are scored."""
    return sum(len(text_of(passage)[start:stop].encode()) for start, stop in responses_of(passage))


def beginning(passage: Passage, characters: int) -> Passage:
    """Return the first characters of a passage, with what of its responses is among them."""
    if isinstance(passage, str):
        return passage[:characters]
    kept = [(start, min(stop, characters)) for start, stop in passage.responses if start < characters]
    return Answered(passage.text[:characters], tuple(kept))


@dataclass(frozen=True)
class TextSet:
    """Documents that are scored together.

    name   in words, such as corpus validation
    items  name of each document; texts  what of it is scored
    split  that they are of
    """

    name: str
    items: list[str]
    texts: list[Passage]
    split: str

    @property
    def scored(self) -> str:
        """What of them is scored, in words, such as corpus validation, responses."""
        return self.name if all(isinstance(text, str) for text in self.texts) else f"{self.name}{OF_RESPONSES}"

    @property
    def whole(self) -> "TextSet":
        """The same with whole texts, as models are scored on that are trained on all tokens."""
        return replace(self, texts=list(map(text_of, self.texts)))


def draw(files: Sequence[str], number: int, *key: int) -> tuple[np.ndarray, list[str]]:
    """Return rows of documents of a split, int64 [drawn], and the documents, in the order in which they were drawn.

    number  how many at most, so that the first of them are those of a smaller number
    key     of the random numbers
    """
    total = sum(map(count_documents, files))
    rows = generator("scored documents", *key).permutation(total)[:number]
    return rows, in_order(files, rows)


def in_order(files: Sequence[str], rows: np.ndarray, column: str = "text") -> list:
    """Return the values of a column of documents with these numbers, in this order."""
    order = np.argsort(rows)
    values = [value for batch in read_rows(files, rows[order], column=column) for value in batch]
    return [values[place] for place in np.argsort(order)]


def write_sample(path: str | Path, collection: str, files: Mapping[str, Sequence[str]], recipe: Mapping) -> int:
    """Draw documents of a text and write them as Parquet: split, item, text. Returns how many there are.

    files   of each held-out split
    recipe  documents of each, characters of a document, seed; responses, where these are scored
    """
    columns = COLUMNS.append(RESPONSES) if recipe.get("responses") else COLUMNS
    table: dict[str, list] = {name: [] for name in columns.names}
    for number, split in enumerate(HELD_OUT):
        rows, texts = draw(files[split], recipe["documents"], recipe["seed"], number)
        passages: list[Passage] = list(texts)
        if recipe.get("responses"):
            spans = in_order(files[split], rows, RESPONSES.name)
            passages = [answered(text, own) for text, own in zip(texts, spans, strict=True)]
        passages = [beginning(passage, recipe["characters"]) for passage in passages]
        # Where a response begins later, nothing is scored.
        chosen = [
            (f"{collection}/{split}/{row}", passage)
            for row, passage in zip(rows, passages, strict=True)
            if bytes_of(passage)
        ]
        table["split"] += [split] * len(chosen)
        table["item"] += [item for item, _ in chosen]
        table["text"] += [text_of(passage) for _, passage in chosen]
        if recipe.get("responses"):
            table[RESPONSES.name] += responses_column([passage for _, passage in chosen])
    with atomic_write(path) as partial:
        pq.write_table(pa.table(table, columns), partial, compression="zstd")
    return len(table["item"])


def answered(text: str, responses: Sequence[Mapping[str, int]] | None) -> Passage:
    """Return the passage of a row, whose `responses` are as `RESPONSES` has them; None where all of it is scored."""
    return text if responses is None else Answered(text, tuple((one["start"], one["stop"]) for one in responses))


def responses_column(passages: Sequence[Passage]) -> list[list[dict[str, int]] | None]:
    """Return the responses of passages as `RESPONSES` has them, None where all of a text is scored."""
    return [
        None if isinstance(passage, str) else [{"start": start, "stop": stop} for start, stop in passage.responses]
        for passage in passages
    ]


def passages_of(columns: Mapping[str, list]) -> list[Passage]:
    """Return the passages of a table with a column `text` and, where responses are scored, `responses`."""
    responses = columns.get(RESPONSES.name, [None] * len(columns["text"]))
    return [answered(*row) for row in zip(columns["text"], responses, strict=True)]


def read_sample(path: str | Path, documents: int | None = None) -> list[TextSet]:
    """Return the documents that `write_sample` wrote, those of each split as a set; the file has the name of the text.

    documents  of each split, at most: those that were drawn first; all by default

    Raises UserError when the file is damaged.
    """
    with whole(str(path)):
        columns = pq.read_table(path).to_pydict()
    rows = list(zip(columns["split"], columns["item"], passages_of(columns), strict=True))
    found = []
    for split in HELD_OUT:
        own = [(item, text) for name, item, text in rows if name == split][:documents]
        if own:
            items, texts = map(list, zip(*own, strict=True))
            found.append(TextSet(f"{Path(path).stem} {split}", items, texts, split))
    return found
