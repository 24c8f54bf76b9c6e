"""Weights as safetensors files of bounded size with an index, as transformers reads them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.numpy import save_file

from tpulm.config.artifacts import SHARD_INDEX
from tpulm.core.files import atomic_write, write_json

SHARD_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Tensor:
    """A tensor that is not in memory yet: its bytes, and a function that returns it."""

    nbytes: int
    read: Callable[[], np.ndarray]

    @classmethod
    def of(cls, shape: tuple[int, ...], itemsize: int, read: Callable[[], np.ndarray]) -> "Tensor":
        """Return the tensor of a shape with elements of `itemsize` bytes."""
        return cls(math.prod(shape) * itemsize, read)


def save_shards(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write tensors by name to `model.safetensors`, or to several files and an index where they are larger.

    A shard is in memory at a time. A tensor that is larger than `shard_bytes` is a shard of its own.
    """
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        with atomic_write(folder / file) as partial:
            save_file({name: tensors[name].read() for name in names}, partial, metadata={"format": "pt"})
    if split.is_sharded:
        write_json(folder / SHARD_INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
