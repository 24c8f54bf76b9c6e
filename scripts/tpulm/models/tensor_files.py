"""Read and write the safetensors files of a folder of transformers, one tensor or one file in memory at a time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  makes bfloat16 known to NumPy, and so to safetensors
import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tpulm.core.arrays import damaged
from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write, read_json, write_json
from tpulm.specs.artifacts import MODEL_WEIGHTS, SHARD_INDEX

SHARD_BYTES = 2_000_000_000


def weight_files(folder: Path) -> list[Path]:
    """Return the paths of the safetensors files of a folder, by its index if it has one; they need not exist.

    Files outside the index, such as consolidated.safetensors of Mistrals, are copies with other names.
    """
    index = folder / SHARD_INDEX
    files = set(read_json(index)["weight_map"].values()) if index.is_file() else {MODEL_WEIGHTS}
    return sorted(folder / file for file in files)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a folder, by the tensor's name. Raises UserError for a damaged file."""
    paths: dict[str, Path] = {}
    for path in weight_files(folder):
        if not path.is_file() and (folder / SHARD_INDEX).is_file():
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


def save_tensors(path: str | Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays, by PyTorch's names and in its layout, to a file marked `format: pt`, whole or not at all."""
    with atomic_write(path) as partial:
        save_file(arrays, partial, metadata={"format": "pt"})


@dataclass(frozen=True)
class Tensor:
    """A tensor that is not in memory: its number of bytes, and a function that reads it."""

    nbytes: int
    read: Callable[[], np.ndarray]

    @classmethod
    def of(cls, shape: tuple[int, ...], itemsize: int, read: Callable[[], np.ndarray]) -> "Tensor":
        """Return a tensor of `shape` with elements of `itemsize` bytes."""
        return cls(math.prod(shape) * itemsize, read)


def save_shards(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write tensors by name to `model.safetensors`, or to several shards and an index if they are larger.

    One shard is in memory at a time. A tensor that is larger than `shard_bytes` is a shard of its own.
    """
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        save_tensors(folder / file, {name: tensors[name].read() for name in names})
    if split.is_sharded:
        write_json(folder / SHARD_INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
