"""Documents as Parquet, written and read in row groups that fit in memory, whatever batches they come in."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tpulm.core import bucket
from tpulm.core.errors import UserError

# Of a text where the responses count: the characters of each, up to but without `stop`.
RESPONSES = pa.field("responses", pa.list_(pa.struct({"start": pa.int32(), "stop": pa.int32()})))
ROW_GROUP = 10_000  # documents
ROW_GROUP_CHARACTERS = 4 << 20  # so that little more is read than is wanted, also of long documents


class DocumentFile:
    """A Parquet file with a column `text`, whose bytes do not depend on the batches that are written."""

    def __init__(self, path: Path, schema: pa.Schema, compression: Mapping[str, str] | str = "zstd"):
        """Open `path` for writing."""
        self.schema = schema
        self.writer = pq.ParquetWriter(
            path, schema, compression=compression, use_dictionary=False, write_statistics=False
        )
        self.waiting: list[pa.RecordBatch] = []
        self.rows = self.characters = 0  # that are waiting

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
        """Write what is waiting as a row group."""
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
    """Open a Parquet file of this machine, or one in a bucket, of which then only what is asked for is read."""
    return pq.ParquetFile(bucket.Object(str(path)) if bucket.remote(path) else path)


def read_columns(path: str | Path, *columns: str) -> Iterator[pa.RecordBatch]:
    """Yield columns of a part, a row group at a time. Raises UserError when the file is damaged."""
    with whole(path), open_table(path) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, columns=list(columns)).combine_chunks().to_batches()


def read_array(path: str | Path, start: int, stop: int) -> np.ndarray:
    """Return elements `start` to `stop` of a NumPy file of one dimension; of one in a bucket, no more is read."""
    with bucket.Object(str(path)) if bucket.remote(path) else open(path, "rb") as file:
        np.lib.format.read_magic(file)
        _, _, dtype = np.lib.format.read_array_header_1_0(file)
        file.seek(start * dtype.itemsize, os.SEEK_CUR)
        return np.frombuffer(file.read((stop - start) * dtype.itemsize), dtype)


@contextlib.contextmanager
def whole(path: str | Path) -> Iterator[None]:
    """Raise UserError where a Parquet file of this workflow turns out to be damaged while it is read."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"{path} is damaged ({said}); delete the file and run again.") from error
