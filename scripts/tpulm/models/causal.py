"""Causal language models of keras-hub: build, load, prepare for finetuning, save.

Needs tpulm.training.runtime.start first.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import keras_hub
import numpy as np

from tpulm.config.training_step import ModelSpec
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.core.random_streams import generator

EPOCH = "1970-01-01@00:00:00"  # in place of the clock, in the metadata of presets


def build_gemma(sizes: Mapping, vocabulary_size: int) -> keras.Model:
    """Return a GemmaCausalLM without a preprocessor and any weights; `sizes` are arguments of GemmaBackbone."""
    return build_causal(keras_hub.models.GemmaBackbone, {"vocabulary_size": vocabulary_size, **sizes})


def build_causal(family: type, arguments: Mapping) -> keras.Model:
    """Return the causal language model of a backbone's class, without a preprocessor and any weights.

    Raises UserError for a class that keras-hub has no causal language model of.
    """
    for task in keras_hub.models.CausalLM.__subclasses__():
        if task.backbone_cls is family:
            return plain_attention(task(backbone=family(**arguments), preprocessor=None))
    raise UserError(f"keras-hub has no causal language model for {family.__name__}.")


def plain_attention(model: keras.Model) -> keras.Model:
    """Let a model's attention be the one that a plan compiles, whatever the machine. Returns the model.

    keras-hub's Gemmas choose a fused operation where they see a TPU, which a planning machine is not; and with the
    mask of a compiled step, Keras 3.15 forgets the soft cap of Gemma 2 in it.
    """
    for layer in model._flatten_layers():
        if hasattr(layer, "_use_fused_attention_op"):
            layer._use_fused_attention_op = lambda: False
    return model


def draw_weights(backbone: keras.Model, seed: int) -> None:
    """Draw embeddings and kernels of a Gemma anew: normal, variance 1/inputs, 1/(2 layers) of that into the residual.

    keras-hub makes query, key, value and output from one initializer: the same numbers in all four. It draws
    embeddings with variance 1/vocabulary; with 1/hidden, the model's input has variance 1, and pieces
    that the text lacks stay far enough apart to be told from each other by tuning.
    The damping of the residual branches is that of GPT-2 (Radford et al. 2019).
    """
    hidden, width = backbone.hidden_dim, backbone.num_query_heads * backbone.head_dim
    inputs = {"attention_output": width, "ffw_linear": backbone.intermediate_dim // 2}
    for index, variable in enumerate(backbone.trainable_variables):
        layer, kind = variable.path.split("/")[-2:]
        if kind in ("kernel", "embeddings"):
            deviation = inputs.get(layer, hidden) ** -0.5
            if layer in inputs:
                deviation *= (2 * backbone.num_layers) ** -0.5
            drawn = generator(seed, index).standard_normal(variable.shape, np.float32) * np.float32(deviation)
            variable.assign(drawn)


def backbone_class(preset: str | Path) -> type:
    """Return the class of a preset folder's backbone. Raises UserError for one that is no language model."""
    name = read_json(Path(preset) / "config.json").get("registered_name", "")
    found = keras.saving.get_registered_object(name)
    if found is None:
        raise UserError(f"{preset}/config.json names the model {name or '(none)'}, which keras-hub does not know.")
    return found


def load_preset(preset: str | Path) -> keras.Model:
    """Return the causal language model of a preset folder, with its preprocessor."""
    return plain_attention(keras_hub.models.CausalLM.from_preset(str(preset)))


def prepare_tuning(model: keras.Model, spec: ModelSpec) -> None:
    """Make the variables that a run tunes the trainable ones: with method lora those of LoRA only, else all.

    LoRA's matrices are float32; A is drawn by the run's seed, B is zero.
    """
    if spec.only_lora:
        keras.utils.set_random_seed(spec.seed)
        model.backbone.enable_lora(spec.rank)
        for variable in model.trainable_variables:  # biases of the projections, which enable_lora leaves to be trained
            variable.trainable = variable.path.endswith(("lora_kernel_a", "lora_kernel_b"))


def make_optimizer(recipe: Mapping) -> keras.Optimizer:
    """Return AdamW (Loshchilov and Hutter 2019) without decay on biases and on the scales of norms, not yet built.

    The learning rate is given at each step, so the one here is never used.
    """
    types = keras.config.floatx()
    keras.config.set_floatx("float32")  # the type of the learning rate, which bfloat16 would round
    optimizer = keras.optimizers.AdamW(
        learning_rate=0.0,
        weight_decay=recipe["weight_decay"],
        beta_1=recipe["beta_1"],
        beta_2=recipe["beta_2"],
        epsilon=recipe["epsilon"],
        global_clipnorm=recipe["global_clipnorm"],
        name="adamw",
    )
    keras.config.set_floatx(types)
    optimizer.exclude_from_weight_decay(var_names=["bias", "scale", "gamma", "beta"])
    return optimizer


def assign(variables: list, arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Give variables the values that a file named `source` holds for them.

    Raises UserError when names or shapes do not match.
    """
    for variable in variables:
        array, shape = arrays.get(variable.path), tuple(variable.shape)
        if array is not None and shape == () and array.size == 1:
            array = array.reshape(())  # tpulm.training.checkpoint saves a scalar with one dimension
        if array is None or array.shape != shape:
            found = "nothing" if array is None else f"shape {array.shape}"
            raise UserError(
                f"{source} holds {found} for the variable {variable.path} of shape {shape}; it belongs to another "
                "model; delete it and run again."
            )
        variable.assign(array)


def count(variables: list) -> int:
    """Return the number of parameters in variables."""
    return int(sum(np.prod(variable.shape) for variable in variables))


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` and move it there when the block ends without an error."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save_preset(model: keras.Model, path: str | Path) -> None:
    """Write a model with its preprocessor as a Keras preset folder: the same bytes for the same model."""
    with atomic_folder(path) as partial:
        model.save_to_preset(str(partial))
        normalise_metadata(partial)


def normalise_metadata(preset: Path) -> None:
    """Take the clock out of a preset's metadata."""
    path = preset / "metadata.json"
    if path.is_file():
        write_json(path, read_json(path) | {"date_saved": EPOCH})
