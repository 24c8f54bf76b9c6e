"""Rematerialization (gradient checkpointing, Chen et al. 2016): blocks recompute activations in the backward pass.

Weights that are sharded over the axis batch are gathered for a block at a time, forward and again backward, and their
gradients are scattered (Rajbhandari et al. 2020, ZeRO stage 3).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import NamedSharding, PartitionSpec

from tpulm.compat.keras import replace_call
from tpulm.models.sharding import Sharded
from tpulm.models.variables import is_random_state, values_of


def remat(model: keras.Model) -> None:
    """Make each transformer block of `model` keep only its inputs: the same results in less memory and more time."""
    for block in model.backbone.transformer_layers:
        replace_call(block, partial(rematerializing, block))


def rematerializing(block: keras.Layer, call: Callable) -> Callable:
    """Return the call of a layer that keeps only its inputs, and recomputes the rest for gradients."""
    within = False  # whether the call is that of the recomputation

    def rematerialized(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [isinstance(leaf, jax.Array) for leaf in leaves]
        if within or not any(arrays):  # without arrays, the call is symbolic, as when the model is built
            return call(*args, **kwargs)

        @jax.checkpoint
        def inside(trainable: list, frozen: list, values: list) -> tuple:
            remaining = iter(values)
            merged = [next(remaining) if is_array else leaf for is_array, leaf in zip(arrays, leaves, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, merged)
            inputs = next(value for value in values if jnp.issubdtype(value.dtype, jnp.floating))
            trainable, frozen = (
                [
                    gathered(variable, value, block.compute_dtype, inputs)
                    for variable, value in zip(variables, part, strict=True)
                ]
                for variables, part in ((block.trainable_variables, trainable), (block.non_trainable_variables, frozen))
            )
            nonlocal within
            within = True
            try:
                return block.stateless_call(trainable, frozen, *args, **kwargs)
            finally:
                within = False

        values = [leaf for is_array, leaf in zip(arrays, leaves, strict=True) if is_array]
        outputs, changed = inside(*values_of(block), values)
        for variable, value in zip(block.non_trainable_variables, changed, strict=True):
            if is_random_state(variable):
                variable.assign(value)
        return outputs

    return rematerialized


def gathered(variable: keras.Variable, value: jax.Array, dtype: str, inputs: jax.Array) -> jax.Array:
    """Return a variable's value; if it is sharded over the axis batch, gathered and with floats cast to `dtype`.

    inputs  of the block. The weights wait for them: otherwise the compiler gathers those of all blocks before the first
            microbatch, and adds up whole gradients until after the last

    The compiler by itself would send activations between the devices and add up partial products, which is more bytes
    if a device has more tokens than weights.
    """
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, Sharded) or distribution.sizes["batch"] == 1:
        return value
    axes = distribution.get_variable_layout(variable).axes
    if "batch" not in axes:
        return value
    mesh = distribution.device_mesh.backend_mesh
    parts = NamedSharding(mesh, PartitionSpec(*axes))
    whole = NamedSharding(mesh, PartitionSpec(*(None if axis == "batch" else axis for axis in axes)))
    needed = dtype if jnp.issubdtype(value.dtype, jnp.floating) else value.dtype

    @jax.custom_vjp
    def gather(value: jax.Array, inputs: jax.Array) -> jax.Array:
        value, _ = jax.lax.optimization_barrier((value, inputs))
        return jax.lax.with_sharding_constraint(value.astype(needed), whole)

    def scatter(_: None, gradient: jax.Array) -> tuple[jax.Array, None]:
        scattered = jax.lax.with_sharding_constraint(gradient.astype(value.dtype), parts)
        return jax.lax.optimization_barrier(scattered), None

    gather.defvjp(lambda value, inputs: (gather(value, inputs), None), scatter)
    return gather(value, inputs)
