"""Read one file, and say what is wrong with it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpulm.core.errors import UserError


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


# Columns that hold text: what was measured on, the costliest operations; what weights a chain began with.
TEXT_COLUMNS = {"devices", "profile", "weights", "selected"}


def read_csv(path: Path) -> None:
    """Read a table of numbers, and of text in TEXT_COLUMNS. Raises UserError for a row that is not one."""
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                [float(value) for name, value in row.items() if name not in TEXT_COLUMNS]
            except (TypeError, ValueError):
                raise UserError(f"{path} is damaged: {json.dumps(row)[:100]} is no row of numbers.") from None
