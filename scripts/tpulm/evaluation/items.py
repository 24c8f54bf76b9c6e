"""What each item of an evaluation is worth, read back."""

from pathlib import Path

import pyarrow.parquet as pq

COLUMNS = ("score", "item", "value")
Values = dict[str, float]


def read_items(path: str | Path) -> dict[str, Values]:
    """Return the value of each item, by the name of the score."""
    found: dict[str, Values] = {}
    table = pq.read_table(path, columns=list(COLUMNS))
    for score, item, value in zip(*(table[name].to_pylist() for name in COLUMNS), strict=True):
        found.setdefault(score, {})[item] = value
    return found
