"""The dtype of a base model under LoRA: `base_precision` int8, or another one than the run's."""

from collections.abc import Iterator
from pathlib import Path

import jax
import keras
import numpy as np

from tpulm.compat.keras import flat_layers, round_weights_only, skip_initialization
from tpulm.compat.keras_hub import plain_attention
from tpulm.models.preset_folders import load_preset
from tpulm.models.variables import is_random_state
from tpulm.specs.causal_families import TARGETS, layers_of
from tpulm.specs.training_step import ModelSpec

# Layers whose weights are int8: all large matrices.
QUANTISED = [*layers_of(tuple(TARGETS)), "in_proj_qkv", "in_proj_z", "out_proj", "token_embedding"]
# Keras's default quantizes activations, too.
WEIGHTS_ONLY = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)


class StorageDtypePolicy(keras.dtype_policies.DTypePolicy):
    """A dtype policy with any types of variables and arithmetic; Keras mixes only with float32 variables."""

    def __init__(self, variables: str, arithmetic: str):
        super().__init__(arithmetic)
        self.variables = variables

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageDtypePolicy) and self.name == other.name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def variable_dtype(self) -> str:
        """The type of the variables."""
        return self.variables

    @property
    def name(self) -> str:
        """The name of the policy in Keras."""
        return f"{self.compute_dtype}_on_{self.variables}"


def policy_of(spec: ModelSpec) -> keras.dtype_policies.DTypePolicy | None:
    """Return the dtype policy of a model with a base_precision, None if the run's policy holds for all layers."""
    run = keras.DTypePolicy(spec.precision)
    if spec.base_precision == "int8":
        names = "|".join(QUANTISED)
        layers = {f"(.*/)?({names})": keras.dtype_policies.get(f"int8_from_{run.name}")}
        return keras.dtype_policies.DTypePolicyMap(run, layers)
    if spec.base_precision in (None, run.variable_dtype):
        return None
    return StorageDtypePolicy(spec.base_precision, run.compute_dtype)


def without_activations(model: keras.Model) -> keras.Model:
    """Make the int8 layers of a model quantize only their weights; return the model."""
    for layer in flat_layers(model):
        if layer.quantization_mode == "int8":
            round_weights_only(layer)
    return model


def load_int8(preset: str | Path, policy: keras.dtype_policies.DTypePolicyMap) -> keras.Model:
    """Return the model of a preset on its mesh with int8 weights, and one scale per output of a matrix.

    The weights are read and quantized on the host, so the devices never hold them in a wider type.
    """
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        wide = load_preset(preset)
        wide.backbone.quantize(config=WEIGHTS_ONLY, filters=lambda layer: layer.name in QUANTISED)
    keras.distribution.set_distribution(distribution)
    model = without_activations(rebuilt(wide, policy))
    values = {variable.path: variable for variable in wide.backbone.variables}
    for variable in model.backbone.variables:
        if not is_random_state(variable):
            variable.assign(np.asarray(values[variable.path].value))
    return model


@skip_initialization()
def rebuilt(model: keras.Model, dtype: keras.dtype_policies.DTypePolicy) -> keras.Model:
    """Return a model of the same sizes and preprocessor in another dtype, its weights not initialized."""
    config = model.backbone.get_config() | {"dtype": dtype}
    backbone = type(model.backbone).from_config(config)
    return plain_attention(type(model)(backbone=backbone, preprocessor=model.preprocessor, compile=False))


def leaves(model: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a model that have variables and no sublayers."""
    for layer in flat_layers(model, include_self=False):
        if layer.variables and len(flat_layers(layer)) == 1:
            yield layer
