"""Write the splits of a text from its parts: one Parquet file each, with the column `text`."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpulm.config.artifacts import SPLITS
from tpulm.core.files import atomic_write
from tpulm.corpus.assignment import refuse_empty
from tpulm.corpus.parts import read_columns
from tpulm.corpus.statistics import Figures
from tpulm.corpus.tables import DocumentFile

SCHEMA = pa.schema({"text": pa.string()})


class SplitFile(DocumentFile):
    """The file of a split, with the figures of what is written to it."""

    def __init__(self, path: Path, most: int | None):
        """Open `path` for writing at most so many documents."""
        super().__init__(path, SCHEMA)
        self.figures, self.most = Figures(), most

    def take(self, batch: pa.RecordBatch, chosen: np.ndarray) -> None:
        """Write the documents at these indices of a batch of text and words."""
        if self.most is not None:
            chosen = chosen[: self.most - self.figures.documents]
        if len(chosen):
            picked = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
            self.figures.add(picked["text"], pc.sum(picked["words"]).as_py())
            self.add(picked.select(["text"]))


def write_splits(
    where: str, most: int | None, parts: Sequence[str], codes: np.ndarray, dropped: dict, outputs: dict[str, str]
) -> dict[str, dict]:
    """Write the documents of the parts to one file per split; return the figures of each split.

    where    config key of the text, for the messages
    most     documents to take of each split at the most; None is all
    codes    split of each document of the parts, as `assign` returns it
    dropped  how many documents of each split were dropped, by reason
    outputs  path of each split

    Raises UserError when a split stays empty.
    """
    with contextlib.ExitStack() as stack:
        partial = {split: stack.enter_context(atomic_write(outputs[split])) for split in SPLITS}
        files = {split: stack.enter_context(contextlib.closing(SplitFile(partial[split], most))) for split in SPLITS}
        for batch, own in with_codes(parts, codes):
            for code, split in enumerate(SPLITS):
                files[split].take(batch, np.flatnonzero(own == code))
        for split in SPLITS:
            refuse_empty(where, split, files[split].figures.documents, dropped)
    return {
        split: files[split].figures.as_dict() | {f"dropped_{reason}": count for reason, count in dropped[split].items()}
        for split in SPLITS
    }


def with_codes(parts: Sequence[str], codes: np.ndarray) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Yield the texts and words of all parts in order, a row group at a time, each with the codes of its documents."""
    first = 0
    for part in parts:
        for batch in read_columns(part, "text", "words"):
            yield batch, codes[first : first + batch.num_rows]
            first += batch.num_rows
