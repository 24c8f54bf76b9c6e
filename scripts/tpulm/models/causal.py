"""Causal language models of keras-hub: build, load, prepare for finetuning, save.

Needs tpulm.training.runtime.start first.
"""

import contextlib
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import keras
import keras_hub
import numpy as np

from tpulm.compat.keras import flat_layers, kernel_alone, replace_call, round_weights_only, skip_initialization
from tpulm.compat.keras_hub import plain_attention
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.core.random_streams import generator
from tpulm.specs.causal_families import FAMILIES, TARGETS, layers_of
from tpulm.specs.training_step import ModelSpec
from tpulm.tokenization.byte_level import cut_words, vocabulary_and_merges

EPOCH = "1970-01-01@00:00:00"  # replaces the date of saving in the metadata of presets


def task_of(family: type) -> type:
    """Return keras-hub's causal language model class for a backbone class. Raises UserError if there is none."""
    tasks = [keras_hub.models.CausalLM]
    for task in tasks:  # grows in the loop: Llama 3's is a subclass of Llama's
        if task.backbone_cls is family:
            return task
        tasks += task.__subclasses__()
    raise UserError(f"keras-hub has no causal language model for {family.__name__}.")


@skip_initialization()
def rebuilt(model: keras.Model, dtype: keras.dtype_policies.DTypePolicy) -> keras.Model:
    """Return a model of the same sizes and preprocessor in another dtype, its weights not initialized."""
    config = model.backbone.get_config() | {"dtype": dtype}
    backbone = type(model.backbone).from_config(config)
    return plain_attention(type(model)(backbone=backbone, preprocessor=model.preprocessor, compile=False))


def make_preprocessor(architecture: str, vocabulary: Path, sequence_length: int) -> keras.layers.Layer:
    """Return the preprocessor of an architecture of `tpulm.specs.causal_families`.

    vocabulary       serialized SentencePiece model, or a .json as tpulm.tokenization.training makes it
    sequence_length  its default length, tokens
    """
    family = FAMILIES[architecture]
    if family.byte_level and vocabulary.suffix == ".json":
        name = family.byte_level.tokenizer
        ids, merges = vocabulary_and_merges(vocabulary)
        special = {"unsplittable_tokens": family.byte_level.special}  # Llama 3's own are a set, in any order
        tokenizer = cut_words(getattr(keras_hub.models, name)(vocabulary=ids, merges=merges, **special))
    else:
        name = family.tokenizer
        tokenizer = getattr(keras_hub.models, name)(proto=vocabulary.read_bytes())
    # The tokenizer's own family: Gemma 3's preprocessor, which also takes images, needs TensorFlow.
    preprocessor = getattr(keras_hub.models, name.replace("Tokenizer", "CausalLMPreprocessor"))
    return preprocessor(tokenizer, sequence_length=sequence_length)


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


def backbone_class(preset: str | Path) -> type:
    """Return the backbone class of a preset folder. Raises UserError for one that keras-hub does not have."""
    name = read_json(Path(preset) / "config.json").get("registered_name", "")
    family = keras.saving.get_registered_object(name)
    if family is None:
        raise UserError(f"{preset}/config.json names the model {name or '(none)'}, which keras-hub does not have.")
    return family


@skip_initialization()
def load_preset(preset: str | Path, dtype: keras.dtype_policies.DTypePolicy | None = None) -> keras.Model:
    """Return the causal language model of a preset folder, with its preprocessor; in the run's dtype by default."""
    arguments: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    file = Path(preset) / "preprocessor.json"
    preprocessor: dict[str, Any] = read_json(file) if file.is_file() else {"class_name": None}
    if preprocessor["class_name"] != "Gemma3CausalLMPreprocessor":
        model = keras_hub.models.CausalLM.from_preset(str(preset), **arguments)
        if model.preprocessor is not None:
            cut_words(model.preprocessor.tokenizer)
        return plain_attention(model)
    # Gemma 3's, which also takes images, needs TensorFlow; for text it does what Gemma's does.
    model = keras_hub.models.CausalLM.from_preset(str(preset), preprocessor=None, **arguments)
    tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(str(preset))
    length = preprocessor["config"]["sequence_length"]
    model.preprocessor = keras_hub.models.GemmaCausalLMPreprocessor(tokenizer, sequence_length=length)
    return plain_attention(model)


def load_on_host(preset: str | Path) -> keras.Model:
    """Return the model of a preset folder in host memory, its weights in the dtype in which they are stored."""
    stored = read_json(Path(preset) / "config.json")["config"].get("dtype", "float32")
    dtype = keras.DTypePolicy(keras.dtype_policies.get(stored).variable_dtype)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return load_preset(preset, dtype)


def prepare_tuning(model: keras.Model, spec: ModelSpec) -> None:
    """Set the trainable variables of a run: those of LoRA with method lora, else all.

    LoRA's matrices are float32; `draw_adapter` draws A, and B is zero. They add alpha / rank times A @ B.
    Raises UserError for a target without a layer in the model.
    """
    if spec.only_lora:
        adapt(model, spec)
        for variable in model.trainable_variables:  # biases of the projections, which enable_lora leaves to be trained
            variable.trainable = variable.path.endswith(("lora_kernel_a", "lora_kernel_b"))


