"""Read the documents of a corpus: Parquet files with a column `text`, one document per row.

Several files are read as one. Of files in a bucket (gs://BUCKET/NAME) only the row groups that are wanted are read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.corpus.tables import open_table, whole

Files = str | Sequence[str]


@dataclass
class RowGroup:
    """Documents `start` to `stop` of the files: row group `number` of an open one."""

    path: str
    file: pq.ParquetFile
    number: int
    start: int
    stop: int

    def read(self, column: str = "text") -> pa.Array:
        """Read a column of the documents. Raises UserError when the file is damaged."""
        with whole(self.path):
            return self.file.read_row_group(self.number, columns=[column])[column].combine_chunks()


def row_groups(files: Files) -> Iterator[RowGroup]:
    """Yield the row groups of files in order, unread. Raises UserError when a file is damaged."""
    start = 0
    for path in [files] if isinstance(files, str) else files:
        with whole(path), open_table(path) as file:
            for number in range(file.num_row_groups):
                stop = start + file.metadata.row_group(number).num_rows
                yield RowGroup(path, file, number, start, stop)
                start = stop


def read_batches(
    files: Files, start: int = 0, stop: int | None = None, size: int = 1000, column: str = "text"
) -> Iterator[pa.Array]:
    """Yield documents `start` to `stop` of corpus files in order, as string arrays of at most `size`.

    column  another one that is to be read instead

    Only the row groups that hold them are read, one at a time. Raises UserError when a file is damaged.
    """
    for group in row_groups(files):
        low, high = max(start, group.start), group.stop if stop is None else min(stop, group.stop)
        if low < high:
            values = group.read(column)
            for first in range(low, high, size):
                yield values.slice(first - group.start, min(size, high - first))
        if stop is not None and stop <= group.stop:
            return


def read_texts(files: Files, start: int = 0, stop: int | None = None, size: int = 1000) -> Iterator[list[str]]:
    """Yield documents `start` to `stop` of corpus files in order, as lists of at most `size`."""
    for batch in read_batches(files, start, stop, size):
        yield batch.to_pylist()


def read_responses(
    files: Files, start: int = 0, stop: int | None = None, size: int = 1000
) -> Iterator[list[list[tuple[int, int]]]]:
    """Yield where the responses of the documents are that `read_texts` yields: characters, as (start, stop)."""
    for batch in read_batches(files, start, stop, size, "responses"):
        yield [[(span["start"], span["stop"]) for span in spans] for spans in batch.to_pylist()]


def read_rows(files: Files, rows: np.ndarray, size: int = 1000) -> Iterator[list[str]]:
    """Yield the documents with these numbers, ascending integers of shape [n], as lists of at most `size`.

    Row groups without any are not read. Raises UserError when a file is damaged.
    """
    for group in row_groups(files):
        own = rows[slice(*np.searchsorted(rows, [group.start, group.stop]))] - group.start
        if len(own):
            texts = group.read()
            for first in range(0, len(own), size):
                yield texts.take(pa.array(own[first : first + size])).to_pylist()


def read_lengths(files: Files) -> list[np.ndarray]:
    """Return the characters of each document of each corpus file, int32 of shape [documents], from the files beside."""
    return [np.load(path, mmap_mode="r") for path in ([files] if isinstance(files, str) else files)]
