"""Dropout with masks that are drawn only once, from 16 random bits for an element."""

from functools import partial

import jax
import jax.numpy as jnp
import keras

from tpulm.compat.keras import flat_layers, replace_call

LEVELS = 2**16  # a rate is rounded to a multiple of 1 / LEVELS
DRAWS = 4  # draws from each block of the hash
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def hashed(key: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two words of Threefry-2x32 (Salmon et al. 2011, 20 rounds) of blocks of two words, all uint32.

    key  [2]. The words equal those of JAX, whose loop over the rounds takes five times as long on a CPU.
    """
    keys = [key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA)]
    first, second = first + keys[0], second + keys[1]
    for turn in range(5):
        for bits in ROTATIONS[turn % 2]:
            first = first + second
            second = first ^ (second << bits | second >> (32 - bits))
        first, second = first + keys[(turn + 1) % 3], second + keys[(turn + 2) % 3] + jnp.uint32(turn + 1)
    return first, second


def kept(key: jax.Array, shape: tuple[int, ...], dropped: int) -> jax.Array:
    """Return which elements dropout keeps, bool of `shape`; it drops `dropped` / LEVELS of them on average.

    key  uint32 [2]. An element depends only on the key and on its index, whatever the devices.
    """
    if shape[-1] % DRAWS:
        whole = -(-shape[-1] // DRAWS) * DRAWS
        return kept(key, (*shape[:-1], whole), dropped)[..., : shape[-1]]
    blocks = (*shape[:-1], shape[-1] // DRAWS)
    place = jnp.zeros(blocks, "uint32")
    for axis, size in enumerate(blocks):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota("uint32", blocks, axis)
    # Otherwise a compiler computes the hash again for each draw.
    words = jax.lax.optimization_barrier(hashed(key, jnp.zeros_like(place), place))
    draws = [part for word in words for part in (word & jnp.uint32(LEVELS - 1), word >> 16)]
    return jnp.concatenate([draw >= dropped for draw in draws], -1)


class Dropout(keras.layers.Dropout):
    """Keras's dropout with other random numbers, and with the mask as an array of its own.

    Otherwise the TPU compiler draws the mask again inside each matrix multiplication that reads it, also those of the
    backward pass, and takes minutes for one layer of RoBERTa. The array costs a byte per element of the inputs.
    """

    def call(self, inputs: jax.Array, training: bool = False) -> jax.Array:
        """Return the inputs; in training, some elements are zero and the others divided by the share that is kept."""
        return dropped(self, inputs, training)


def dropped(layer: keras.layers.Dropout, inputs: jax.Array, training: bool = False) -> jax.Array:
    """Return the outputs of `Dropout`."""
    if not training or not layer.rate:
        return inputs
    share = min(max(round(layer.rate * LEVELS), 1), LEVELS - 1)  # never none, and never all
    mask = jax.lax.optimization_barrier(kept(layer.seed_generator.next(), inputs.shape, share))
    return jnp.where(mask, inputs / (1 - share / LEVELS), jnp.zeros_like(inputs))


def draw_masks_once(model: keras.Model) -> None:
    """Make Keras's own dropout layers in a model, such as keras-hub's, do what `Dropout` does."""
    for layer in flat_layers(model):
        if type(layer) is keras.layers.Dropout and layer.noise_shape is None:
            function = partial(dropped, layer)
            replace_call(layer, lambda _, function=function: function)  # type: ignore[misc]
