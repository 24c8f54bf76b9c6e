"""Models with a head for labels: the classifiers of transformers on JAX, with its names of what they predict.

Needs tpulm.training.runtime.start first.
"""

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from tpulm.core.errors import UserError
from tpulm.core.random_streams import generator
from tpulm.models.building import build_abstract_model, build_model
from tpulm.models.dropout import Dropout
from tpulm.models.loading import load_folder
from tpulm.models.sharding import Sharded
from tpulm.specs.label_heads import TOKEN_CLASSES
from tpulm.specs.training_step import MaskedArchitecture, ModelSpec, TrainingStep

HEAD = 3  # key of the random stream of a head's weights
CAUSAL_DEVIATION = 0.02  # of a causal model's head: `initializer_range` of transformers' Llama, Gemma and others


class TaskModel(keras.Model):
    """A backbone with a head: inputs token_ids and padding_mask, int32 [records, tokens]; outputs float32 logits.

    The logits are [records, outputs], or [records, tokens, outputs] with token-classes; a number is the one logit.
    """

    def __init__(self, backbone: keras.Model, head: keras.layers.Layer):
        """Put a head on a backbone."""
        outputs = head(backbone(backbone.input), backbone.input["padding_mask"])
        super().__init__(inputs=backbone.input, outputs=outputs)
        self.backbone, self.head = backbone, head


class Head(keras.layers.Layer):
    """What the heads share: the last layer, and which hidden states it reads."""

    def __init__(
        self, outputs: int, predict: str, dropout: float, pooling: str = "cls", bias: bool = True, **kwargs: Any
    ):
        """Make it; predict  of `tpulm.specs.label_heads`; bias  whether the last layer has one.

        pooling  cls, the first token; last, the last that is no padding; or mean, of all but padding
        """
        super().__init__(**kwargs)
        self.of_tokens, self.pooling = predict == TOKEN_CLASSES, pooling
        self.dropout = Dropout(dropout, name="dropout")
        self.output_dense = keras.layers.Dense(outputs, use_bias=bias, dtype="float32", name="output_dense")

    def pooled(self, x: Any, padding: Any) -> Any:
        """Return the hidden states that are read, [records, hidden] or those of all tokens.

        padding  int32 [records, tokens]: 0 where there is some
        """
        if self.of_tokens:
            return x
        if self.pooling == "cls":
            return x[:, 0]
        if self.pooling == "last":
            last = ops.sum(ops.cast(ops.not_equal(padding, 0), "int32"), axis=1) - 1
            return ops.sum(x * ops.one_hot(last, x.shape[1], dtype=x.dtype)[:, :, None], axis=1)
        weights = ops.cast(ops.not_equal(padding, 0), x.dtype)[:, :, None]
        return ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)

    def compute_output_shape(self, x_shape: tuple, padding_shape: tuple) -> tuple:
        """Return the shape of the logits."""
        return (*(x_shape[:2] if self.of_tokens else x_shape[:1]), self.output_dense.units)


class RobertaHead(Head):
    """As of RobertaForSequenceClassification: a dense layer and tanh; of RobertaForTokenClassification: neither."""

    def build(self, x_shape: tuple, padding_shape: tuple) -> None:
        """Make the variables, for hidden states of this shape [records, tokens, hidden]."""
        self.dense = None if self.of_tokens else keras.layers.Dense(x_shape[-1], activation="tanh", name="dense")
        for layer in (self.dense, self.output_dense):
            if layer is not None:
                layer.build(x_shape)
        self.built = True

    def call(self, x: Any, padding: Any, training: bool | None = None) -> Any:
        """Return the logits."""
        x = self.dropout(self.pooled(x, padding), training=training)
        if self.dense is not None:
            x = self.dropout(self.dense(x), training=training)
        return self.output_dense(x)


