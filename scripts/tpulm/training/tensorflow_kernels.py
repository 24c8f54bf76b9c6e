"""Cross-entropy of TensorFlow's models: on a CPU by operations that are vectorized, in half the time of its own."""

from collections.abc import Callable

from tpulm.training.tensorflow_runtime import device_kind, tf


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of each prediction in nats, float32 of the labels' shape.

    logits  float32 [records, predictions, vocabulary]; labels  int [records, predictions]
    """
    if device_kind() != "CPU":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return vectorized_cross_entropy(logits, labels)


@tf.custom_gradient
def vectorized_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Return what `cross_entropy` does, by operations that are vectorized."""
    highest = tf.reduce_max(logits, -1, keepdims=True)
    powers = tf.exp(logits - highest)
    divisor = tf.reduce_sum(powers, -1, keepdims=True)
    # The difference of the logits first: small losses below large logits keep their digits.
    losses = tf.squeeze(tf.math.log(divisor), -1) + (tf.squeeze(highest, -1) - tf.gather(logits, labels, batch_dims=2))

    def gradient(of_losses: tf.Tensor) -> tuple[tf.Tensor, None]:
        rows = tf.reshape(powers * (of_losses[..., None] / divisor), [-1, tf.shape(logits)[-1]])
        places = tf.stack([tf.range(tf.shape(rows)[0]), tf.cast(tf.reshape(labels, [-1]), tf.int32)], 1)
        rows = tf.tensor_scatter_nd_sub(rows, places, tf.reshape(of_losses, [-1]))
        return tf.reshape(rows, tf.shape(logits)), None

    return losses, gradient
