"""Write the splits of a text from its parts: one Parquet file each, and the lengths of its documents.

Its columns are `text` and, where the responses count, `responses`: the characters of each.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpulm.config.artifacts import SPLITS, lengths_file
from tpulm.core.files import atomic_write
from tpulm.corpus.decisions import TRAIN, refuse_empty
from tpulm.corpus.parts import key_numbers
from tpulm.corpus.statistics import Figures
from tpulm.corpus.tables import RESPONSES, DocumentFile, count_documents, read_columns

SCHEMA = pa.schema({"text": pa.string()})


class SplitFile(DocumentFile):
    """The file of a split, with the figures of what is written to it, by source too."""

    def __init__(self, path: Path, most: int | None, schema: pa.Schema):
        """Open `path` for writing at most so many documents."""
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
            own = self.sources.setdefault(source, {"documents": 0, "characters": 0})
            own["documents"] += len(chosen)
            own["characters"] += figures.characters - characters


def write_splits(
    recipe: dict, parts: Sequence[str], codes: np.ndarray, dropped: dict, outputs: dict[str, str], some: bool = False
) -> tuple[dict[str, dict], dict[str, dict]]:
    """Write the documents of the parts to one file per split; return the figures of each split, and of each source.

    recipe   key (of the text in the config, for the messages); max_documents (of each split, None for all); where a
             text has several sources: sources (the name of each part's) and weights (by name)
    codes    split of each document of the parts, as `assign` returns it
    dropped  how many documents of each split were dropped, by reason
    outputs  path of each split; beside it, with the extension .lengths.npy, comes the length of each document
    some     whether these are only some parts of a text, of which a split may be empty

    Raises UserError when a split stays empty.
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
            for number, batch, own in with_codes(parts, codes, [weight > time for weight in weights], schema.names):
                own = np.where(repeated(batch, weights[number], time) | (own != TRAIN), own, len(SPLITS))
                for code, split in enumerate(SPLITS):
                    if not time or code == TRAIN:
                        files[split].take(batch, np.flatnonzero(own == code), names[number])
        for split in SPLITS:
            if not some:
                refuse_empty(recipe["key"], split, files[split].figures.documents, dropped)
            lengths = stack.enter_context(atomic_write(lengths_file(outputs[split])))
            with open(lengths, "wb") as file:
                np.save(file, np.concatenate(files[split].figures.lengths))
    figures = {
        split: files[split].figures.as_dict() | {f"dropped_{reason}": count for reason, count in dropped[split].items()}
        for split in SPLITS
    }
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


def repeated(batch: pa.RecordBatch, weight: float, time: int) -> np.ndarray:
    """Return whether each document of a batch is taken once more, after it was taken `time` times.

    A document is taken floor(weight) times, and once more where its key, which is random, is low enough. Its second
    half is compared: the first decides which documents are held out.
    """
    share = weight - time
    if share >= 1:
        return np.ones(batch.num_rows, bool)
    _, low = key_numbers(batch)
    return (low >> 11).astype(np.float64) < share * 2.0**53  # which a float64 holds exactly
