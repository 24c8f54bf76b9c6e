"""Save arrays sharded over devices, possibly of several processes, to safetensors files, and read them.

Several processes write a file together: each writes the parts on its own devices to a file of its own, and the first
process merges these. The bytes are those that one process would write, and no process holds a complete array. (They do
not write to one file: over NFS, hosts that write neighbouring bytes overwrite each other's.) The processes detect
whether they share a folder; if not, the first process gathers all parts.

Orbax is not used because it stores the time of writing: the same config would give different bytes each time.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from jax.experimental import multihost_utils
from safetensors import SafetensorError, safe_open

from tpulm.core.arrays import damaged, save_arrays
from tpulm.core.files import atomic_write

# Names of types in safetensors, in the order in which its own writer sorts arrays; then by name.
TYPES = {
    np.dtype("uint64"): "U64",
    np.dtype("int64"): "I64",
    np.dtype("float64"): "F64",
    np.dtype("float32"): "F32",
    np.dtype("uint32"): "U32",
    np.dtype("int32"): "I32",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}


def by_path(variables: list, values: list) -> dict[str, jax.Array]:
    """Return the values of Keras variables by the variables' paths."""
    return {variable.path: value for variable, value in zip(variables, values, strict=True)}


class Arrays(Mapping):
    """The arrays of a safetensors file by name, each read on access."""

    def __init__(self, path: str):
        """Open a file. Raises UserError if it is not whole."""
        try:
            self.file = safe_open(path, framework="numpy")
        except SafetensorError as error:
            raise damaged(path, error) from None

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self.file.get_tensor(name)
        except SafetensorError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.keys())

    def __len__(self) -> int:
        return len(self.file.keys())


def whole_array(value: jax.Array) -> np.ndarray:
    """Return an array with the parts that other processes hold; if there are any, all processes must call this."""
    if value.is_fully_addressable or value.is_fully_replicated:
        return np.asarray(value)
    return multihost_utils.process_allgather(value, tiled=True)


def save_sharded(path: str, arrays: dict[str, jax.Array]) -> None:
    """Write named arrays as one safetensors file, whole or not at all. Every process must call this."""
    if jax.process_count() > 1 and one_folder(Path(path).parent):
        save_together(path, arrays)
        return
    gathered = {name: whole_array(array) for name, array in arrays.items()}
    if jax.process_index() == 0:
        save_arrays(path, gathered)


def one_folder(folder: Path) -> bool:
    """Return whether all processes see the folder of the first one."""
    token = multihost_utils.broadcast_one_to_all(np.uint32(secrets.randbits(32)))
    probe = folder / f".seen-{token:08x}"
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
    wait_for_all("probe made")
    seen = multihost_utils.process_allgather(np.array(probe.exists()))
    if jax.process_index() == 0:
        probe.unlink()
    return bool(seen.all())


def save_together(path: str, arrays: dict[str, jax.Array]) -> None:
    """Write the first copy of each part of the arrays to one file, in a folder that all processes see."""
    first, number = jax.process_index() == 0, jax.process_index()
    own_file = part_file(path, number)
    try:
        if not first:
            save_arrays(own_file, own_parts(arrays))
        wait_for_all("parts written")
        if first:
            with atomic_write(path) as partial:
                merge_parts(partial, arrays, [part_file(path, process) for process in range(1, jax.process_count())])
        wait_for_all("parts read")
    finally:
        own_file.unlink(missing_ok=True)


def part_file(path: str, number: int) -> Path:
    """Return the path at which process `number` writes its parts of a file."""
    return Path(path).with_name(f".{Path(path).name}.process{number}.partial")


def own_parts(arrays: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Return the parts of arrays whose first copy this process has, by name and first index of each dimension."""
    parts = {}
    for name, array in arrays.items():
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                starts = ",".join(str(index.start or 0) for index in shard.index)
                parts[f"{name}@{starts}"] = np.asarray(shard.data)
    return parts


def merge_parts(path: Path, arrays: dict[str, jax.Array], files: list[Path]) -> None:
    """Write this process's parts of arrays and those in `files` as one safetensors file of the whole arrays."""
    start_bytes, places = header(arrays)
    with open(path, "wb") as file:
        # A full disk shows here, and not as a signal when the parts are written.
        os.posix_fallocate(file.fileno(), 0, len(start_bytes) + sum(array.nbytes for array in arrays.values()))
        file.write(start_bytes)
    for source in (own_parts(arrays), *map(Arrays, map(str, files))):
        for key in source:
            name, _, starts = key.rpartition("@")
            part, array = source[key], arrays[name]
            if part.size:
                target = np.memmap(path, np.dtype(array.dtype), "r+", len(start_bytes) + places[name], array.shape)
                corner = [int(start) for start in starts.split(",") if start]
                where = tuple(slice(start, start + size) for start, size in zip(corner, part.shape, strict=True))
                target[where] = part
                target.flush()


def wait_for_all(what: str) -> None:
    """Wait until every process calls this."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def header(arrays: dict[str, jax.Array]) -> tuple[bytes, dict[str, int]]:
    """Return the header of a safetensors file of the arrays, and the byte after it at which each array starts."""
    ranks = list(TYPES)
    entries, places, end = {}, {}, 0
    for name in sorted(arrays, key=lambda name: (ranks.index(np.dtype(arrays[name].dtype)), name)):
        places[name], end = end, end + arrays[name].nbytes
        kind, shape = TYPES[np.dtype(arrays[name].dtype)], list(arrays[name].shape)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [places[name], end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places
