"""Private names of tf-keras 2.21, and changes of the TensorFlow models of transformers 4.57, which need it.

Until: `backend: tensorflow` goes. transformers 4.57 is the last version that has these models.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras


def flat_layers(model: tf_keras.Model) -> list[tf_keras.layers.Layer]:
    """Return the layers of a model at every depth, in the order of their creation.

    Why: `model.layers` does not list the layers inside of layers.
    """
    return list(model._flatten_layers(recursive=True, include_self=False))


def dropout_generators(model: tf_keras.Model) -> list[tf.random.Generator]:
    """Return the random generators of a model's dropout layers, created now instead of at first use.

    Why: dropout as a function of seed and step sets their state.
    """
    sources = [layer._random_generator for layer in flat_layers(model) if hasattr(layer, "_random_generator")]
    for source in sources:
        source._maybe_init()
    return [source._generator for source in sources if source._generator is not None]


def follow_pad_id(layers: Iterable[Any], pad_id: int) -> None:
    """Set the pad id of the layers that count positions from it.

    Why: TensorFlow models of the RoBERTa family assume a pad id of 1, but those of PyTorch follow the config, and the
    same weights would give other logits.
    Until: `backend: tensorflow` goes.
    """
    for layer in layers:
        if hasattr(layer, "padding_idx"):
            layer.padding_idx = pad_id
