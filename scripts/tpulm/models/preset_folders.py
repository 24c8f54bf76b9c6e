"""Causal models in Keras preset folders: read and written, with their preprocessors."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import keras
import keras_hub

from tpulm.compat.keras import skip_initialization
from tpulm.compat.keras_hub import plain_attention
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.specs.causal_families import ENCODERS
from tpulm.specs.causal_vocabularies import VOCABULARY_KINDS
from tpulm.tokenization.byte_level import cut_words, vocabulary_and_merges

EPOCH = "1970-01-01@00:00:00"  # replaces the date of saving in the metadata of presets
# Preprocessors that also take images, and need TensorFlow; and those that do the same for text.
FOR_TEXT = {
    "Gemma3CausalLMPreprocessor": "GemmaCausalLMPreprocessor",
    "Gemma4CausalLMPreprocessor": "GemmaCausalLMPreprocessor",
    "Qwen3_5CausalLMPreprocessor": "Qwen3CausalLMPreprocessor",
}


def make_preprocessor(architecture: str, vocabulary: Path, sequence_length: int) -> keras.layers.Layer:
    """Return the preprocessor of an architecture of `tpulm.specs.causal_families`.

    vocabulary       serialized SentencePiece model, or a .json as tpulm.tokenization.training makes it
    sequence_length  its default length, tokens
    """
    kind = VOCABULARY_KINDS[architecture]
    if kind.byte_level and vocabulary.suffix == ".json":
        name = kind.byte_level.tokenizer
        ids, merges = vocabulary_and_merges(vocabulary)
        special = {"unsplittable_tokens": kind.byte_level.special}  # Llama 3's own are a set, in any order
        tokenizer = cut_words(getattr(keras_hub.models, name)(vocabulary=ids, merges=merges, **special))
    else:
        name = kind.tokenizer
        tokenizer = getattr(keras_hub.models, name)(proto=vocabulary.read_bytes())
    # The tokenizer's own family: Gemma 3's preprocessor, which also takes images, needs TensorFlow.
    preprocessor = getattr(keras_hub.models, name.replace("Tokenizer", "CausalLMPreprocessor"))
    return preprocessor(tokenizer, sequence_length=sequence_length)


def registered_backbone(preset: str | Path) -> type:
    """Return the backbone class of a preset folder. Raises UserError for one that keras-hub does not have."""
    name = read_json(Path(preset) / "config.json").get("registered_name", "")
    family = keras.saving.get_registered_object(name)
    if family is None:
        raise UserError(f"{preset}/config.json names the model {name or '(none)'}, which keras-hub does not have.")
    return family


def task_of(family: type) -> type[keras_hub.models.CausalLM]:
    """Return keras-hub's causal language model class for a backbone class. Raises UserError if there is none."""
    tasks = [keras_hub.models.CausalLM]
    for task in tasks:  # grows in the loop: Llama 3's is a subclass of Llama's
        if task.backbone_cls is family and task.preprocessor_cls:  # a Gemma 4 that drafts for another one reads no text
            return task
        tasks += task.__subclasses__()
    raise UserError(f"keras-hub has no causal language model for {family.__name__}.")


def reads_more(preset: str | Path) -> bool:
    """Return whether the model of a preset folder reads images or sound, too."""
    config = read_json(Path(preset) / "config.json").get("config", {})
    return any(config.get(name) for name in ENCODERS)


def load_text(preset: str | Path) -> keras.Model:
    """Return the model of a preset folder, as `load_on_host` does, without what reads images and sound."""
    whole = load_on_host(preset)
    config = whole.backbone.get_config()
    none = {name: None for name in ENCODERS if name in config}
    with jax.default_device(jax.local_devices(backend="cpu")[0]), skip_initialization():
        backbone = type(whole.backbone).from_config(config | none)
        values = {variable.path: variable for variable in whole.backbone.variables}
        for variable in backbone.variables:
            variable.assign(values[variable.path])
        model = type(whole)(backbone=backbone, preprocessor=whole.preprocessor)
    return plain_attention(model)


@skip_initialization()
def load_preset(preset: str | Path, dtype: keras.dtype_policies.DTypePolicy | None = None) -> keras.Model:
    """Return the causal language model of a preset folder, with its preprocessor; in the run's dtype by default."""
    arguments: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    file = Path(preset) / "preprocessor.json"
    preprocessor: dict[str, Any] = read_json(file) if file.is_file() else {"class_name": None}
    task = task_of(registered_backbone(preset))
    if preprocessor["class_name"] not in FOR_TEXT:
        model = task.from_preset(str(preset), **arguments)
        if model.preprocessor is not None:
            cut_words(model.preprocessor.tokenizer)
        return plain_attention(model)
    model = task.from_preset(str(preset), preprocessor=None, **arguments)
    tokenizer = cut_words(keras_hub.tokenizers.Tokenizer.from_preset(str(preset)))
    length = preprocessor["config"]["sequence_length"]
    model.preprocessor = text_preprocessor(preprocessor["class_name"], tokenizer, length)
    return plain_attention(model)


def text_preprocessor(name: str, tokenizer: keras.layers.Layer, length: int) -> keras.layers.Layer:
    """Return the preprocessor of FOR_TEXT for keras-hub's class `name`; length  its default length, tokens."""
    return getattr(keras_hub.models, FOR_TEXT[name])(tokenizer, sequence_length=length)


def load_on_host(preset: str | Path) -> keras.Model:
    """Return the model of a preset folder in host memory, its weights in the dtype in which they are stored."""
    stored = read_json(Path(preset) / "config.json")["config"].get("dtype", "float32")
    dtype = keras.DTypePolicy(keras.dtype_policies.get(stored).variable_dtype)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return load_preset(preset, dtype)


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
        metadata = partial / "metadata.json"
        if metadata.is_file():
            write_json(metadata, read_json(metadata) | {"date_saved": EPOCH})
