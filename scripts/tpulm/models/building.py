"""Build the model of a run on its mesh: with values to run it, or without values (abstract) for a plan.

Needs tpulm.training.runtime.start first.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import keras_hub

from tpulm.compat.keras import set_layout
from tpulm.compat.keras_hub import plain_attention
from tpulm.core.arrays import load_arrays
from tpulm.models import sharding
from tpulm.models.attention import Kernel, attention_of, fuse
from tpulm.models.causal import (
    assign,
    backbone_class,
    draw_adapter,
    draw_causal_weights,
    load_int8,
    load_preset,
    make_preprocessor,
    policy_of,
    prepare_tuning,
    task_of,
    without_activations,
)
from tpulm.models.document_masking import separate_documents
from tpulm.models.dropout import draw_masks_once
from tpulm.models.masked_models import MODULES
from tpulm.specs.causal_families import constructor
from tpulm.specs.training_step import CausalArchitecture, MaskedArchitecture, ModelSpec, Preset


def open_model(spec: ModelSpec, best: str | None = None) -> tuple[keras.Model, sharding.Sharded]:
    """Return the model of a run and its sharding over JAX's devices, see `distribute` and `build_model`.

    best   safetensors file of a checkpoint's trainable variables, which replace the model's own

    Raises UserError as they do, and if `best` belongs to another model.
    """
    distribution = distribute(spec)
    model = build_model(spec, distribution)
    if best:
        assign(model.trainable_variables, load_arrays(best), best)
    return model, distribution


def distribute(spec: ModelSpec, devices: list | None = None) -> sharding.Sharded:
    """Make devices the mesh of a run and return its sharding, which every variable made from now on follows.

    devices   all of JAX's by default, or those of a topology description

    Raises UserError if the mesh does not fit the devices, or the model has no layout map for it.
    """
    source = spec.source
    family = backbone_class(source.name) if isinstance(source, Preset) else family_of(source)
    return sharding.set_up(family, list(spec.mesh), spec.where, devices, spec.layout)


def build_model(spec: ModelSpec, distribution: sharding.Sharded) -> keras.Model:
    """Return the model of a run, its trainable variables set, with the preset's weights or weights drawn by the seed.

    Raises UserError if a variable is not sharded as the layout map says.
    """
    keras.utils.set_random_seed(spec.seed)
    source = spec.source
    model = load(source.name, spec) if isinstance(source, Preset) else construct(source, policy_of(spec))
    if isinstance(source, MaskedArchitecture):
        MODULES[source.name].draw_weights(model, source.sizes["initializer_range"], spec.seed)
    elif isinstance(source, CausalArchitecture):
        draw_causal_weights(model.backbone, spec.seed)
    prepare(model, spec, distribution)
    if spec.only_lora:
        draw_adapter(model, spec.seed)
    sharding.check_shardings(model.variables, distribution)
    return model


def load(preset: str, spec: ModelSpec) -> keras.Model:
    """Return the model of a preset folder in the dtypes of its run."""
    policy = policy_of(spec)
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return load_int8(preset, policy)
    return load_preset(preset, policy)


def build_abstract_model(
    spec: ModelSpec, distribution: sharding.Sharded, finish: Callable[[keras.Model], keras.Model] = lambda model: model
) -> keras.Model:
    """Return the model of `build_model` with shapes, dtypes and shardings but no values, which take no memory.

    spec     of a model that is built, not loaded from a preset
    finish   returns another model made from it, such as one with a classification head
    """
    keras.utils.set_random_seed(spec.seed)
    # Variables that are made inside this scope have no values.
    with keras.StatelessScope(initialize_variables=False):
        model = construct(spec.architecture, policy_of(spec))
        prepare(model, spec, distribution)
        model = finish(model)
        for variable in model.variables:  # as Keras does it when a variable gets its value
            set_layout(variable, distribution.get_variable_layout(variable))
    sharding.check_overrides(model.variables, distribution)
    return model


def prepare(model: keras.Model, spec: ModelSpec, distribution: sharding.Sharded) -> None:
    """Set the trainable variables, dropout, document masking and attention kernel of a model.

    Raises UserError for a family that cannot separate documents, if the run needs it.
    """
    prepare_tuning(model, spec)
    draw_masks_once(model)
    name = attention_of(model, distribution, spec.determinism).implementation
    kernel = None if name == "plain" else Kernel(name, spec.segments)
    if spec.segments:
        separate_documents(model, spec.where)
    if kernel:
        fuse(model, kernel)


def family_of(architecture: MaskedArchitecture | CausalArchitecture) -> type:
    """Return the backbone class of an architecture."""
    if isinstance(architecture, MaskedArchitecture):
        return MODULES[architecture.name].backbone_class()
    return getattr(keras_hub.models, architecture.family)


def construct(
    architecture: MaskedArchitecture | CausalArchitecture, policy: keras.dtype_policies.DTypePolicy | None = None
) -> keras.Model:
    """Return the model of an architecture with Keras's initial weights; a causal model has no preprocessor.

    policy  dtype policy of a causal model; the run's by default

    Raises UserError for a class without a causal language model in keras-hub.
    """
    if isinstance(architecture, MaskedArchitecture):
        build = MODULES[architecture.name].build
        return build(architecture.sizes, architecture.vocabulary_size, architecture.pad_id)
    family = family_of(architecture)
    arguments = {"vocabulary_size": architecture.vocabulary_size, **architecture.sizes}
    backbone = family(**arguments, **({"dtype": policy} if policy else {}))
    model = task_of(family)(backbone=backbone, preprocessor=None, compile=False)  # its optimizer has values
    return without_activations(plain_attention(model))


def as_built(family: type, arguments: Mapping[str, Any]) -> CausalArchitecture:
    """Return the architecture of a backbone class with the arguments in its config.json."""
    sizes = {key: value for key, value in arguments.items() if key not in ("name", "trainable", "dtype")}
    return CausalArchitecture(family.__name__, sizes, sizes.pop("vocabulary_size"))


def open_trained(recipe: Mapping[str, Any], weights: str, vocabulary: Path, size: int) -> keras.Model:
    """Return a base model that this workflow has trained, with its preprocessor.

    recipe   of its training: model, sequence_length
    weights  safetensors file of its variables; vocabulary, size  its vocabulary, see `make_preprocessor`
    """
    model = construct(CausalArchitecture(*constructor(recipe["model"]), size))
    assign(model.backbone.variables, load_arrays(weights), weights)
    model.preprocessor = make_preprocessor(recipe["model"]["architecture"], vocabulary, recipe["sequence_length"])
    return model
