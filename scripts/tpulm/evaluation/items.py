"""What each item of an evaluation is worth, as a table: the same bytes for the same values."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.files import atomic_write

SCHEMA = pa.schema([("score", pa.string()), ("item", pa.string()), ("value", pa.float64())])
WEIGHT = "weight"  # of items that do not count the same, such as the bytes of documents
Values = dict[str, tuple[float, float]]


def write_items(path: str | Path, items: Iterable[tuple[str, str, float]]) -> None:
    """Write (name of the score, item, value); items have the same name for every model."""
    columns: tuple = tuple(zip(*items, strict=True)) or ((), (), ())
    table = pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), SCHEMA)
    with atomic_write(path) as partial:
        pq.write_table(table, partial, compression="zstd", write_statistics=False)


def read_items(path: str | Path) -> dict[str, Values]:
    """Return value and weight of each item, by the name of the score; where the table has no weights, 1."""
    found: dict[str, Values] = {}
    table = pq.read_table(path)
    columns = [table[name].to_pylist() for name in SCHEMA.names]
    weights = table[WEIGHT].to_pylist() if WEIGHT in table.column_names else [1.0] * table.num_rows
    for score, item, value, weight in zip(*columns, weights, strict=True):
        found.setdefault(score, {})[item] = value, weight
    return found
