"""Causal language models of keras-hub, built or loaded: a `ModelModule` of `tpulm.models.building`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np

from tpulm.compat.keras_hub import plain_attention
from tpulm.core.arrays import load_arrays
from tpulm.core.random_streams import generator
from tpulm.models.base_precision import load_int8, policy_of, without_activations
from tpulm.models.lora import draw_adapter, prepare_tuning
from tpulm.models.preset_folders import load_preset, make_preprocessor, registered_backbone, task_of
from tpulm.models.variables import assign
from tpulm.records.causal_batches import causal_lm
from tpulm.specs.causal_families import ENCODERS, constructor
from tpulm.specs.training_step import CausalArchitecture, ModelSpec, Preset

objective = causal_lm


def backbone_of(spec: ModelSpec) -> type:
    """Return the backbone class of a model."""
    if isinstance(spec.source, Preset):
        return registered_backbone(spec.source.name)
    return getattr(keras_hub.models, spec.causal.family)


def build(spec: ModelSpec) -> keras.Model:
    """Return a model with the weights of its preset, or weights drawn by its seed; its trainable variables are set."""
    policy = policy_of(spec)
    if not isinstance(spec.source, Preset):
        model = construct(spec.causal, policy)
        draw_causal_weights(model.backbone, spec.seed)
    elif isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        model = load_int8(spec.source.name, policy)
    else:
        model = load_preset(spec.source.name, policy)
    prepare_tuning(model, spec)
    if spec.only_lora:
        draw_adapter(model, spec.seed)
    return model


def build_abstract(spec: ModelSpec) -> keras.Model:
    """Return the model of `build` with Keras's initial weights; `spec` has no preset."""
    model = construct(spec.causal, policy_of(spec))
    prepare_tuning(model, spec)
    return model


def construct(architecture: CausalArchitecture, policy: keras.dtype_policies.DTypePolicy | None = None) -> keras.Model:
    """Return the model of an architecture with Keras's initial weights. Raises UserError for an unknown class."""
    family = getattr(keras_hub.models, architecture.family)
    arguments = {"vocabulary_size": architecture.vocabulary_size, **architecture.sizes}
    backbone = family(**arguments, **({"dtype": policy} if policy else {}))
    model = task_of(family)(backbone=backbone, preprocessor=None, compile=False)  # an optimizer would have values
    return without_activations(plain_attention(model))


def draw_causal_weights(backbone: keras.Model, seed: int) -> None:
    """Draw embeddings and kernels by `seed`: normal, variance 1/inputs, and 1/(2 layers) of that into the residual.

    keras-hub draws the same numbers for query, key, value and output, and embeddings with variance 1/vocabulary. With
    1/hidden, the model's input has variance 1, and finetuning can separate tokens that the training text lacks.
    The damping of the residual branches is that of GPT-2 (Radford et al. 2019).
    """
    into_residual = ("attention_output", "ffw_linear", "feedforward_output_dense")
    for index, variable in enumerate(backbone.trainable_variables):
        layer, kind = variable.path.split("/")[-2:]
        if kind in ("kernel", "embeddings", "reverse_embeddings"):
            deviation = backbone.hidden_dim**-0.5
            if layer in into_residual:
                deviation = math.prod(variable.shape[:-1]) ** -0.5 * (2 * backbone.num_layers) ** -0.5
            drawn = generator("initial weights", seed, index).standard_normal(variable.shape, np.float32)
            variable.assign(drawn * np.float32(deviation))


def as_built(family: type, arguments: Mapping[str, Any]) -> CausalArchitecture:
    """Return the architecture of a backbone class with the arguments in its config.json, for text alone."""
    sizes = {key: value for key, value in arguments.items() if key not in ("name", "trainable", "dtype")}
    sizes |= {name: None for name in ENCODERS if name in sizes}
    return CausalArchitecture(family.__name__, sizes, sizes.pop("vocabulary_size"))


def open_trained(recipe: Mapping[str, Any], weights: str, vocabulary: Path, size: int) -> keras.Model:
    """Return a base model that this workflow has trained, with its preprocessor.

    recipe   of its training: model, sequence_length
    weights  safetensors file of its variables; vocabulary, size  its vocabulary, see `make_preprocessor`
    """
    model = construct(CausalArchitecture(*constructor(recipe["model"]), size))
    assign(model.backbone.weights, load_arrays(weights), weights)
    model.preprocessor = make_preprocessor(recipe["model"]["architecture"], vocabulary, recipe["sequence_length"])
    return model
