"""Start JAX for a job that opens a causal model, and open it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tpulm.specs.recipes import determinism_of
from tpulm.specs.training_step import ModelSpec
from tpulm.training import runtime

if TYPE_CHECKING:
    import keras

    from tpulm.models.sharding import Sharded


def start_for(
    where: str, recipe: Mapping, base: str, resources: Mapping, repeats: bool = True, **known: Any
) -> ModelSpec:
    """Start JAX by a recipe, and return the specification of the model to open.

    where, recipe  config key of the model, and its recipe
    base           preset folder; known  further entries of the recipe, such as packing
    resources      of the job, which has one host; repeats  as for `runtime.start`
    """
    how = recipe["precision"], determinism_of(recipe)
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], *how, repeats)
    from tpulm.models.sharding import on_one_host

    stage, preset = ("finetune", {"base": {"preset": base}}) if "method" in recipe else ("base", {"preset": base})
    return ModelSpec.of(stage, where, {**on_one_host(recipe, resources), **preset, **known})


def open_causal(*arguments: Any, **known: Any) -> "tuple[keras.Model, Sharded]":
    """Return the model of `start_for`, without finetuned weights, and its sharding."""
    spec = start_for(*arguments, **known)
    from tpulm.models import causal
    from tpulm.models.building import open_model

    return open_model(spec, causal)