def draw_adapter(model: keras.Model, seed: int) -> None:
    """Draw LoRA's matrices A by `seed`, uniformly within the limits of He et al. (2015), as Keras does."""
    adapters = (variable for variable in model.trainable_variables if variable.path.endswith("lora_kernel_a"))
    for index, variable in enumerate(adapters):
        limit = np.float32((6 / math.prod(variable.shape[:-1])) ** 0.5)
        variable.assign(limit * (2 * generator("adapter", seed, index).random(variable.shape, np.float32) - 1))


def adapt(model: keras.Model, spec: ModelSpec) -> None:
    """Enable LoRA on the layers of a run's targets. Raises UserError for a target without a layer in the model."""
    layers = flat_layers(model.backbone, include_self=False)
    for target in spec.targets:
        if not any(layer.name in TARGETS[target] and hasattr(layer, "enable_lora") for layer in layers):
            raise UserError(
                f"{spec.where}.targets names {target}, but {type(model.backbone).__name__} has no such layer that LoRA "
                "can adapt."
            )
    model.backbone.enable_lora(spec.rank, target_layer_names=layers_of(spec.targets))
    for layer in layers:
        if getattr(layer, "lora_enabled", False):
            layer.lora_alpha = spec.alpha  # Backbone.enable_lora has no such argument
            if layer.quantization_mode is None:  # Keras's layers of int8 do it so, too
                replace_call(layer, lambda _, layer=layer: partial(with_adapter, layer))  # type: ignore[misc]


def with_adapter(layer: keras.layers.Dense | keras.layers.EinsumDense, inputs: jax.Array, **_: object) -> jax.Array:
    """Return the outputs of a layer with LoRA, A and B applied to its inputs (Hu et al. 2021, equation 3).

    Keras adds A @ B to the kernel instead. In bfloat16 that rounds away what is small compared with a weight, and each
    step computes the gradient of the whole kernel.
    """
    first, second = (keras.ops.cast(part, layer.compute_dtype) for part in (layer.lora_kernel_a, layer.lora_kernel_b))
    if isinstance(layer, keras.layers.EinsumDense):
        product = partial(keras.ops.einsum, layer.equation)
    else:
        product = keras.ops.matmul
    added = keras.ops.matmul(product(inputs, first), second)
    outputs = product(inputs, kernel_alone(layer)) + layer.lora_alpha / layer.lora_rank * added
    if layer.bias is not None:
        outputs += layer.bias
    return outputs if layer.activation is None else layer.activation(outputs)


def assign(variables: list, arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Assign to variables the arrays of their paths. Raises UserError as `check_arrays` does."""
    check_arrays(variables, arrays, source)
    for variable in variables:
        variable.assign(arrays[variable.path].reshape(variable.shape))


def check_arrays(variables: list, arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Raise UserError, naming the file `source`, for a variable without an array of its path and shape."""
    for variable in variables:
        array, shape = arrays.get(variable.path), tuple(variable.shape)
        scalar = array is not None and shape == () and array.size == 1  # tpulm.training.checkpoint saves it as [1]
        if array is None or not (scalar or array.shape == shape):
            content = "nothing" if array is None else f"shape {array.shape}"
            raise UserError(
                f"{source} holds {content} for the variable {variable.path} of shape {shape}; it belongs to another "
                "model; delete it and run again."
            )


def count(variables: list) -> int:
    """Return the number of parameters in variables."""
    return int(sum(np.prod(variable.shape) for variable in variables))


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`, and move it to `path` when the block ends without an error.

    The previous folder is deleted only after that; a crash in between leaves it next to `path`.
    """
    path = Path(path)
    partial, before = (path.with_name(f".{path.name}.{word}") for word in ("partial", "before"))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if path.exists():
            shutil.rmtree(before, ignore_errors=True)
            os.replace(path, before)
        os.replace(partial, path)
        shutil.rmtree(before, ignore_errors=True)
    finally:
        if before.exists() and not path.exists():
            os.replace(before, path)
        shutil.rmtree(partial, ignore_errors=True)


def save_preset(model: keras.Model, path: str | Path) -> None:
    """Write a model with its preprocessor as a Keras preset folder: the same bytes for the same model."""
    with atomic_folder(path) as partial:
        model.save_to_preset(str(partial))
        normalise_metadata(partial)


def normalise_metadata(preset: Path) -> None:
    """Replace the date of saving in a preset's metadata."""
    path = preset / "metadata.json"
    if path.is_file():
        write_json(path, read_json(path) | {"date_saved": EPOCH})


# Layers whose weights are int8: all matrices.
QUANTISED = [*layers_of(tuple(TARGETS)), "token_embedding"]
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
    for target, source in zip(leaves(model.backbone), leaves(wide.backbone), strict=True):
        values = {variable.name: variable for variable in source.variables}
        for variable in target.variables:
            variable.assign(np.asarray(values[variable.name].value))
    return model


def leaves(model: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a model that have variables and no sublayers."""
    for layer in flat_layers(model, include_self=False):
        if layer.variables and len(flat_layers(layer)) == 1:
            yield layer
