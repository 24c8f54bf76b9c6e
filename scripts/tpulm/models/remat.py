"""Rematerialization (gradient checkpointing): a model's blocks recompute their activations in the backward pass,
instead of keeping them (Chen et al. 2016)."""

from typing import Any

import jax
import keras


def remat(model: keras.Model) -> None:
    """Make each transformer block of `model` keep its inputs only; the same results in less memory and more time.

    `keras.RematScope` would do, but for two things: it turns a block's flags, such as `training`, into traced
    arrays, and the random states that dropout moves on inside a block would not come out of it.
    """
    for block in model.backbone.transformer_layers:
        wrap(block)


def wrap(block: keras.Layer) -> None:
    """Replace the `call` of one layer."""
    call = block.call

    def rematerialised(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [isinstance(leaf, jax.Array) for leaf in leaves]
        if not any(arrays):  # symbolic, while the model is put together
            return call(*args, **kwargs)

        @jax.checkpoint
        def inside(trainable: list, frozen: list, values: list) -> tuple:
            given = iter(values)
            merged = [next(given) if is_array else leaf for is_array, leaf in zip(arrays, leaves, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, merged)
            block.call = call
            try:
                return block.stateless_call(trainable, frozen, *args, **kwargs)
            finally:
                block.call = rematerialised

        trainable, frozen = block.trainable_variables, block.non_trainable_variables
        values = [leaf for is_array, leaf in zip(arrays, leaves, strict=True) if is_array]
        outputs, changed = inside([v.value for v in trainable], [v.value for v in frozen], values)
        for variable, value in zip(frozen, changed, strict=True):
            if "seed_generator" in variable.path:
                variable.assign(value)
        return outputs

    block.call = rematerialised
