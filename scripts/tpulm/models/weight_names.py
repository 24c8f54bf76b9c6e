"""Convert names and axes of variables between Keras models and folders of transformers, without importing Keras.

Layers of masked models have transformers' names. Its matrices are [outputs, inputs]; kernels of Keras have axes of the
inputs and of the outputs, in attention also of the heads, in an order that depends on the layer.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.errors import UserError

if TYPE_CHECKING:
    import keras

WITH_HEADS = ("query", "key", "value")
# A layer's variables in transformers, by their names in Keras.
VARIABLES = {"kernel": "weight", "gamma": "weight", "embeddings": "weight", "beta": "bias"}
# Biases of the heads of masked models, which have other names in transformers.
BIASES = {"lm_head/output_bias": "lm_head.bias", "head/output_bias": "decoder.bias"}
# Matrices of transformers that stack several kernels, in the order of PARTS.
JOINED = re.compile(r"(.*\.(?:Wqkv|Wi))\.(query|key|value|activated|gate)\.weight")
PARTS = ("query", "key", "value", "activated", "gate")
# RoBERTa only: transformers has unused rows of positions up to the pad id, and an embedding of token type 0, which is
# added to each position here.
POSITIONS = "roberta.embeddings.position_embeddings.weight"
TOKEN_TYPES = "roberta.embeddings.token_type_embeddings.weight"


def inputs_of(path: str, axes: int) -> tuple[int, ...]:
    """Return the axes of a kernel that are its inputs; path  of the variable, axes  their number."""
    layer = re.split(r"[./]", path)[-2]
    if layer in WITH_HEADS and axes == 3:  # Gemma's [heads, hidden, width], others' [hidden, heads, width]
        return (1,) if path.startswith("decoder_block") else (0,)
    return tuple(range(axes - 1))


def order_of(path: str, axes: int) -> tuple[int, ...]:
    """Return the axes of a kernel in the order of transformers' matrices: outputs, then inputs."""
    inputs = inputs_of(path, axes)
    return (*(axis for axis in range(axes) if axis not in inputs), *inputs)


def to_matrix(path: str, array: np.ndarray) -> np.ndarray:
    """Return a variable in the layout of transformers: kernels and reversed embeddings [outputs, inputs]."""
    kind = path.rpartition("/")[2]
    if kind in ("kernel", "reverse_embeddings"):
        inputs = math.prod(array.shape[axis] for axis in inputs_of(path, array.ndim))
        array = array.transpose(order_of(path, array.ndim)).reshape(-1, inputs)
    elif kind == "bias":
        array = array.reshape(-1)
    elif kind == "conv1d_kernel":
        array = array[:, None]  # a channel is convolved alone
    return np.ascontiguousarray(array)


def from_matrix(path: str, array: np.ndarray, shape: Iterable[int]) -> np.ndarray:
    """Return the variable of `shape` for a matrix of `to_matrix`. Raises ValueError for another number of values."""
    shape = tuple(shape)
    if path.endswith(("/kernel", "reverse_embeddings")):
        order = order_of(path, len(shape))
        array = array.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
    return np.ascontiguousarray(array).reshape(shape)


def masked_name(path: str) -> str:
    """Return transformers' name of a variable of a masked model; parts of a joined matrix have separate names."""
    layer, _, kind = path.rpartition("/")
    name = f"{layer}.{VARIABLES.get(kind, kind)}".replace("/", ".").replace("lm_head.intermediate_", "lm_head.")
    return BIASES.get(path, name)


def to_transformers(arrays: Mapping[str, np.ndarray], pad_id: int) -> dict[str, np.ndarray]:
    """Return the weights of transformers by name from the variables of a masked model by path."""
    weights: dict[str, np.ndarray] = {}
    joined: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for path, array in arrays.items():
        name, matrix = masked_name(path), to_matrix(path, array)
        if match := JOINED.fullmatch(name):
            joined[f"{match[1]}.weight"][match[2]] = matrix
        else:
            weights[name] = matrix
    for name, parts in joined.items():
        weights[name] = np.concatenate([parts[part] for part in PARTS if part in parts])
    if POSITIONS in weights:
        positions = weights[POSITIONS]
        unused = np.zeros((pad_id + 1, positions.shape[1]), positions.dtype)
        weights |= {POSITIONS: np.concatenate([unused, positions]), TOKEN_TYPES: unused[:1]}
    return weights


def from_transformers(
    arrays: Mapping[str, np.ndarray], variables: "Iterable[keras.Variable]", pad_id: int
) -> dict[str, np.ndarray]:
    """Return the variables of a masked model by path from the weights of transformers by name.

    Raises UserError if one is missing, ValueError if one has another number of values.
    """
    arrays, values = dict(arrays), {}
    if {POSITIONS, TOKEN_TYPES} <= set(arrays):
        arrays[POSITIONS] = arrays[POSITIONS][pad_id + 1 :] + arrays[TOKEN_TYPES][0]
    for variable in variables:
        name, part = masked_name(variable.path), None
        if match := JOINED.fullmatch(name):
            name, part = f"{match[1]}.weight", match[2]
        if name not in arrays:
            raise UserError(f"the weights of the model folder lack {name}; allowed: the weights of a masked model.")
        array = arrays[name]
        if part is not None:
            joined = PARTS[:3] if part in WITH_HEADS else PARTS[3:]
            array = np.split(array, len(joined))[joined.index(part)]
        values[variable.path] = from_matrix(variable.path, array, variable.shape)
    return values
