"""Dropout with masks that are drawn only once. Needs tpulm.training.runtime.start first."""

import jax
import jax.numpy as jnp
import keras

PLAIN = keras.layers.Dropout.call


def dropped(layer: keras.layers.Dropout, inputs: jax.Array, training: bool = False) -> jax.Array:
    """Return what `keras.layers.Dropout.call` returns, with the mask as an array of its own in the program.

    Otherwise the TPU compiler draws the mask again inside each matrix multiplication that reads it, also those of the
    backward pass, and takes minutes for one layer of RoBERTa. The array costs a byte per element of `inputs`.
    """
    if not training or not 0 < layer.rate < 1:
        return PLAIN(layer, inputs, training=training)
    ones = jnp.ones(inputs.shape, "float32")
    kept = keras.random.dropout(ones, layer.rate, noise_shape=layer.noise_shape, seed=layer.seed_generator) > 0
    return jnp.where(jax.lax.optimization_barrier(kept), inputs / (1 - layer.rate), jnp.zeros_like(inputs))


def draw_masks_once() -> None:
    """Make all dropout of this process so."""
    keras.layers.Dropout.call = dropped
