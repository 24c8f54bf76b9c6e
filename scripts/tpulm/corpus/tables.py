"""Write documents as Parquet, in row groups that fit in memory, whatever batches they come in."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
