"""Build an abstract training run, of shapes and dtypes without values, for a plan to compile.

It is built from the same `TrainingStep` by the same builder as a real run.
"""

import math
from dataclasses import replace
from pathlib import Path

import jax
import keras
import keras_hub
import numpy as np

from tpulm.compat.keras_hub import read_preset_file
from tpulm.core import hub
from tpulm.core.errors import UserError, one_line
from tpulm.core.files import read_json
from tpulm.models import causal, masked_models
from tpulm.models.building import ModelModule, build_abstract_model
from tpulm.models.preset_folders import registered_backbone
from tpulm.models.sharding import Sharded, batch_sharding, shardings
from tpulm.models.task_models import build_abstract_task_model
from tpulm.records.labelled_batches import labelling
from tpulm.specs.published_models import published
from tpulm.specs.training_step import MaskedArchitecture, ModelSpec, Preset, TrainingStep
from tpulm.training.jax_run import build_abstract_run
from tpulm.training.train_step import TrainState


class Unreachable(UserError):
    """A plan's input could not be fetched, which may be temporary."""


def without_preset(spec: ModelSpec) -> ModelSpec:
    """Return a spec with family and sizes in place of a preset. Raises UserError, see `preset_backbone`."""
    if not isinstance(spec.source, Preset):
        return spec
    family, arguments = preset_backbone(spec.source.name, spec.source.revision)
    return replace(spec, source=causal.as_built(family, arguments))


def preset_backbone(preset: str, revision: str | None) -> tuple[type, dict]:
    """Return class and arguments of a preset's backbone. Raises Unreachable, or UserError for an unknown model."""
    if (Path(preset) / "config.json").is_file():
        return registered_backbone(preset), read_json(Path(preset) / "config.json")["config"]
    backbone = published(preset)
    if backbone:
        return getattr(keras_hub.models, backbone[0]), backbone[1]
    try:
        if preset.startswith("hf://"):
            source = hub.named_source("the preset", preset, revision)
            config = read_json(hub.fetch(preset, revision, source, ["config.json"]) / "config.json")
        else:
            config = read_preset_file(preset, "config.json")
    except UserError as error:
        raise Unreachable(str(error)) from None
    except Exception as error:
        raise Unreachable(f"the sizes of {preset} cannot be read: {one_line(error)}") from None
    family = keras.saving.get_registered_object(config.get("registered_name", ""))
    if family is None:
        raise UserError(f"{preset} is not in the format of Keras, or is a model that keras-hub does not have.")
    return family, config["config"]


def module_of(spec: ModelSpec) -> ModelModule:
    """Return the module of a model that is built."""
    return masked_models if isinstance(spec.source, MaskedArchitecture) else causal


def abstract_model(step: TrainingStep, distribution: Sharded) -> keras.Model:
    """Return the model of a step without values: a language model, or one with a classification head."""
    if step.head:
        return build_abstract_task_model(step, distribution)
    return build_abstract_model(step.model, module_of(step.model), distribution)


class AbstractRun:
    """A run of the config on devices that need not exist."""

    def __init__(self, step: TrainingStep, devices: list):
        """Build the run; devices  those of JAX, or of a topology description.

        Raises UserError if mesh or batch do not fit the devices, or the preset is unknown.
        """
        self.step = replace(step, model=without_preset(step.model))
        module = module_of(self.step.model)
        objective = labelling if self.step.head else module.objective
        self.run = build_abstract_run(self.step, module, devices, abstract_model, objective)
        self.model, self.optimizer, self.distribution = self.run.model, self.run.optimizer, self.run.distribution

    def lowered(self) -> jax.stages.Lowered:
        """Return the lowered program of a dispatch, before compilation."""
        return self.run.jit_train_step().lower(*self.arguments())

    def arguments(self) -> tuple:
        """Return shapes, dtypes and shardings of a dispatch's arguments: state, frozen variables, batch, rates."""
        steps = self.step.steps_per_execution
        ahead = () if steps == 1 else (steps,)
        state = TrainState(*map(self.abstract, self.run.variables))
        frozen = self.abstract(self.model.non_trainable_variables)
        batch = self.batch(self.step.batch_size, batch_sharding(self.distribution, steps), ahead)
        return state, frozen, batch, np.zeros(ahead, np.float32)

    def batch(self, size: int, sharding: jax.sharding.Sharding, ahead: tuple = ()) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes, dtypes and sharding of a batch of `size` records, with the leading dimensions `ahead`."""
        return {
            name: jax.ShapeDtypeStruct((*ahead, size, *shape), dtype, sharding=sharding)
            for name, (shape, dtype) in self.step.record_arrays.items()
        }

    def abstract(self, variables: list) -> list[jax.ShapeDtypeStruct]:
        """Return shape, dtype and sharding of each variable."""
        places = shardings(self.distribution, variables)
        return [
            jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=place) for v, place in zip(variables, places, strict=True)
        ]

    def bytes_per_device(self, variables: list) -> int:
        """Return the bytes of variables on each device."""
        places = shardings(self.distribution, variables)
        return sum(
            math.prod(place.shard_shape(tuple(v.shape))) * np.dtype(v.dtype).itemsize
            for v, place in zip(variables, places, strict=True)
        )
