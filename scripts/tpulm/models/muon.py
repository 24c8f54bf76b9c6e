"""Muon: the momentum of a matrix is orthogonalized before it is subtracted (Jordan et al. 2024).

Updates have the size of AdamW's (Liu et al. 2025), so that one learning rate suits both. Needs
tpulm.training.runtime.start first.
"""

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import NamedSharding, PartitionSpec

from tpulm.compat.keras import MuonOfMatrices, flat_layers
from tpulm.models.sharding import Sharded

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of the iteration's polynomial
ITERATIONS = 5
RMS = 0.2  # root mean square of an update before the learning rate, about that of AdamW


def matrices_of_blocks(model: keras.Model) -> dict[str, int | None]:
    """Return by path each kernel of the dense layers in a model's blocks: the axis of its heads, None without heads."""
    layers = [layer for block in model.backbone.transformer_layers for layer in flat_layers(block)]
    dense = (layer for layer in layers if isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense))
    return {layer.kernel.path: axis_of_heads(layer) for layer in dense}


def axis_of_heads(layer: keras.layers.Dense | keras.layers.EinsumDense) -> int | None:
    """Return the axis of the heads in a layer's kernel, the first of two that it reads or writes; None without."""
    if isinstance(layer, keras.layers.Dense):
        return None
    inputs, kernel, outputs = re.split(",|->", layer.equation)  # such as btd,ndh->btnh and btnh,nhd->btd
    read, written = ([axis for axis in kernel if axis not in side] for side in (outputs, inputs))
    heads, *width = max(read, written, key=len)
    return kernel.index(heads) if width else None


class Muon(MuonOfMatrices):
    """Muon for the variables in `matrices`, see `matrices_of_blocks`, and AdamW for all others."""

    def __init__(self, beta_1: float, beta_2: float, weight_decay: float, adam_lr_ratio: float, **arguments: Any):
        """Take AdamW's betas, and its learning rate as a multiple of the matrices'; arguments  of Keras's class."""
        decays = {"weight_decay": weight_decay, "adam_weight_decay": weight_decay * adam_lr_ratio}
        adam = {"adam_beta_1": beta_1, "adam_beta_2": beta_2, "adam_lr_ratio": adam_lr_ratio}
        super().__init__(**decays, **adam, **arguments)

    def build(self, var_list: list[keras.Variable]) -> None:
        """Make the state: the momentum of matrices, both moments of the others."""
        super().build(var_list)
        self.momentum_of = {v.path: momentum for v, momentum in zip(var_list, self.momentums, strict=True)}

    def update_step(self, gradient: jax.Array, variable: keras.Variable, learning_rate: jax.Array) -> None:
        """Assign the next values of a variable and of its state."""
        if variable.path not in self.matrices:
            super().update_step(gradient, variable, learning_rate)
            return
        state = self.momentum_of[variable.path]
        momentum = gradient + self.momentum * state.value
        self.assign(state, momentum)
        direction = gradient + self.momentum * momentum if self.nesterov else momentum
        update = orthogonalized(direction, variable, self.matrices[variable.path])
        self.assign_sub(variable, learning_rate * update)


def orthogonalized(value: jax.Array, variable: keras.Variable, heads: int | None) -> jax.Array:
    """Return the orthogonalized matrices of a value of `variable`; heads  the axis of those that are a matrix each.

    By heads, as they are computed and sharded: a device has whole heads, and the matrices that the iteration multiplies
    are as small as a head is wide.
    """
    distribution = keras.distribution.distribution()
    layout = isinstance(distribution, Sharded) and distribution.get_variable_layout(variable).axes
    axes = list(layout or [None] * value.ndim)
    if heads is None:
        return newton_schulz(value, axes)
    axes.insert(0, axes.pop(heads))
    return jnp.moveaxis(newton_schulz(jnp.moveaxis(value, heads, 0), axes), 0, heads)


def newton_schulz(matrices: jax.Array, axes: list[str | None]) -> jax.Array:
    """Return matrices [..., m, n] with their singular values near 1 (Bernstein and Newhouse 2024), then scaled by RMS.

    axes  of the mesh, by dimension. The shorter one of m and n is gathered and the longer one divided instead. The
          compiler by itself would gather whole matrices, twice in each iteration
    """
    a, b, c = NEWTON_SCHULZ
    (*leading, rows, columns), shape = axes, matrices.shape
    divided = tuple(axis for axis in (rows, columns) if axis)
    distribution = keras.distribution.distribution()
    parts = prod(distribution.sizes[axis] for axis in divided)

    def place(array: jax.Array, *dimensions: tuple) -> jax.Array:
        if parts == 1 or any(size % parts for size in shape[-2:]):
            return array
        spec = PartitionSpec(*leading, *dimensions)
        return jax.lax.with_sharding_constraint(array, NamedSharding(distribution.device_mesh.backend_mesh, spec))

    tall = shape[-2] > shape[-1]
    x = jnp.swapaxes(matrices, -1, -2) if tall else matrices
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)

    def iterate(_: int, x: jax.Array) -> jax.Array:
        gram = place(x @ jnp.swapaxes(x, -1, -2), (), ())
        square = place(place(gram, divided, ()) @ gram, divided, ())
        return place(a * x + (b * gram + c * square) @ x, (), divided)

    x = jax.lax.fori_loop(0, ITERATIONS, iterate, place(x, (), divided))
    return RMS * max(shape[-2:]) ** 0.5 * (jnp.swapaxes(x, -1, -2) if tall else x)
