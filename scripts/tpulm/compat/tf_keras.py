"""What is used of tf-keras 2.21, the Keras 2 of transformers' TensorFlow models, beyond its documented interface.

Until: `backend: tensorflow` goes. transformers 4.57 is the last version that has these models.
"""

import tensorflow as tf
import tf_keras


def flat_layers(model: tf_keras.Model) -> list[tf_keras.layers.Layer]:
    """Return the layers of a model at every depth, in the order in which they are made.

    Why: `model.layers` does not list the layers inside of layers.
    """
    return list(model._flatten_layers(recursive=True, include_self=False))


def dropout_generators(model: tf_keras.Model) -> list[tf.random.Generator]:
    """Return the random generators of a model's dropout layers, made now in place of at first use.

    Why: dropout as a function of seed and step sets their state.
    """
    sources = [layer._random_generator for layer in flat_layers(model) if hasattr(layer, "_random_generator")]
    for source in sources:
        source._maybe_init()
    return [source._generator for source in sources if source._generator is not None]
