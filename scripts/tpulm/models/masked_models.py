"""The masked models that run on JAX, a `ModelModule` of `tpulm.models.building`, and those in Hugging Face folders."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.models import modernbert, roberta
from tpulm.models.variables import assign
from tpulm.models.weight_names import from_transformers
from tpulm.records.masked_batches import masked_lm
from tpulm.specs.masked_architectures import check_vocabulary, find_architecture
from tpulm.specs.masked_sizes import config_recipe
from tpulm.specs.training_step import ModelSpec

if TYPE_CHECKING:
    import keras

# Each module has PYTORCH_CLASS, backbone_class, build and draw_weights.
MODULES: dict[str, ModuleType] = {"roberta": roberta, "modernbert": modernbert}
objective = masked_lm


def backbone_of(spec: ModelSpec) -> type:
    """Return the backbone class of a model."""
    return MODULES[spec.masked.name].backbone_class()


def build(spec: ModelSpec) -> "keras.Model":
    """Return a model with weights drawn by its seed."""
    model, source = build_abstract(spec), spec.masked
    MODULES[source.name].draw_weights(model, source.sizes["initializer_range"], spec.seed)
    return model


def build_abstract(spec: ModelSpec) -> "keras.Model":
    """Return a model with Keras's initial weights."""
    source = spec.masked
    return MODULES[source.name].build(source.sizes, source.vocabulary_size, source.pad_id)


def load_folder(model: "keras.Model", weights: str | Path) -> None:
    """Load the model.safetensors of a Hugging Face folder into a model. Raises UserError if the sizes differ."""
    folder = Path(weights).parent
    assign(model.trainable_variables, folder_weights(folder, model.trainable_variables), str(folder))


def folder_recipe(folder: Path) -> dict:
    """Return the recipe of the model in a Hugging Face folder.

    model  architecture and sizes, as in the config; vocabulary  size, pad id; precision  float32
    """
    config = read_json(folder / "config.json")
    vocabulary = {"size": config["vocab_size"], "pad": config["pad_token_id"]}
    return {"model": config_recipe(config), "vocabulary": vocabulary, "precision": "float32"}


def init_recipe(path: str, manifest: Mapping, where: str) -> dict:
    """Return the recipe of the model that a run starts from: model and vocabulary.

    path   its config.json; manifest  of the TFRecords

    Raises UserError, naming `where` in the user's config, if the model cannot read the records.
    """
    recipe = folder_recipe(Path(path).parent)
    model, vocabulary = recipe["model"], recipe["vocabulary"]
    check_vocabulary(vocabulary["size"], manifest, where)
    unused = vocabulary["pad"] + 1 if find_architecture(model["architecture"], where, "jax").after_pad else 0
    positions = model.get("max_position_embeddings", 0) - unused
    if positions < manifest["sequence_length"]:
        raise UserError(
            f"{where}.init has {positions} positions; allowed: at least tfrecords.sequence_length, "
            f"{manifest['sequence_length']}."
        )
    return {"model": model, "vocabulary": vocabulary}


def folder_weights(folder: Path, variables: "Iterable[keras.Variable]") -> dict[str, np.ndarray]:
    """Return the weights of a folder by the paths of variables. Raises UserError if they do not fit its config."""
    arrays = load_arrays(folder / "model.safetensors")
    try:
        return from_transformers(arrays, variables, read_json(folder / "config.json")["pad_token_id"])
    except (ValueError, IndexError) as error:
        raise UserError(f"{folder}: model.safetensors does not fit the sizes in config.json ({error}).") from None
