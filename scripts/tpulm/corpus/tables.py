"""Documents as Parquet, written and read in row groups that fit in memory, whatever batches they come in."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tpulm.core.errors import UserError

# Of a text where the responses count: the characters of each, up to but without `stop`.
RESPONSES = pa.field("responses", pa.list_(pa.struct({"start": pa.int32(), "stop": pa.int32()})))
ROW_GROUP = 10_000  # documents
ROW_GROUP_CHARACTERS = 64 << 20  # so that a row group of long documents fits in memory


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
    return pq.read_metadata(path).num_rows


def read_columns(path: str | Path, *columns: str) -> Iterator[pa.RecordBatch]:
    """Yield columns of a part, a row group at a time. Raises UserError when the file is damaged."""
    try:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, columns=list(columns)).combine_chunks().to_batches()
    except (pa.ArrowException, OSError, KeyError) as error:
        said = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"{path} is damaged ({said}); delete the file and run again.") from error


def texts_at(parts: Iterable[str], rows: Iterable[int]) -> dict[int, str]:
    """Return the texts of documents by their number among those of all parts."""
    wanted = sorted(set(rows))
    found: dict[int, str] = {}
    first = 0
    for part in parts:
        own = [row for row in wanted if first <= row < first + count_documents(part)]
        start = first
        for batch in read_columns(part, "text") if own else []:
            found |= {row: batch["text"][row - start].as_py() for row in own if start <= row < start + batch.num_rows}
            start += batch.num_rows
        first += count_documents(part)
    return found
