"""Masked models with a classification head: the classifiers of transformers on JAX."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from tpulm.core.errors import UserError
from tpulm.core.random_streams import generator
from tpulm.models import masked_models
from tpulm.models.building import build_abstract_model, build_model
from tpulm.models.dropout import Dropout
from tpulm.models.gelu import gelu
from tpulm.models.sharding import Sharded
from tpulm.specs.training_step import ModelSpec, TrainingStep


class TaskModel(keras.Model):
    """A backbone with a classification head.

    Inputs are token_ids and padding_mask, int32 [records, tokens]; outputs are logits, float32 [records, outputs].
    """

    def __init__(self, backbone: keras.Model, head: keras.layers.Layer):
        outputs = head(backbone(backbone.input), backbone.input["padding_mask"])
        super().__init__(inputs=backbone.input, outputs=outputs)
        self.backbone, self.head = backbone, head


class Head(keras.layers.Layer):
    """The common part of the classification heads: dropout, and the last layer."""

    def __init__(self, outputs: int, dropout: float):
        super().__init__(name="task_head")
        self.dropout = Dropout(dropout, name="dropout")
        self.output_dense = keras.layers.Dense(outputs, dtype="float32", name="output_dense")

    def compute_output_shape(self, x_shape: tuple, padding_shape: tuple) -> tuple:
        """Return the shape of the logits."""
        return (x_shape[0], self.output_dense.units)


class RobertaHead(Head):
    """The head of RobertaForSequenceClassification: a dense layer and tanh on the first token, and a last layer."""

    def build(self, x_shape: tuple, padding_shape: tuple) -> None:
        """Make the variables for hidden states [records, tokens, hidden]."""
        self.dense = keras.layers.Dense(x_shape[-1], activation="tanh", name="dense")
        for layer in (self.dense, self.output_dense):
            layer.build(x_shape)
        self.built = True

    def call(self, x: Any, padding: Any, training: bool | None = None) -> Any:
        """Return the logits."""
        x = self.dropout(x[:, 0], training=training)
        return self.output_dense(self.dropout(self.dense(x), training=training))


class ModernBertHead(Head):
    """The head of ModernBertForSequenceClassification: the masked model's head, with its weights, and a last layer."""

    def __init__(self, masked_head: keras.layers.Layer, outputs: int, dropout: float, pooling: str):
        """Take the head of the masked model, built.

        pooling  which hidden states are read: cls, the first token's; or mean, of all but padding
        """
        super().__init__(outputs, dropout)
        self.dense, self.norm, self.pooling = masked_head.dense, masked_head.norm, pooling

    def build(self, x_shape: tuple, padding_shape: tuple) -> None:
        """Make the variables of the last layer."""
        self.output_dense.build(x_shape)
        self.built = True

    def call(self, x: Any, padding: Any, training: bool | None = None) -> Any:
        """Return the logits; as in transformers, pooling precedes the masked model's head."""
        if self.pooling == "cls":
            x = x[:, 0]
        else:
            weights = ops.cast(ops.not_equal(padding, 0), x.dtype)[:, :, None]
            x = ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)
        x = self.norm(gelu(self.dense(x)))
        return self.output_dense(self.dropout(x, training=training))


def with_head(masked_model: keras.Model, step: TrainingStep) -> TaskModel:
    """Return a masked model's backbone with the head of a step, undrawn. Raises UserError for too few positions."""
    if step.head is None:
        raise ValueError(f"{step.model.where} has no classification head")
    spec, head = step.model, step.head
    most = getattr(masked_model.backbone, "max_sequence_length", None)  # rotary positions have no end
    if most and step.sequence_length > most:
        raise UserError(
            f"{spec.where}.sequence_length is {step.sequence_length}; allowed: {most} or less, the positions of the "
            "model."
        )
    if spec.masked.name == "modernbert":
        layer: Head = ModernBertHead(masked_model.masked_lm_head, head.outputs, head.dropout or 0.0, head.pooling)
    else:
        dropout = spec.masked.sizes["hidden_dropout_prob"] if head.dropout is None else head.dropout
        layer = RobertaHead(head.outputs, dropout)
    return TaskModel(masked_model.backbone, layer)


def draw_head(model: TaskModel, spec: ModelSpec) -> None:
    """Draw the kernels of a model's head by the seed of `spec`, normal; ModernBERT's dense layer keeps its weights."""
    deviation, modernbert = spec.masked.sizes["initializer_range"], spec.masked.name == "modernbert"
    layers = [model.head.output_dense] if modernbert else [model.head.output_dense, model.head.dense]
    for number, layer in enumerate(layers):
        values = generator("weights of a head", spec.seed, number).standard_normal(layer.kernel.shape, np.float32)
        layer.kernel.assign(values * np.float32(deviation))


def build_task_model(step: TrainingStep, distribution: Sharded, folder: Path, weights: bool) -> TaskModel:
    """Return the model of a step, with a classification head that is drawn by the seed of the step.

    distribution  see `tpulm.models.building.distribute`
    folder        of the masked model; weights  whether to load its weights, which are drawn otherwise

    Raises UserError if the model has too few positions, or the weights belong to another model.
    """
    masked_model = build_model(step.model, masked_models, distribution)
    if weights:
        masked_models.load_folder(masked_model, folder / "model.safetensors")
    model = with_head(masked_model, step)
    draw_head(model, step.model)
    return model


def build_abstract_task_model(step: TrainingStep, distribution: Sharded) -> keras.Model:
    """Return the model of a step without values, see `tpulm.models.building.build_abstract_model`."""
    return build_abstract_model(step.model, masked_models, distribution, lambda model: with_head(model, step))
