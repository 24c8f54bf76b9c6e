"""The masked models that run on JAX, by architecture, and those in Hugging Face folders that runs exported."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from tpulm.config.masked_sizes import KINDS
from tpulm.core.arrays import load_arrays
from tpulm.core.files import read_json
from tpulm.models import modernbert, roberta

# Each has PYTORCH_CLASS, backbone_class, build, draw_weights, to_pytorch and from_pytorch.
MODULES: dict[str, ModuleType] = {"roberta": roberta, "modernbert": modernbert}


def folder_recipe(folder: Path) -> dict:
    """Return what a run's recipe says of the model in a Hugging Face folder that a run on JAX exported.

    model       architecture and sizes, as in the config; vocabulary   its size and pad id
    precision   float32, of the weights there
    """
    config = read_json(folder / "config.json")
    architecture = config["model_type"]
    model = {key: config[key] for key in KINDS[architecture].sizes if key in config}
    vocabulary = {"size": config["vocab_size"], "pad": config["pad_token_id"]}
    return {"model": {"architecture": architecture} | model, "vocabulary": vocabulary, "precision": "float32"}


def folder_weights(folder: Path, architecture: str, sizes: Mapping) -> dict[str, np.ndarray]:
    """Return the variables of our model, by path, from a Hugging Face folder with a model of these sizes."""
    arrays = load_arrays(folder / "model.safetensors")
    pad_id = read_json(folder / "config.json")["pad_token_id"]
    counts = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    return MODULES[architecture].from_pytorch(arrays, *counts, pad_id)
