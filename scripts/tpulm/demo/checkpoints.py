"""Models as they were at a checkpoint, opened on one device by what the checkpoint says of its run.

Needs tpulm.training.runtime.start first.
"""

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

# For any run. A prompt is one document: there is nothing to keep apart.
HERE = {"mesh": [1, 1], "layout": {}, "precision": "float32", "determinism": "bytes", "packing": "concat"}


def recipe_and_weights(checkpoint: Path) -> tuple[dict, str]:
    """Return the recipe of a checkpoint's segment, and its trained variables; after an early stop, the best ones."""
    state = read_json(checkpoint / CHECKPOINT_FILES["state"])
    return state["recipe"] | HERE, str(
        checkpoint / CHECKPOINT_FILES["weights" if state["stopped_at"] is None else "best"]
    )


def open_masked(checkpoint: Path, results: Path) -> tuple[keras.Model, Sharded]:
    """Return a masked model, of an architecture that JAX opens, and how it is sharded."""
    recipe, weights = recipe_and_weights(checkpoint)
    manifest, arrays = read_json(results / "tfrecords" / MANIFEST), load_arrays(weights)
    pad, on_tensorflow = manifest["special_ids"]["pad"], any(variable.startswith("tf_") for variable in arrays)
    if on_tensorflow:  # with the sizes that transformers has by default
        recipe |= {"model": config_recipe(exported_model(recipe["model"], "tensorflow"))}
    recipe |= {"vocabulary": {"size": manifest["vocab_size"], "pad": pad}}
    model, distribution = open_model(ModelSpec.of("mlm", str(checkpoint), recipe), masked_models)
    if on_tensorflow:
        from tpulm.models.masked_folders import pytorch_arrays  # imports transformers

        arrays = from_transformers(pytorch_arrays(arrays), model.trainable_variables, pad)
    assign(model.trainable_variables, arrays, weights)
    return model, distribution


def open_causal(checkpoint: Path, vocabulary: Path) -> keras_hub.models.CausalLM:
    """Return a causal model.

    vocabulary  that of a base model's run, or the preset folder that a finetuning run starts from
    """
    recipe, weights = recipe_and_weights(checkpoint)
    if vocabulary.is_dir():
        spec = ModelSpec.of("finetune", str(checkpoint), recipe | {"base": {"preset": vocabulary}})
        return open_model(spec, causal, weights)[0]
    return causal.open_trained(recipe, weights, vocabulary, TextTokenizer(convert(vocabulary)).size)
