"""What is used of tf-keras 2.21, the Keras 2 of transformers' TensorFlow models, beyond its documented interface.

All of it ends with `backend: tensorflow`: transformers 4.57 is the last version that has these models.
"""

from collections.abc import Callable
from functools import partial

import tensorflow as tf
import tf_keras


def flat_layers(model: tf_keras.Model) -> list[tf_keras.layers.Layer]:
    """Return the layers of a model at every depth, in the order in which they are made.

    Why: `model.layers` does not list the layers inside of layers.
    """
    return list(model._flatten_layers(recursive=True, include_self=False))


def use_dropout(model: tf_keras.Model, dropout: Callable) -> list[tf.random.Generator]:
    """Let the dropout layers of a model compute `dropout`; return their random generators.

    dropout  function (generator, inputs, rate, noise_shape) -> outputs

    The generators are made now, where they were to be made at first use.

    Why: dropout as a function of seed and step sets the state of the generators, and how it draws is a tenth of a small
    model's step on a CPU.
    """
    sources = [layer._random_generator for layer in flat_layers(model) if hasattr(layer, "_random_generator")]
    for source in sources:
        source._maybe_init()
    drawing = [source for source in sources if source._generator is not None]
    for source in drawing:
        source.dropout = partial(dropout, source._generator)
    return [source._generator for source in drawing]


class AdamW(tf_keras.optimizers.AdamW):
    """AdamW (Loshchilov and Hutter 2019) of tf-keras, by one operation for each variable.

    Why: tf-keras takes a dozen operations for each.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Change a variable and its moments; weight decay comes first, as in Keras."""
        index = self._index_dict[self._var_key(variable)]
        rate, beta_1, beta_2, epsilon = (
            tf.cast(value, variable.dtype) for value in (self.learning_rate, self.beta_1, self.beta_2, self.epsilon)
        )
        number = tf.cast(self.iterations + 1, variable.dtype)
        if self.weight_decay and self._use_weight_decay(variable):
            variable.assign_sub(variable * (rate * tf.cast(self.weight_decay, variable.dtype)))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].handle,
            v=self._velocities[index].handle,
            beta1_power=tf.pow(beta_1, number),
            beta2_power=tf.pow(beta_2, number),
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=gradient,
        )

    def _apply_weight_decay(self, variables: list) -> None:
        """Do nothing: `update_step` does it."""
