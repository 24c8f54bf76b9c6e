"""Dropout of TensorFlow's models, from 16 random bits for an element where Keras draws a float32.

On processors, half the random numbers and a product in place of a choice take half the time of Keras's.
"""

from tpulm.models.dropout_rate import LEVELS, dropped_levels
from tpulm.training.tensorflow_runtime import tf

HALVES = 2  # of a random word of 32 bits


def dropped(
    generator: tf.random.Generator, inputs: tf.Tensor, rate: float, noise_shape: tf.TensorShape | None = None
) -> tf.Tensor:
    """Return `inputs` with elements set to zero at random at a rate, the others divided by what is kept on average.

    noise_shape  of a mask that is broadcast over the inputs, which Keras draws
    """
    if noise_shape is not None:
        return tf.nn.experimental.general_dropout(inputs, rate, generator.uniform, noise_shape)
    last = inputs.shape[-1]
    shape = tf.concat([tf.shape(inputs)[:-1], [-(-last // HALVES)]], 0)
    drawn = tf.bitcast(generator.uniform_full_int(shape, dtype=tf.uint32), tf.uint16)
    drawn = tf.reshape(drawn, tf.concat([shape[:-1], [shape[-1] * HALVES]], 0))[..., :last]
    levels = dropped_levels(rate)
    kept = tf.cast(drawn >= tf.constant(levels, tf.uint16), inputs.dtype)
    return inputs * (kept * tf.cast(1 / (1 - levels / LEVELS), inputs.dtype))
