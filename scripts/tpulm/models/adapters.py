"""Save the LoRA variables of a run for keras-hub: as an adapter, or merged into a float32 model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np

from tpulm.compat.keras import flat_layers, scale_in_kernel
from tpulm.core.files import atomic_write, read_json, write_json
from tpulm.models import causal
from tpulm.models.base_precision import leaves
from tpulm.models.building import build_abstract_model, distribute, open_model
from tpulm.models.preset_folders import load_preset, registered_backbone
from tpulm.models.variables import check_arrays, is_random_state
from tpulm.specs.causal_families import layers_of
from tpulm.specs.training_step import ModelSpec


def save_adapters(spec: ModelSpec, arrays: Mapping[str, np.ndarray], weights: str | Path, config: str | Path) -> None:
    """Write LoRA variables as `Backbone.load_lora_weights` reads them, and the arguments of `Backbone.enable_lora`.

    spec     model of the run; the adapter fits the published base model, whatever type its weights had
    arrays   by Keras path; A @ B is added unscaled, because Keras's file cannot hold alpha
    weights  path of the .lora.h5, HDF5; config  path of the JSON: rank, target_layer_names

    Raises UserError if the arrays belong to another model.
    """
    arguments = read_json(Path(spec.preset) / "config.json")["config"]
    built = replace(spec, base_precision=None, source=causal.as_built(registered_backbone(spec.preset), arguments))
    model = build_abstract_model(built, causal, distribute(built, causal))  # only the paths of its layers are needed
    check_arrays(model.trainable_variables, arrays, str(weights))
    for layer in leaves(model.backbone):
        if getattr(layer, "lora_enabled", False):  # arrays replace the variables, which have no values
            layer.lora_kernel_a, layer.lora_kernel_b = (arrays[f"{layer.path}/lora_kernel_{part}"] for part in "ab")
    adapted = {path.split("/")[-2] for path in arrays}
    names = [name for name in layers_of(spec.targets) if name in adapted]
    write_json(config, {"rank": spec.rank, "target_layer_names": names})
    with atomic_write(weights) as partial:
        named = partial.with_name(f"{partial.name}.lora.h5")  # the ending that Keras insists on
        model.backbone.save_lora_weights(str(named))
        named.rename(partial)


def merged_model(spec: ModelSpec, best: str) -> keras.Model:
    """Return the float32 model of a finished LoRA run, the adapter merged into its kernels.

    spec  model of a run on a preset; best  safetensors file of its LoRA variables

    Raises UserError if `best` belongs to another model.
    """
    tuned, _ = open_model(spec, causal, best)
    keras.distribution.set_distribution(None)
    wide = load_preset(spec.preset, keras.DTypePolicy("float32"))
    layers = {layer.path: layer for layer in flat_layers(tuned.backbone, include_self=False)}
    for variable in wide.backbone.variables:
        layer, _, name = variable.path.rpartition("/")
        if not is_random_state(variable):
            variable.assign(wide_value(layers[layer], name))
    return wide


def wide_value(layer: keras.Layer, name: str) -> np.ndarray:
    """Return a variable of a layer in float32; int8 is dequantized, and LoRA's product is added to a kernel."""
    own = (variable for variable in layer.variables if variable.path.rpartition("/")[0] == layer.path)
    values = {variable.name: np.asarray(variable.value).astype(np.float32) for variable in own}
    value, scale = values[name], values.get(f"{name}_scale")
    if scale is not None:
        if isinstance(layer, keras.layers.EinsumDense):  # its scales have the axes of its outputs
            scale = np.asarray(scale_in_kernel(layer, scale))
        value = value / (scale[:, None] if name == "embeddings" else scale)
    if name == "kernel" and getattr(layer, "lora_enabled", False):
        value = value + layer.lora_alpha / layer.lora_rank * (values["lora_kernel_a"] @ values["lora_kernel_b"])
    return value
