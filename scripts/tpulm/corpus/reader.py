"""Read the documents of a corpus: Parquet with a column `text`, one document per row; see tpulm.corpus.splits."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tpulm.core.errors import UserError


def read_batches(
    path: str, start: int = 0, stop: int | None = None, size: int = 1000, column: str = "text"
) -> Iterator[pa.Array]:
    """Yield documents `start` to `stop` of a corpus file in order, as string arrays of at most `size`.

    column  another one that is to be read instead

    Only the row groups that hold them are read, one at a time. Raises UserError when the file is damaged.
    """
    try:
        file = pq.ParquetFile(path)
        stop = file.metadata.num_rows if stop is None else stop
        first = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            low, high = max(start - first, 0), min(stop - first, rows)
            if low < high:
                values = file.read_row_group(group, columns=[column])[column].combine_chunks()
                for offset in range(low, high, size):
                    yield values.slice(offset, min(size, high - offset))
            first += rows
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"{path} is damaged ({reason}); delete the file and run again.") from error


def read_texts(path: str, start: int = 0, stop: int | None = None, size: int = 1000) -> Iterator[list[str]]:
    """Yield documents `start` to `stop` of a corpus file in order, as lists of at most `size`."""
    for batch in read_batches(path, start, stop, size):
        yield batch.to_pylist()


def read_responses(
    path: str, start: int = 0, stop: int | None = None, size: int = 1000
) -> Iterator[list[list[tuple[int, int]]]]:
    """Yield where the responses of the documents are that `read_texts` yields: characters, as (start, stop)."""
    for batch in read_batches(path, start, stop, size, "responses"):
        yield [[(span["start"], span["stop"]) for span in spans] for spans in batch.to_pylist()]


def read_lengths(path: str) -> pa.Array:
    """Return the length of every document in characters, int32 of shape [documents]."""
    lengths = [pc.utf8_length(batch).cast(pa.int32()) for batch in read_batches(path, size=100_000)]
    return pa.concat_arrays(lengths) if lengths else pa.array([], pa.int32())
