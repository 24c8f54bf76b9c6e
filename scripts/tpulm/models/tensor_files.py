"""Read tensors from the safetensors files of a folder of transformers, one in memory at a time."""

from pathlib import Path

import ml_dtypes  # noqa: F401  makes bfloat16 known to NumPy, and so to safetensors
import numpy as np
from safetensors import SafetensorError, safe_open

from tpulm.core.arrays import damaged
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.specs.artifacts import SHARD_INDEX


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a folder, by the tensor's name. Raises UserError for a damaged file.

    Files outside the index, such as consolidated.safetensors of Mistrals, are copies with other names.
    """
    paths: dict[str, Path] = {}
    index = folder / SHARD_INDEX
    files = set(read_json(index)["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    for path in sorted(folder / file for file in files):
        if not path.is_file() and index.is_file():
            raise UserError(f"{folder} has no {path.name}, which {SHARD_INDEX} names.")
        if not path.is_file():
            continue
        try:
            with safe_open(path, "np") as file:
                paths |= dict.fromkeys(sorted(file.keys()), path)
        except SafetensorError as error:
            raise damaged(path, error) from None
    return paths


def read_tensor(path: Path, name: str) -> np.ndarray:
    """Return a tensor of a file."""
    with safe_open(path, "np") as file:
        return file.get_tensor(name)


def shape_of(path: Path, name: str) -> list[int]:
    """Return the shape of a tensor of a file without reading the tensor."""
    with safe_open(path, "np") as file:
        return file.get_slice(name).get_shape()
