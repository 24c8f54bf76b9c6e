"""The base model that LoRA leaves as it is: of which type its weights are (`base_precision`).

Needs tpulm.training.runtime.start first.
"""

from collections.abc import Iterator
from pathlib import Path

import jax
import keras
import numpy as np

from tpulm.compat.keras import flat_layers, round_weights_only
from tpulm.config.causal_families import TARGETS, layers_of
from tpulm.config.training_step import ModelSpec
from tpulm.models.causal import load_preset, rebuilt

# The layers whose weights int8 stands for: all matrices.
QUANTISED = [*layers_of(tuple(TARGETS)), "token_embedding"]
# Only the weights: the default of Keras rounds activations, too.
WEIGHTS_ONLY = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)


class Stored(keras.dtype_policies.DTypePolicy):
    """Variables of one type, arithmetic in another; Keras itself has only float32 variables for other arithmetic."""

    def __init__(self, variables: str, arithmetic: str):
        """Both are types such as bfloat16."""
        super().__init__(arithmetic)
        self.variables = variables

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self.name == other.name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def variable_dtype(self) -> str:
        """The type of the variables."""
        return self.variables

    @property
    def name(self) -> str:
        """What Keras calls the policy."""
        return f"{self.compute_dtype}_on_{self.variables}"


def policy_of(spec: ModelSpec) -> keras.dtype_policies.DTypePolicy | None:
    """Return the dtype policy of a model whose base has a precision of its own; None where the run's holds for all."""
    run = keras.DTypePolicy(spec.precision)
    if spec.base_precision == "int8":
        names = "|".join(QUANTISED)
        layers = {f"(.*/)?({names})": keras.dtype_policies.get(f"int8_from_{run.name}")}
        return keras.dtype_policies.DTypePolicyMap(run, layers)
    if spec.base_precision in (None, run.variable_dtype):
        return None
    return Stored(spec.base_precision, run.compute_dtype)


def without_activations(model: keras.Model) -> keras.Model:
    """Let the int8 layers of a model round only their weights. Returns the model."""
    for layer in flat_layers(model):
        if layer.quantization_mode == "int8":
            round_weights_only(layer)
    return model


def load_int8(preset: str | Path, policy: keras.dtype_policies.DTypePolicyMap) -> keras.Model:
    """Return the model of a preset with int8 weights on its mesh, and one scale for each of a matrix' outputs.

    The weights are read and quantised on the host: the devices never hold them in a wider type.
    """
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        wide = load_preset(preset)
        wide.backbone.quantize(config=WEIGHTS_ONLY, filters=lambda layer: layer.name in QUANTISED)
    keras.distribution.set_distribution(distribution)
    model = without_activations(rebuilt(wide, policy))
    for target, source in zip(leaves(model.backbone), leaves(wide.backbone), strict=True):
        values = {variable.name: variable for variable in source.variables}
        for variable in target.variables:
            variable.assign(np.asarray(values[variable.name].value))
    return model


def leaves(model: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a model that have variables of their own and no layers."""
    for layer in flat_layers(model, include_self=False):
        if layer.variables and len(flat_layers(layer)) == 1:
            yield layer