class ModernBertHead(Head):
    """As of ModernBertForSequenceClassification and -TokenClassification: dense, GELU and normalization of the masked
    model's own head, with its weights, and a last layer."""

    def __init__(self, masked_head: keras.layers.Layer, **kwargs: Any):
        """Take the head of the masked model, built; for the rest see `Head`."""
        super().__init__(**kwargs)
        self.dense, self.norm = masked_head.dense, masked_head.norm

    def build(self, x_shape: tuple, padding_shape: tuple) -> None:
        """Make the variables of the last layer."""
        self.output_dense.build(x_shape)
        self.built = True

    def call(self, x: Any, padding: Any, training: bool | None = None) -> Any:
        """Return the logits; pooled before what the masked model's head does, as transformers has it."""
        x = self.norm(keras.activations.gelu(self.dense(self.pooled(x, padding)), approximate=False))
        return self.output_dense(self.dropout(x, training=training))


class CausalHead(Head):
    """As of LlamaForSequenceClassification and its like: a last layer without bias, on the last token's state."""

    def build(self, x_shape: tuple, padding_shape: tuple) -> None:
        """Make the variables of the last layer."""
        self.output_dense.build(x_shape)
        self.built = True

    def call(self, x: Any, padding: Any, training: bool | None = None) -> Any:
        """Return the logits."""
        return self.output_dense(self.pooled(x, padding))


def with_head(language_model: keras.Model, step: TrainingStep) -> TaskModel:
    """Return the model of a step, a head on the backbone of a language model, the kernels of the head not drawn.

    Raises UserError where it has too few positions.
    """
    if step.head is None:
        raise ValueError(f"{step.model.where} has no head for labels")
    spec, head = step.model, step.head
    most = getattr(language_model.backbone, "max_sequence_length", None)  # rotary positions have no end
    if most and step.sequence_length > most:
        raise UserError(
            f"{spec.where}.sequence_length is {step.sequence_length}; allowed: {most} or less, the positions of the "
            "model."
        )
    names: dict[str, Any] = {"outputs": head.outputs, "predict": head.predict, "name": "task_head"}
    backbone = language_model.backbone
    if not isinstance(spec.source, MaskedArchitecture):
        return TaskModel(backbone, CausalHead(dropout=0.0, pooling="last", bias=False, **names))
    if spec.masked.name == "modernbert":
        masked_head = language_model.masked_lm_head
        own: Head = ModernBertHead(masked_head, dropout=head.dropout or 0.0, pooling=head.pooling, **names)
    else:
        dropout = spec.masked.sizes["hidden_dropout_prob"] if head.dropout is None else head.dropout
        own = RobertaHead(dropout=dropout, **names)
    return TaskModel(backbone, own)


def draw_head(model: TaskModel, spec: ModelSpec) -> None:
    """Draw the kernels of a model's head by the seed of `spec`: normal. Those that ModernBERT brings are its own."""
    if isinstance(spec.source, MaskedArchitecture):
        deviation, own = spec.masked.sizes["initializer_range"], spec.masked.name == "modernbert"
    else:
        deviation, own = CAUSAL_DEVIATION, True
    layers = (model.head.output_dense, None if own else getattr(model.head, "dense", None))
    for number, layer in enumerate(layer for layer in layers if layer is not None):
        values = generator(spec.seed, HEAD, number, HEAD).standard_normal(layer.kernel.shape, np.float32)
        layer.kernel.assign(values * np.float32(deviation))


def build_task_model(step: TrainingStep, distribution: Sharded, folder: Path, weights: bool) -> TaskModel:
    """Return the model of a step, that of a folder with a new head, which is drawn by the seed of the step.

    distribution   see `tpulm.models.building.distribute`
    folder, weights   whether the weights of the masked model there, or of the preset, are loaded: else they are drawn

    Raises UserError where the model has too few positions, or its weights are another one's.
    """
    spec = step.model
    language_model = build_model(spec, distribution, weights)
    if weights and isinstance(spec.source, MaskedArchitecture):
        load_folder(language_model, folder / "model.safetensors")
    model = with_head(language_model, step)
    draw_head(model, spec)
    return model


def build_abstract_task_model(step: TrainingStep, distribution: Sharded) -> keras.Model:
    """Return the same model without values, see `tpulm.models.building.build_abstract_model`."""
    return build_abstract_model(step.model, distribution, lambda model: with_head(model, step))
