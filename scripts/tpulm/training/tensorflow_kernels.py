"""Operations of TensorFlow's models in fewer passes over memory, on a CPU. Elsewhere they stay TensorFlow's own.

TensorFlow computes GELU by `erfc`, whose kernel takes twice the time of that of `erf`, and its gradient in nine passes;
its cross-entropy takes twice the time of the operations below. The two kernels are a tenth of a small model's step.
"""

import math
from collections.abc import Callable

from tpulm.compat.tf_keras import flat_layers
from tpulm.training.tensorflow_runtime import device_kind, tf, transformers


def gelu(inputs: tf.Tensor) -> tf.Tensor:
    """Return x Phi(x) of each element (Hendrycks and Gimpel 2016), of the inputs' shape and dtype."""
    # By `erf`, the values of large negative numbers cancel: a bfloat16 would be left with none of its digits.
    return gelu_by_erf(inputs) if inputs.dtype == tf.float32 else tf.nn.gelu(inputs)


@tf.custom_gradient
def gelu_by_erf(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Return what `gelu` does, float32."""
    scaled = inputs * math.sqrt(0.5)
    share = 0.5 + 0.5 * tf.math.erf(scaled)

    def gradient(of_outputs: tf.Tensor) -> tf.Tensor:
        # x times the density of the normal distribution; TensorFlow makes one operation of square, negation and power.
        weighted = tf.exp(-tf.square(scaled)) * scaled
        return of_outputs * (share + weighted * (1 / math.sqrt(math.pi)))

    return inputs * share, gradient


def use_gelu(model: transformers.TFPreTrainedModel) -> None:
    """Let the layers of a model that apply transformers' GELU apply `gelu`, on a CPU."""
    from transformers.activations_tf import ACT2FN

    if device_kind() != "CPU":
        return
    for layer in flat_layers(model):
        for name, value in list(vars(layer).items()):
            if value is ACT2FN["gelu"]:
                setattr(layer, name, gelu)


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
