"""Open the model of a checkpoint on one device, with the recipe in the checkpoint."""

from pathlib import Path

import keras
import keras_hub

from tpulm.core.arrays import load_arrays
from tpulm.core.files import read_json
from tpulm.models import causal, masked_models
from tpulm.models.building import open_model
from tpulm.models.sharding import Sharded
from tpulm.models.variables import assign
from tpulm.models.weight_names import from_transformers
from tpulm.specs.artifacts import CHECKPOINT_FILES, MANIFEST
from tpulm.specs.masked_sizes import config_recipe, exported_model
from tpulm.specs.training_step import ModelSpec
from tpulm.tokenization.conversion import convert
from tpulm.tokenization.tokenizer import TextTokenizer

# Settings for any run on one device. A prompt is one document, which needs no document masking.
HERE = {"mesh": [1, 1], "layout": {}, "precision": "float32", "determinism": "bytes", "packing": "concat"}


def recipe_and_weights(checkpoint: Path) -> tuple[dict, str]:
    """Return the recipe of a checkpoint for one device, and the path of its weights; after early stopping, the best."""
    state = read_json(checkpoint / CHECKPOINT_FILES["state"])
    weights = checkpoint / CHECKPOINT_FILES["weights" if state["stopped_at"] is None else "best"]
    return state["recipe"] | HERE, str(weights)


def open_masked(checkpoint: Path, results: Path) -> tuple[keras.Model, Sharded]:
    """Return the masked model of a checkpoint, of an architecture that JAX opens, and its sharding."""
    recipe, weights = recipe_and_weights(checkpoint)
    manifest, arrays = read_json(results / "tfrecords" / MANIFEST), load_arrays(weights)
    pad, on_tensorflow = manifest["special_ids"]["pad"], any(variable.startswith("tf_") for variable in arrays)
    if on_tensorflow:  # add the default sizes of transformers
        recipe |= {"model": config_recipe(exported_model(recipe["model"], "tensorflow"))}
    recipe |= {"vocabulary": {"size": manifest["vocab_size"], "pad": pad}}
    model, distribution = open_model(ModelSpec.of("mlm", str(checkpoint), recipe), masked_models)
    if on_tensorflow:
        from tpulm.models.masked_folders import pytorch_arrays  # imports transformers

        arrays = from_transformers(pytorch_arrays(arrays), model.trainable_variables, pad)
    assign(model.trainable_variables, arrays, weights)
    return model, distribution


def open_causal(checkpoint: Path, vocabulary: Path) -> keras_hub.models.CausalLM:
    """Return the causal model of a checkpoint.

    vocabulary  file of a base model's run, or the preset folder that a finetuning run starts from
    """
    recipe, weights = recipe_and_weights(checkpoint)
    if vocabulary.is_dir():
        spec = ModelSpec.of("finetune", str(checkpoint), recipe | {"base": {"preset": vocabulary}})
        return open_model(spec, causal, weights)[0]
    return causal.open_trained(recipe, weights, vocabulary, TextTokenizer(convert(vocabulary)).size)
