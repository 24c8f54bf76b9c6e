"""Variables of a model: their values, assigned from the arrays of a file, and their number."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.errors import UserError

if TYPE_CHECKING:
    import keras


def assign(variables: list, arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Assign to variables the arrays of their paths. Raises UserError as `check_arrays` does."""
    check_arrays(variables, arrays, source)
    for variable in variables:
        variable.assign(arrays[variable.path].reshape(variable.shape))


def check_arrays(variables: list, arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Raise UserError, naming the file `source`, for a variable without an array of its path and shape."""
    for variable in variables:
        array, shape = arrays.get(variable.path), tuple(variable.shape)
        scalar = array is not None and shape == () and array.size == 1  # tpulm.training.checkpoint saves it as [1]
        if array is None or not (scalar or array.shape == shape):
            content = "nothing" if array is None else f"shape {array.shape}"
            raise UserError(
                f"{source} holds {content} for the variable {variable.path} of shape {shape}; it belongs to another "
                "model; delete it and run again."
            )


def values_of(layer: "keras.Layer") -> tuple[list, list]:
    """Return the values of trainable and other variables of a layer or model, as its `stateless_call` takes them."""
    trainable, frozen = layer.trainable_variables, layer.non_trainable_variables
    return [variable.value for variable in trainable], [variable.value for variable in frozen]


def is_random_state(variable: "keras.Variable") -> bool:
    """Return whether a variable is the state of a random generator, for dropout, and no weight."""
    return "seed_generator" in variable.path


def count(variables: list) -> int:
    """Return the number of parameters in variables."""
    return int(sum(np.prod(variable.shape) for variable in variables))
