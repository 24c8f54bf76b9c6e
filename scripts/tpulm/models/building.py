"""Build the model of a run on its mesh: with values to run it, or without values (abstract) for a plan."""

from collections.abc import Callable
from typing import Protocol

import keras

from tpulm.compat.keras import set_layout
from tpulm.core.arrays import load_arrays
from tpulm.models import sharding
from tpulm.models.attention import Kernel, attention_of, fuse
from tpulm.models.document_masking import separate_documents
from tpulm.models.dropout import draw_masks_once
from tpulm.models.variables import assign
from tpulm.specs.training_step import ModelSpec


class ModelModule(Protocol):
    """A module that builds one kind of language models: `masked_models` or `causal` of `tpulm.models`.

    An argument, so that code that trains one kind does not depend on the code of the other.
    """

    def backbone_of(self, spec: ModelSpec) -> type:
        """Return the backbone class of a model."""

    def build(self, spec: ModelSpec) -> keras.Model:
        """Return a model with its weights, loaded or drawn by its seed; its trainable variables are set."""

    def build_abstract(self, spec: ModelSpec) -> keras.Model:
        """Return the model of `build` with Keras's initial weights."""

    def objective(self, batch: dict) -> tuple:
        """Return inputs, labels and weights for a batch of records, as arrays."""


def open_model(spec: ModelSpec, module: ModelModule, best: str | None = None) -> tuple[keras.Model, sharding.Sharded]:
    """Return the model of a run and its sharding over JAX's devices, see `distribute` and `build_model`.

    best   safetensors file of a checkpoint's trainable variables, which replace the model's own

    Raises UserError as they do, and if `best` belongs to another model.
    """
    distribution = distribute(spec, module)
    model = build_model(spec, module, distribution)
    if best:
        assign(model.trainable_variables, load_arrays(best), best)
    return model, distribution


def distribute(spec: ModelSpec, module: ModelModule, devices: list | None = None) -> sharding.Sharded:
    """Make devices the mesh of a run and return its sharding, which every variable made from now on follows.

    devices   all of JAX's by default, or those of a topology description

    Raises UserError if the mesh does not fit the devices, or the model has no layout map for it.
    """
    return sharding.set_up(module.backbone_of(spec), list(spec.mesh), spec.where, devices, spec.layout)


def build_model(spec: ModelSpec, module: ModelModule, distribution: sharding.Sharded) -> keras.Model:
    """Return the model of a run, its trainable variables set, with the preset's weights or weights drawn by the seed.

    Raises UserError if a variable is not sharded as the layout map says.
    """
    keras.utils.set_random_seed(spec.seed)
    model = module.build(spec)
    prepare(model, spec, distribution)
    sharding.check_shardings(model.variables, distribution)
    return model


def build_abstract_model(
    spec: ModelSpec,
    module: ModelModule,
    distribution: sharding.Sharded,
    finish: Callable[[keras.Model], keras.Model] = lambda model: model,
) -> keras.Model:
    """Return the model of `build_model` with shapes, dtypes and shardings but no values, which take no memory.

    spec     of a model that is built, not loaded from a preset
    finish   returns another model made from it, such as one with a classification head
    """
    keras.utils.set_random_seed(spec.seed)
    # Variables that are made inside this scope have no values.
    with keras.StatelessScope(initialize_variables=False):
        model = module.build_abstract(spec)
        prepare(model, spec, distribution)
        model = finish(model)
        for variable in model.variables:  # as Keras does it when a variable gets its value
            set_layout(variable, distribution.get_variable_layout(variable))
    sharding.check_overrides(model.variables, distribution)
    return model


def prepare(model: keras.Model, spec: ModelSpec, distribution: sharding.Sharded) -> None:
    """Set dropout, document masking and attention kernel of a model. Raises UserError if it cannot mask documents."""
    draw_masks_once(model)
    name = attention_of(model, distribution, spec.determinism).implementation
    kernel = None if name == "plain" else Kernel(name, spec.segments, spec.full)
    if spec.segments:
        separate_documents(model, spec.where)
    if kernel:
        fuse(model, kernel)
