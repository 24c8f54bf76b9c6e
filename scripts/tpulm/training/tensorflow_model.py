"""Masked language models of transformers on TensorFlow: building, loading, variables, predictions and their loss."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tpulm.compat.tf_keras import flat_layers, follow_pad_id
from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.training.tensorflow_runtime import device_kind, tf, tf_keras, transformers


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of each prediction in nats, float32 of the labels' shape.

    logits  float32 [records, predictions, vocabulary]; labels  int [records, predictions]
    """
    if device_kind() != "CPU":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return vectorized_cross_entropy(logits, labels)  # takes half the time of TensorFlow's own on a CPU


@tf.custom_gradient
def vectorized_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Return the losses of `cross_entropy` by vectorized operations, and their gradient function."""
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


# Architectures whose head can be computed at the masked positions only.
HEAD_BY_POSITION = {"bert", "camembert", "roberta", "xlm-roberta"}


def build_model(config: transformers.PretrainedConfig, seed: int) -> transformers.TFPreTrainedModel:
    """Return a model with weights drawn by `seed`. Call under a strategy's scope."""
    tf_keras.utils.set_random_seed(seed)
    return construct(config)


def construct(config: transformers.PretrainedConfig) -> transformers.TFPreTrainedModel:
    """Return a built model whose positions start after the pad id. Raises UserError for a wrong config."""
    try:
        model = transformers.TFAutoModelForMaskedLM.from_config(config)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"a {config.model_type} model cannot be built with these values: {error}.") from error
    follow_pad_id(flat_layers(model), config.pad_token_id)
    model.build_in_name_scope()
    return model


def load_model(folder: Path) -> transformers.TFPreTrainedModel:
    """Return the model of a Hugging Face folder whose `model.safetensors` has PyTorch's names.

    `from_pretrained` of transformers 4.57 cannot: it iterates over the open file (issue 40028 there).
    """
    model = construct(transformers.AutoConfig.from_pretrained(folder))
    load_weights(model, folder / "model.safetensors")
    return model


def load_weights(model: transformers.TFPreTrainedModel, path: str | Path) -> None:
    """Load a safetensors file with PyTorch's names into a built model. Raises UserError if a weight is missing."""
    from transformers.modeling_tf_pytorch_utils import load_pytorch_state_dict_in_tf2_model

    try:
        load_pytorch_state_dict_in_tf2_model(model, load_arrays(path), tf_inputs=False, allow_missing_keys=False)
    except AttributeError as error:  # the function's way to report a missing weight
        raise UserError(f"{path} lacks weights of a masked {model.config.model_type} model: {error}.") from None


def named_arrays(items: list) -> dict[str, np.ndarray]:
    """Return the values of variables by name; a number distinguishes equal names."""
    named: dict[str, np.ndarray] = {}
    for item in items:
        name = item.name if item.name not in named else f"{item.name}#{len(named)}"
        named[name] = item.numpy()
    return named


def assign(items: list, arrays: Mapping[str, np.ndarray], path: str) -> None:
    """Assign arrays to variables by name. Raises UserError if they, of file `path`, belong to another model."""
    names = list(named_arrays(items))
    if set(arrays) != set(names):
        raise UserError(f"{path} does not have the variables of the model in the config; delete it and run again.")
    for name, item in zip(names, items, strict=True):
        if tuple(item.shape) != arrays[name].shape:
            raise UserError(f"{path}: {name} has shape {arrays[name].shape}; the config says {tuple(item.shape)}.")
        item.assign(arrays[name])


def predictions(model: transformers.TFPreTrainedModel, batch: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
    """Return the logits at a batch's masked positions, float32 [records, predictions, vocabulary].

    If the architecture allows it, the head is computed only there: in a small model it is most of the work.
    """
    ids = batch["input_ids"]
    inputs = {"input_ids": ids, "attention_mask": batch.get("attention_mask", tf.ones_like(ids))}
    if model.config.model_type in HEAD_BY_POSITION:
        hidden = getattr(model, model.base_model_prefix)(**inputs, training=training)[0]
        chosen = tf.gather(hidden, batch["positions"], batch_dims=1)
        logits = model.get_lm_head()(chosen)
    else:
        logits = tf.gather(model(inputs, training=training).logits, batch["positions"], batch_dims=1)
    return tf.cast(logits, tf.float32)


def right_sum(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the number of a batch's labels that are the likeliest ids, float32."""
    correct = tf.argmax(logits, -1, tf.int32) == tf.cast(batch["labels"], tf.int32)
    return tf.reduce_sum(tf.cast(correct, tf.float32) * batch["weights"])


def loss_sum(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the summed cross-entropy of a batch's predictions, nats."""
    return tf.reduce_sum(cross_entropy(logits, batch["labels"]) * batch["weights"])
