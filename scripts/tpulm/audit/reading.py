"""Read one file, and say what is wrong with it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpulm.core.errors import UserError
from tpulm.training.history import FIGURES, TIMINGS


def attempt(path: Path, read: Callable[[Path], Any]) -> tuple[Any, list[str]]:
    """Return what reading a file gave, None where it failed, and the damage that this is."""
    if not path.exists():
        return None, [f"{path} is missing."]
    try:
        return read(path), []
    except UserError as error:
        return None, [str(error)]
    except Exception as error:  # whatever the libraries raise for bytes that are not what they expect
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return None, [f"{path} cannot be read: {lines[0][:200]}"]


def read_hdf5(path: Path) -> None:
    """Read every dataset of an HDF5 file. Raises OSError when it is not whole."""
    import h5py

    with h5py.File(path) as file:
        file.visititems(lambda _, item: item[()] if isinstance(item, h5py.Dataset) else None)


# What was measured on, the costliest operations; what weights a chain began with; what is compared, and what came out.
TEXT_COLUMNS = {
    "devices", "profile", "weights", "selected", "stage", "run", "settings", "first", "second", "score",
    "higher_is_better", "verdict", "because",
}  # fmt: skip


def read_csv(path: Path) -> None:
    """Read a table. Raises UserError for a row without a cell, or without the number, of each column.

    Cells are numbers or empty but for those of TEXT_COLUMNS; what training writes in every row is never empty.
    """
    columns = {"history.csv": FIGURES, "timings.csv": TIMINGS}.get(path.name, ())
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file, strict=True)
        head = next(rows, None)
        if not head:
            raise UserError(f"{path} is damaged: it is empty.")
        if tuple(head[: len(columns)]) != columns:
            raise UserError(f"{path} is damaged: its columns do not begin with {', '.join(columns)}.")
        for row in rows:
            try:
                for name, cell in zip(head, row, strict=True):
                    if name in columns or (cell and name not in TEXT_COLUMNS):
                        float(cell)
            except ValueError:
                kind = f"no row of the columns {', '.join(head)}"
                raise UserError(f"{path} is damaged: {json.dumps(','.join(row))[:100]} is {kind}.") from None
