"""Muon: the momentum of a matrix is orthogonalized before it is applied (Jordan et al. 2024).

Each update is scaled to the size of AdamW's (Liu et al. 2025). Needs tpulm.training.runtime.start first.
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

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of the polynomial
ITERATIONS = 5
RMS = 0.2  # root mean square of an update at a learning rate of 1, as AdamW's is on average


def matrices_of_blocks(model: keras.Model) -> dict[str, int | None]:
    """Return by its path each kernel of the dense layers in a model's blocks: the axis of its heads, None without."""
    layers = [layer for block in model.backbone.transformer_layers for layer in flat_layers(block)]
    return {
        layer.kernel.path: axis_of_heads(layer)
        for layer in layers
        if isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense)
    }


def axis_of_heads(layer: keras.layers.Dense | keras.layers.EinsumDense) -> int | None:
    """Return the axis of the heads in a layer's kernel, None without heads; their width is the axis after it."""
    if isinstance(layer, keras.layers.Dense):
        return None
    inputs, kernel, outputs = re.split(",|->", layer.equation)  # such as btd,ndh->btnh and btnh,nhd->btd
    read, written = ([axis for axis in kernel if axis not in side] for side in (outputs, inputs))
    heads, *width = max(read, written, key=len)
    return kernel.index(heads) if width else None


class Muon(MuonOfMatrices):
    """Muon for `matrices` of `matrices_of_blocks`, AdamW for all other variables.

    A kernel with heads is a matrix for each of them. On a mesh, a head is where its weights are.
    """

    def __init__(self, beta_1: float, beta_2: float, weight_decay: float, adam_lr_ratio: float, **arguments: Any):
        """Take AdamW's betas; its rate is adam_lr_ratio times that of the matrices. arguments  of Keras's class"""
        decays = {"weight_decay": weight_decay, "adam_weight_decay": weight_decay * adam_lr_ratio}
        adam = {"adam_beta_1": beta_1, "adam_beta_2": beta_2, "adam_lr_ratio": adam_lr_ratio}
        super().__init__(**decays, **adam, **arguments)

    def build(self, var_list: list[keras.Variable]) -> None:
        """Make the state: the momentum of a matrix, and both moments of the others."""
        super().build(var_list)
        self.momentum_of = {v.path: moment for v, moment in zip(var_list, self.momentums, strict=True)}

    def update_step(self, gradient: jax.Array, variable: keras.Variable, learning_rate: jax.Array) -> None:
        """Assign the next values of a variable and of its state."""
        if variable.path not in self.matrices:
            super().update_step(gradient, variable, learning_rate)
            return
        state, heads = self.momentum_of[variable.path], self.matrices[variable.path]
        momentum = gradient + self.momentum * state.value
        self.assign(state, momentum)
        direction = gradient + self.momentum * momentum if self.nesterov else momentum
        matrices = direction if heads is None else jnp.moveaxis(direction, heads, 0)
        update = RMS * max(matrices.shape[-2:]) ** 0.5 * orthogonalized(matrices, axes_of(variable, heads))
        self.assign_sub(variable, learning_rate * (update if heads is None else jnp.moveaxis(update, 0, heads)))


def axes_of(variable: keras.Variable, heads: int | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the mesh axes of a variable's heads, and of its other dimensions together."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, Sharded):
        return None, ()
    axes = list(distribution.get_variable_layout(variable).axes)
    of_heads = None if heads is None else axes.pop(heads)
    return of_heads, tuple(axis for axis in axes if axis)


def orthogonalized(matrices: jax.Array, axes: tuple[str | None, tuple[str, ...]]) -> jax.Array:
    """Return matrices with nearly all singular values near 1, by a Newton-Schulz iteration; shape [..., m, n].

    axes  of the mesh, see `axes_of`. The longer dimension is sharded over those of both dimensions. The compiler by
          itself would gather the whole matrices, twice in each iteration
    """
    a, b, c = NEWTON_SCHULZ
    transposed = matrices.shape[-2] > matrices.shape[-1]
    x = jnp.swapaxes(matrices, -1, -2) if transposed else matrices
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    of_heads, others = axes
    distribution = keras.distribution.distribution()
    parts = prod(distribution.sizes[axis] for axis in others)
    leading = (of_heads,) * (x.ndim - 2)

    def placed(array: jax.Array, *dimensions: tuple[str, ...]) -> jax.Array:
        if parts == 1 or any(size % parts for size in x.shape[-2:]):
            return array
        spec = PartitionSpec(*leading, *dimensions)
        return jax.lax.with_sharding_constraint(array, NamedSharding(distribution.device_mesh.backend_mesh, spec))

    x = placed(x, (), others)
    for _ in range(ITERATIONS):
        gram = placed(x @ jnp.swapaxes(x, -1, -2), (), ())
        squared = placed(placed(gram, others, ()) @ gram, others, ())
        x = placed(a * x + (b * gram + c * squared) @ x, (), others)
    return jnp.swapaxes(x, -1, -2) if transposed else x
