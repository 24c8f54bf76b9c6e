"""Read and write named arrays in safetensors files."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write


def save_arrays(path: str | Path, arrays: dict[str, np.ndarray]) -> None:
    """Write named arrays as one safetensors file, whole or not at all."""
    with atomic_write(path) as partial:
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, partial)


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file by name. Raises UserError if it is not complete."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise damaged(path, error) from None


def damaged(path: str | Path, error: SafetensorError) -> UserError:
    """Return the error for a file that is no safetensors file."""
    return UserError(f"{path} is not a complete safetensors file ({error}); delete it and run again.")
