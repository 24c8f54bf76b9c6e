"""LoRA in a causal model of keras-hub: which layers get matrices, their initial values, and what they compute."""

import math
from functools import partial

import jax
import keras
import numpy as np

from tpulm.compat.keras import flat_layers, kernel_alone, replace_call
from tpulm.core.errors import UserError
from tpulm.core.random_streams import generator
from tpulm.specs.causal_families import TARGETS, layers_of, refuse_bypassed
from tpulm.specs.training_step import ModelSpec


def prepare_tuning(model: keras.Model, spec: ModelSpec) -> None:
    """Set the trainable variables of a run: those of LoRA with method lora, else all.

    LoRA's matrices are float32; `draw_adapter` draws A, and B is zero. They add alpha / rank times A @ B.
    Raises UserError for a target without a layer in the model.
    """
    if spec.only_lora:
        adapt(model, spec)
        for variable in model.trainable_variables:  # biases of the projections, which enable_lora leaves to be trained
            variable.trainable = variable.path.endswith(("lora_kernel_a", "lora_kernel_b"))


def draw_adapter(model: keras.Model, seed: int) -> None:
    """Draw LoRA's matrices A by `seed`, uniformly within the limits of He et al. (2015), as Keras does."""
    adapters = (variable for variable in model.trainable_variables if variable.path.endswith("lora_kernel_a"))
    for index, variable in enumerate(adapters):
        limit = np.float32((6 / math.prod(variable.shape[:-1])) ** 0.5)
        variable.assign(limit * (2 * generator("adapter", seed, index).random(variable.shape, np.float32) - 1))


def adapt(model: keras.Model, spec: ModelSpec) -> None:
    """Enable LoRA on the layers of a run's targets. Raises UserError for a target that the model does not have."""
    refuse_bypassed(type(model.backbone).__name__, spec.where, spec.targets, spec.base_precision)
    layers = flat_layers(model.backbone, include_self=False)
    for target in spec.targets:
        if not any(layer.name in TARGETS[target] and hasattr(layer, "enable_lora") for layer in layers):
            raise UserError(
                f"{spec.where}.targets names {target}, but {type(model.backbone).__name__} has no such layer that LoRA "
                "can adapt."
            )
    model.backbone.enable_lora(spec.rank, target_layer_names=layers_of(spec.targets))
    for layer in layers:
        if getattr(layer, "lora_enabled", False):
            layer.lora_alpha = spec.alpha  # Backbone.enable_lora has no such argument
            if layer.quantization_mode is None:  # Keras's layers of int8 do it so, too
                replace_call(layer, lambda _, layer=layer: partial(with_adapter, layer))  # type: ignore[misc]


def with_adapter(layer: keras.layers.Dense | keras.layers.EinsumDense, inputs: jax.Array, **_: object) -> jax.Array:
    """Return the outputs of a layer with LoRA, A and B applied to its inputs (Hu et al. 2021, equation 3).

    Keras adds A @ B to the kernel instead. In bfloat16 that rounds away what is small compared with a weight, and each
    step computes the gradient of the whole kernel.
    """
    first, second = (keras.ops.cast(part, layer.compute_dtype) for part in (layer.lora_kernel_a, layer.lora_kernel_b))
    if isinstance(layer, keras.layers.EinsumDense):
        product = partial(keras.ops.einsum, layer.equation)
    else:
        product = keras.ops.matmul
    added = keras.ops.matmul(product(inputs, first), second)
    outputs = product(inputs, kernel_alone(layer)) + layer.lora_alpha / layer.lora_rank * added
    if layer.bias is not None:
        outputs += layer.bias
    return outputs if layer.activation is None else layer.activation(outputs)
