"""Parquet files of documents, written and read in row groups that fit in memory; codes and counts of dropped documents.

Several files are read as one. Only the wanted row groups of a file in a bucket (gs://BUCKET/NAME) are read.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tpulm.core import bucket
from tpulm.core.errors import UserError, first_line
from tpulm.specs.artifacts import SPLITS

# The characters of each response, `stop` exclusive, in a text where the responses count.
RESPONSES = pa.field("responses", pa.list_(pa.struct({"start": pa.int32(), "stop": pa.int32()})))
ROW_GROUP = 10_000  # documents of a full row group
ROW_GROUP_CHARACTERS = 4 << 20  # so that a few long documents are read without many others


class DocumentFile:
    """A Parquet file with a column `text`, whose bytes do not depend on the batches that are written."""

    def __init__(self, path: Path, schema: pa.Schema, compression: Mapping[str, str] | str = "zstd"):
        """Open `path` for writing."""
        self.schema = schema
        self.writer = pq.ParquetWriter(
            path, schema, compression=compression, use_dictionary=False, write_statistics=False
        )
        self.waiting: list[pa.RecordBatch] = []
        self.rows = self.characters = 0  # those in `waiting`

    def add(self, batch: pa.RecordBatch) -> None:
        """Write documents."""
        ends = np.cumsum(pc.utf8_length(batch["text"]).to_numpy(zero_copy_only=False), dtype=np.int64)
        start, passed = 0, 0
        while start < len(ends):
            full = int(np.searchsorted(ends, passed + ROW_GROUP_CHARACTERS - self.characters)) + 1
            stop = min(start + ROW_GROUP - self.rows, full, len(ends))
            self.waiting.append(batch.slice(start, stop - start))
            self.rows += stop - start
            self.characters += int(ends[stop - 1]) - passed
            if self.rows == ROW_GROUP or self.characters >= ROW_GROUP_CHARACTERS:
                self.flush()
            start, passed = stop, int(ends[stop - 1])

    def flush(self) -> None:
        """Write the waiting documents as a row group."""
        if self.waiting:
            # In one chunk: where chunks end, pages may.
            table = pa.Table.from_batches(self.waiting, self.schema).combine_chunks()
            self.writer.write_table(table, row_group_size=ROW_GROUP)
        self.waiting, self.rows, self.characters = [], 0, 0

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        self.writer.close()


def count_documents(path: str) -> int:
    """Return the number of documents of a part."""
    with open_table(path) as file:
        return file.metadata.num_rows


def open_table(path: str | Path) -> pq.ParquetFile:
    """Open a Parquet file; from one in a bucket, only the requested bytes are read."""
    return pq.ParquetFile(bucket.Object(str(path)) if bucket.remote(path) else path)


def read_columns(path: str | Path, *columns: str) -> Iterator[pa.RecordBatch]:
    """Yield columns of a part, a row group at a time. Raises UserError when the file is damaged."""
    with damage_named(path), open_table(path) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, columns=list(columns)).combine_chunks().to_batches()


def read_array(path: str | Path, start: int, stop: int) -> np.ndarray:
    """Return elements `start` to `stop` of a one-dimensional NumPy file, without reading the others."""
    with bucket.Object(str(path)) if bucket.remote(path) else open(path, "rb") as file:
        np.lib.format.read_magic(file)
        _, _, dtype = np.lib.format.read_array_header_1_0(file)
        file.seek(start * dtype.itemsize, os.SEEK_CUR)
        return np.frombuffer(file.read((stop - start) * dtype.itemsize), dtype)


@contextlib.contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Raise UserError if reading a Parquet file of this workflow shows that it is damaged."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(f"{path} is corrupt ({first_line(error)}); delete the file and run again.") from error


Files = str | Sequence[str]
Rows = slice | np.ndarray
ALL = slice(0, None)


def read_column(files: Files, rows: Rows = ALL, size: int = 1000, column: str = "text") -> Iterator[pa.Array]:
    """Yield a column of documents of corpus files, in order, as arrays of at most `size`.

    rows  which documents: a slice, or their numbers, ascending integers of shape [n]

    Only row groups that hold some of them are read, one at a time. Raises UserError when a file is damaged.
    """
    first = 0
    end = rows.stop if isinstance(rows, slice) else rows[-1] + 1 if len(rows) else 0
    for path in [files] if isinstance(files, str) else files:
        if end is not None and end <= first:
            return
        with damage_named(path), open_table(path) as file:
            for number in range(file.num_row_groups):
                last = first + file.metadata.row_group(number).num_rows
                if isinstance(rows, slice):
                    wanted = np.arange(max(rows.start, first), last if end is None else min(end, last)) - first
                else:
                    wanted = rows[slice(*np.searchsorted(rows, [first, last]))] - first
                if len(wanted):
                    values = file.read_row_group(number, columns=[column])[column].combine_chunks()
                    for start in range(0, len(wanted), size):
                        yield values.take(pa.array(wanted[start : start + size]))
                first = last


def read_texts(files: Files, rows: Rows = ALL, size: int = 1000) -> Iterator[list[str]]:
    """Yield documents of corpus files as `read_column` does, as lists."""
    for texts in read_column(files, rows, size):
        yield texts.to_pylist()


def read_responses(files: Files, rows: Rows = ALL, size: int = 1000) -> Iterator[list[list[tuple[int, int]]]]:
    """Yield the responses in the documents of `read_texts`: characters, as (start, stop)."""
    for batch in read_column(files, rows, size, "responses"):
        yield [[(span["start"], span["stop"]) for span in spans] for spans in batch.to_pylist()]


def read_lengths(files: Files) -> list[np.ndarray]:
    """Return the lengths of documents in characters, int32 of shape [documents], from each .lengths.npy file."""
    return [bucket.array(path) for path in ([files] if isinstance(files, str) else files)]


TRAIN, VALIDATION, TEST = (SPLITS.index(split) for split in ("train", "validation", "test"))
DUPLICATE, NEAR_DUPLICATE, CONTAMINATED, BEYOND = 10, 11, 12, 13
# Codes of dropped documents by the names of their counts. Documents BEYOND max_documents do not count as dropped.
REASONS = {"duplicates": DUPLICATE, "near_duplicates": NEAR_DUPLICATE}
IN_WORDS = {
    "empty": "empty", "short": "shorter than min_characters", "duplicates": "also in another split",
    "near_duplicates": "near-duplicates", "contaminated": "contaminated",
}  # fmt: skip
# Dropped documents that a record shows, and characters of each, at most.
EXAMPLES, EXAMPLE_CHARACTERS = 20, 200


def count_dropped(splits: Sequence[str], records: Sequence[dict], codes: np.ndarray) -> dict[str, dict[str, int]]:
    """Return the number of dropped documents by split and reason; splits  for which the parts are named."""
    dropped = {split: {"empty": 0, "short": 0, "duplicates": 0} for split in SPLITS}
    first = 0
    for split, record in zip(splits, records, strict=True):
        stop = first + record["documents"]
        counts = np.bincount(codes[first:stop], minlength=256)
        here = record["dropped"] | {reason: int(counts[code]) for reason, code in REASONS.items()}
        for reason, count in here.items():
            if count:
                dropped[split][reason] = dropped[split].get(reason, 0) + count
        first = stop
    basic = ("empty", "short", "duplicates")
    return {
        split: {reason: counts[reason] for reason in (*basic, *sorted(set(counts) - set(basic)))}
        for split, counts in dropped.items()
    }


def refuse_empty(where: str, split: str, documents: int, dropped: dict[str, dict[str, int]]) -> None:
    """Raise UserError when a split has no document, saying why they were dropped."""
    if documents:
        return
    problem, counts = "no documents were found", dropped[split]
    if any(counts.values()):
        reasons = [f"{count} {reason_in_words(reason)}" for reason, count in counts.items()]
        problem = f"of {sum(counts.values())} documents, {', '.join(reasons)}"
    raise UserError(f"{where}: the split {split} is empty: {problem}.")


def reason_in_words(reason: str) -> str:
    """Return the reason for dropping documents, in words that follow their number."""
    return IN_WORDS.get(reason, f"by the filter {reason}")
