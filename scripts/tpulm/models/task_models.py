"""Models with a head for labels: the classifiers of transformers on JAX, with its names of what they predict.

Needs tpulm.training.runtime.start first.
"""

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from tpulm.config.task_candidates import EPSILON
from tpulm.config.tasks import TOKEN_CLASSES
from tpulm.config.training_step import ModelSpec, Preset
from tpulm.core.files import read_json
from tpulm.core.random_streams import generator
from tpulm.models.building import build_model
from tpulm.models.opened_masked import load_folder
from tpulm.models.sharding import Sharded
from tpulm.models.undrawn import undrawn

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
        """Make it; predict  of `tpulm.config.tasks`; bias  whether the last layer has one.

        pooling  cls, the first token; last, the last that is no padding; or mean, of all but padding
        """
        super().__init__(**kwargs)
        self.of_tokens, self.pooling = predict == TOKEN_CLASSES, pooling
        self.dropout = keras.layers.Dropout(dropout, name="dropout")
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


def build_causal_task_model(
    spec: ModelSpec, distribution: Sharded, outputs: int, predict: str, weights: bool
) -> TaskModel:
    """Return the causal model of the preset of `spec` with a new head; see `build_task_model`."""
    causal = build_model(spec, distribution, weights)
    with undrawn():
        head = CausalHead(outputs, predict, dropout=0.0, pooling="last", bias=False, name="task_head")
        model = TaskModel(causal.backbone, head)
    draw_head([head.output_dense.kernel], spec.seed, CAUSAL_DEVIATION)
    return model


def draw_head(kernels: list[keras.Variable], seed: int, deviation: float) -> None:
    """Draw the kernels of a head: normal."""
    for number, kernel in enumerate(kernels):
        values = generator(seed, HEAD, number, HEAD).standard_normal(kernel.shape, np.float32)
        kernel.assign(values * np.float32(deviation))


def build_task_model(
    spec: ModelSpec, distribution: Sharded, folder: Path, outputs: int, predict: str, weights: bool
) -> TaskModel:
    """Return the model of a folder with a new head, drawn by the seed of `spec`.

    spec      of the masked model, or of a preset; distribution  see `tpulm.models.building.distribute`
    folder    of the masked model: its config.json and, with `weights`, its weights, where others are drawn
    outputs   labels, or 1 for a number; predict  of `tpulm.config.tasks`

    Raises UserError where the weights are another model's.
    """
    if isinstance(spec.source, Preset):
        return build_causal_task_model(spec, distribution, outputs, predict, weights)
    masked = build_model(spec, distribution)
    config, sizes = read_json(folder / "config.json"), spec.masked.sizes
    if weights:
        load_folder(masked, folder / "model.safetensors")
    for layer in masked.backbone._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization) and EPSILON in config:
            layer.epsilon = config[EPSILON]
    arguments: dict[str, Any] = {"outputs": outputs, "predict": predict, "name": "task_head"}
    with undrawn():
        head: Head
        if spec.masked.name == "modernbert":
            dropout = config.get("classifier_dropout") or 0.0
            pooling = config.get("classifier_pooling", "cls")
            head = ModernBertHead(masked.masked_lm_head, dropout=dropout, pooling=pooling, **arguments)
        else:
            dropout = config.get("classifier_dropout")
            head = RobertaHead(dropout=sizes["hidden_dropout_prob"] if dropout is None else dropout, **arguments)
        model = TaskModel(masked.backbone, head)
    drawn = [layer.kernel for layer in (head.output_dense, getattr(head, "dense", None)) if layer is not None]
    draw_head(drawn[:1] if spec.masked.name == "modernbert" else drawn, spec.seed, sizes["initializer_range"])
    return model
