"""Build the model of a run on its mesh: with values to run it, without values (abstract) for a plan.

Needs tpulm.training.runtime.start first.
"""

from collections.abc import Callable

import keras
import keras_hub

from tpulm.compat.keras import set_layout
from tpulm.core.arrays import load_arrays
from tpulm.models import sharding
from tpulm.models.attention import Kernel, attention_of, fuse
from tpulm.models.causal import (
    assign,
    backbone_class,
    build_causal,
    draw_adapter,
    draw_causal_weights,
    load_int8,
    load_preset,
    policy_of,
    prepare_tuning,
    without_activations,
)
from tpulm.models.document_masking import separate_documents
from tpulm.models.dropout import draw_masks_once
from tpulm.models.masked_models import MODULES
from tpulm.specs.training_step import CausalArchitecture, MaskedArchitecture, ModelSpec, Preset


def open_model(spec: ModelSpec, best: str | None = None) -> tuple[keras.Model, sharding.Sharded]:
    """Return the model of a run and how it is sharded over JAX's devices, see `distribute` and `build_model`.

    best   safetensors file of the trainable variables of a checkpoint, to be loaded over the model's own

    Raises UserError as they do, and when `best` belongs to another model.
    """
    distribution = distribute(spec)
    model = build_model(spec, distribution)
    if best:
        assign(model.trainable_variables, load_arrays(best), best)
    return model, distribution


def distribute(spec: ModelSpec, devices: list | None = None) -> sharding.Sharded:
    """Make devices the mesh of a run, and let every variable made from now on follow its layout map.

    devices   JAX's, all that there are by default; those of a topology description will do, too

    Raises UserError when the mesh does not fit the devices, or the model has no layout map for it.
    """
    source = spec.source
    family = backbone_class(source.name) if isinstance(source, Preset) else family_of(source)
    return sharding.set_up(family, list(spec.mesh), spec.where, devices, spec.layout)


def build_model(spec: ModelSpec, distribution: sharding.Sharded) -> keras.Model:
    """Return the model of a run, its trainable variables settled; the weights are the preset's, or drawn by its seed.

    Raises UserError when a variable is not sharded as the layout map says.
    """
    keras.utils.set_random_seed(spec.seed)
    source = spec.source
    model = load(source.name, spec) if isinstance(source, Preset) else construct(source, spec)
    if isinstance(source, MaskedArchitecture):
        MODULES[source.name].draw_weights(model, source.sizes["initializer_range"], spec.seed)
    elif isinstance(source, CausalArchitecture):
        draw_causal_weights(model.backbone, spec.seed)
    prepare(model, spec, distribution)
    if spec.only_lora:
        draw_adapter(model, spec.seed)
    sharding.check(model.variables, distribution)
    return model


def load(preset: str, spec: ModelSpec) -> keras.Model:
    """Return the model of a preset folder, of the types that its run gives it."""
    policy = policy_of(spec)
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return load_int8(preset, policy)
    return load_preset(preset, policy)


def build_abstract_model(
    spec: ModelSpec, distribution: sharding.Sharded, finish: Callable[[keras.Model], keras.Model] = lambda model: model
) -> keras.Model:
    """Return the same model with shapes, dtypes and shardings, but no values: one of any size takes no memory.

    spec     of a model that is built, not loaded from a preset
    finish   makes another model of it

    Variables that are made inside `StatelessScope(initialize_variables=False)` have no value.
    """
    keras.utils.set_random_seed(spec.seed)
    with keras.StatelessScope(initialize_variables=False):
        model = construct(spec.architecture, spec)
        prepare(model, spec, distribution)
        model = finish(model)
        for variable in model.variables:  # as Keras does it when a variable gets its value
            set_layout(variable, distribution.get_variable_layout(variable))
    sharding.check_overrides(model.variables, distribution)
    return model


def prepare(model: keras.Model, spec: ModelSpec, distribution: sharding.Sharded) -> None:
    """Settle what a model trains, how it drops, whether it tells documents of a record apart, and by which attention.

    Raises UserError for a family whose documents cannot be told apart.
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
    """Return the class of the backbone that is to be built."""
    if isinstance(architecture, MaskedArchitecture):
        return MODULES[architecture.name].backbone_class()
    return getattr(keras_hub.models, architecture.family)


def construct(architecture: MaskedArchitecture | CausalArchitecture, spec: ModelSpec) -> keras.Model:
    """Return the model of an architecture, with whatever weights Keras gives it, of the types that its run gives it."""
    if isinstance(architecture, MaskedArchitecture):
        build = MODULES[architecture.name].build
        return build(architecture.sizes, architecture.vocabulary_size, architecture.pad_id)
    return without_activations(construct_causal(architecture, policy_of(spec)))


def construct_causal(
    architecture: CausalArchitecture, policy: keras.dtype_policies.DTypePolicy | None = None
) -> keras.Model:
    """Return the causal model of an architecture, without a preprocessor; of the run's dtype policy by default."""
    arguments = {"vocabulary_size": architecture.vocabulary_size, **architecture.sizes}
    return build_causal(family_of(architecture), arguments if policy is None else arguments | {"dtype": policy})
