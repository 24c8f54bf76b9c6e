"""Muon: the momentum of a matrix is orthogonalized before it is subtracted (Jordan et al. 2024).

Updates have the size of AdamW's (Liu et al. 2025), so that one learning rate suits both.
"""

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import NamedSharding, PartitionSpec

from tpulm.compat.keras import MuonOfMatrices, flat_layers, layout_of

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
    """Return a value of a variable with orthogonalized matrices; heads  axis of those that are a matrix each, if any.

    A head is a matrix because it computes by itself and lies on one device. The products of the iteration are then as
    small as a head is wide. Those of another matrix are divided over the devices that share it: the compiler by itself
    may gather the matrix on each of them in every iteration.
    """
    if heads is not None:
        return jnp.moveaxis(newton_schulz(jnp.moveaxis(value, heads, 0)), 0, heads)
    layout = layout_of(variable)
    if layout is None:
        return newton_schulz(value)
    axes, mesh = tuple(axis for axis in layout.axes if axis), layout.device_mesh.backend_mesh
    parts = prod(mesh.shape[axis] for axis in axes)
    if parts == 1 or any(size % parts for size in value.shape):
        return newton_schulz(value)
    return newton_schulz(value, *(NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((axes,), (None, axes))))


def newton_schulz(
    matrices: jax.Array, by_rows: NamedSharding | None = None, by_columns: NamedSharding | None = None
) -> jax.Array:
    """Return matrices [..., m, n] with singular values near RMS * sqrt(max(m, n)) (Bernstein and Newhouse 2024).

    by_rows, by_columns  shardings of an [m, n] over all devices that share the matrix
    """

    def place(array: jax.Array, sharding: NamedSharding | None) -> jax.Array:
        return array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)

    def iterate(_: int, x: jax.Array) -> jax.Array:
        gram = place(x @ jnp.swapaxes(x, -1, -2), by_rows)
        square = place(gram @ gram, by_rows)
        return place(a * x + (b * gram + c * square) @ x, by_columns)

    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = jnp.swapaxes(matrices, -1, -2) if tall else matrices
    x = place(x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7), by_columns)
    x = jax.lax.fori_loop(0, ITERATIONS, iterate, x) * (RMS * x.shape[-1] ** 0.5)
    return jnp.swapaxes(x, -1, -2) if tall else x
