"""LoRA weights in the form that keras-hub reads. Needs tpulm.training.runtime.start first."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tpulm.config.causal_families import layers_of
from tpulm.config.training_step import ModelSpec
from tpulm.core.files import atomic_write, write_json
from tpulm.models.building import open_model
from tpulm.models.causal import assign


def save_adapters(spec: ModelSpec, arrays: Mapping[str, np.ndarray], weights: str | Path, config: str | Path) -> None:
    """Write LoRA variables for Backbone.load_lora_weights, and the arguments of Backbone.enable_lora before that.

    spec     of the run; the adapter is for the base model as it is published, whatever type its weights had
    arrays   by Keras path, what is added unscaled: Keras's file has no place for alpha
    weights  .lora.h5, HDF5; config  JSON: rank, target_layer_names

    Raises UserError where the arrays belong to another model.
    """
    model, _ = open_model(replace(spec, base_precision=None))
    assign(model.trainable_variables, arrays, str(weights))
    adapted = {path.split("/")[-2] for path in arrays}
    names = [name for name in layers_of(spec.targets) if name in adapted]
    write_json(config, {"rank": spec.rank, "target_layer_names": names})
    with atomic_write(weights) as partial:
        named = partial.with_name(f"{partial.name}.lora.h5")  # the ending that Keras insists on
        model.backbone.save_lora_weights(str(named))
        named.rename(partial)
