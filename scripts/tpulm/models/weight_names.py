"""Names and axes of variables: here, and in the folders of transformers. Without Keras.

Layers of masked models have transformers' names. Its matrices are [outputs, inputs]; kernels here have the axes of the
inputs and of the outputs, those of attention with the heads apart, in an order that depends on the layer.
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
# The kinds of a layer's variables, by Keras' names.
KINDS = {"kernel": "weight", "gamma": "weight", "embeddings": "weight", "beta": "bias"}
# Variables of the heads of masked models, whose layers have other names.
BIASES = {"lm_head/output_bias": "lm_head.bias", "head/output_bias": "decoder.bias"}
# Matrices of transformers that stand for several kernels, one below the other, in this order.
JOINED = re.compile(r"(.*\.(?:Wqkv|Wi))\.(query|key|value|activated|gate)\.weight")
PARTS = ("query", "key", "value", "activated", "gate")
# RoBERTa only: transformers has rows up to the pad id, which are never used, and token types, of which a text has the
# first: here it is a part of each position.
POSITIONS = "roberta.embeddings.position_embeddings.weight"
TOKEN_TYPES = "roberta.embeddings.token_type_embeddings.weight"


def inputs_of(path: str, axes: int) -> tuple[int, ...]:
    """Return which axes of a kernel are those of its inputs; path  of the variable."""
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
    return np.ascontiguousarray(array)


def from_matrix(path: str, array: np.ndarray, shape: Iterable[int]) -> np.ndarray:
    """Return the inverse of `to_matrix`, of this shape. Raises ValueError for another number of values."""
    shape = tuple(shape)
    if path.endswith(("kernel", "reverse_embeddings")):
        order = order_of(path, len(shape))
        array = array.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
    return np.ascontiguousarray(array.reshape(shape))


def masked_name(path: str) -> str:
    """Return transformers' name of a variable of a masked model; parts of a joined matrix have a name each."""
    layer, _, kind = path.rpartition("/")
    name = f"{layer}.{KINDS.get(kind, kind)}".replace("/", ".").replace("lm_head.intermediate_", "lm_head.")
    return BIASES.get(path, name)


def to_transformers(arrays: Mapping[str, np.ndarray], pad_id: int) -> dict[str, np.ndarray]:
    """Return the variables of a masked model, by path, as those of transformers, by name."""
    found: dict[str, np.ndarray] = {}
    joined: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for path, array in arrays.items():
        name, matrix = masked_name(path), to_matrix(path, array)
        if match := JOINED.fullmatch(name):
            joined[f"{match[1]}.weight"][match[2]] = matrix
        else:
            found[name] = matrix
    for name, parts in joined.items():
        found[name] = np.concatenate([parts[part] for part in PARTS if part in parts])
    if POSITIONS in found:
        positions = found[POSITIONS]
        unused = np.zeros((pad_id + 1, positions.shape[1]), positions.dtype)
        found |= {POSITIONS: np.concatenate([unused, positions]), TOKEN_TYPES: unused[:1]}
    return found


def from_transformers(
    arrays: Mapping[str, np.ndarray], variables: "Iterable[keras.Variable]", pad_id: int
) -> dict[str, np.ndarray]:
    """Return the variables of a masked model, by path, from those of transformers, by name.

    Raises UserError where one is missing, ValueError where one has another number of values.
    """
    arrays, found = dict(arrays), {}
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
            own = PARTS[:3] if part in WITH_HEADS else PARTS[3:]
            array = np.split(array, len(own))[own.index(part)]
        found[variable.path] = from_matrix(variable.path, array, variable.shape)
    return found
