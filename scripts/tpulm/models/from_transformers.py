"""Load causal models from folders of transformers into keras-hub.

keras-hub 0.32 reads the config and the tokenizers of publishers. Weights are read here: its converter of Mistral rounds
them to float16, and none notices a tensor that it does not load. Its Llama 3 takes another epsilon of normalization
than the config says, no scaling of positions from a folder of transformers 5, and only tokenizers with merges.
"""

import contextlib
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import keras_hub

from tpulm.compat.keras import skip_initialization
from tpulm.compat.keras_hub import plain_attention
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.models.preset_folders import FOR_TEXT, make_preprocessor, task_of, text_preprocessor
from tpulm.models.tensor_files import read_tensor, tensor_files
from tpulm.models.transformers_causal import transformers_name
from tpulm.models.weight_names import from_matrix
from tpulm.specs.byte_level import PUBLISHED, rules_of
from tpulm.specs.causal_families import FAMILIES, TUNED_ONLY

VOCABULARY = "tokenizer.model"
LENGTH = 1024  # tokens, the default of keras-hub's preprocessors
# Tensors that are computed, not trained.
BUFFERS = ("rotary_emb.inv_freq",)
# Of models that also read images or sound, the part that reads text is loaded: what its tensors begin with, those of
# the other parts, and keys and values of blocks of Gemma 4 that take those of another block.
TEXT_PART = re.compile(r"^(?:model\.)?language_model\.")
OTHER_PARTS = re.compile(r"^(?:model\.)?(?:visual|vision_tower|audio_tower|embed_vision|embed_audio|mtp)\.")
SHARED = re.compile(r"layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm)\.weight$")


@skip_initialization()
def load_transformers(folder: Path, where: str) -> keras.Model:
    """Return the causal model of a folder of transformers, with its preprocessor; in the run's dtype.

    where  the config key of the folder. Raises UserError, naming it, if the weights do not fit the config, or the rules
           of a byte-level tokenizer are not those of keras-hub's class.
    """
    config = read_json(folder / "config.json")
    with folder_with_config(folder, as_keras_hub_reads_it(config)) as path:
        epsilon = {"layer_norm_epsilon": config["rms_norm_eps"]} if "rms_norm_eps" in config else {}
        backbone = keras_hub.models.Backbone.from_preset(path, load_weights=False, **epsilon)
        task = task_of(type(backbone))
        preprocessor = preprocessor_of(task, backbone, path)
        rules = PUBLISHED.get(type(preprocessor.tokenizer).__name__)
        file = folder / "tokenizer.json"  # some folders of GPT-2 have its vocabulary alone
        if rules is not None and file.is_file() and rules_of(read_json(file)) is not rules:
            raise UserError(
                f"{where} is {folder}, whose tokenizer.json cuts text into words by a rule of its own, or "
                f"normalizes it otherwise; allowed for this architecture: the rules of {rules.name}, or SentencePiece."
            )
        if not assign_weights(backbone, folder, f"{where} is {folder}"):
            # The names of this family's tensors are unknown here, so keras-hub reads them.
            backbone = keras_hub.models.Backbone.from_preset(path, **epsilon)
        return plain_attention(task(backbone=backbone, preprocessor=preprocessor))


def as_keras_hub_reads_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of transformers 4 or 5 as keras-hub reads it; a Llama with biases becomes a Qwen 2."""
    converted = dict(config)
    if f"{config.get('model_type')}_text" in TUNED_ONLY and "text_config" in config:
        tied = config.get("tie_word_embeddings", config["text_config"].get("tie_word_embeddings", True))
        converted = config["text_config"] | {"tie_word_embeddings": tied, "architectures": config.get("architectures")}
    if converted.get("model_type") == "qwen3_5_text":
        converted["model_type"] = "qwen3_5"
    if converted.get("model_type") == "gemma4_text" and not converted.get("attention_k_eq_v"):
        converted["num_global_key_value_heads"] = None
    positions = config.get("rope_parameters") or {}
    if positions.get("rope_type", "default") != "default" and not config.get("rope_scaling"):
        converted["rope_scaling"] = positions
    if config.get("model_type") == "llama" and config.get("attention_bias"):
        # keras-hub's Llama has no biases. One with biases is a Qwen 2, if the bias of the output is 0.
        converted |= {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": None}
    return converted


@contextlib.contextmanager
def folder_with_config(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the path of a temporary folder with the files of `folder`, but `config` as config.json."""
    with tempfile.TemporaryDirectory() as path:
        for file in folder.iterdir():
            if file.name != "config.json":
                Path(path, file.name).symlink_to(file.resolve())
        Path(path, "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield path


def assign_weights(backbone: keras.Model, folder: Path, subject: str) -> bool:
    """Assign the weights of a folder to a backbone, unrounded; False and unchanged if some are missing.

    subject  begins the errors. Raises UserError for a tensor of another shape, or without a variable in the backbone
    """
    paths = [weight.path for weight in backbone.weights]
    post_norms = any(path.endswith("post_attention_norm/scale") for path in paths)
    files = {TEXT_PART.sub("model.", name): (path, name) for name, path in tensor_files(folder).items()}
    try:
        names = [transformers_name(path, post_norms) for path in paths]
    except UserError:
        return False
    if not set(names) <= set(files):
        return False
    tied = "lm_head.weight" not in names
    own = backbone.num_layers - getattr(backbone, "num_kv_shared_layers", 0)  # blocks with keys of their own
    for name in sorted(set(files) - set(names)):
        zero_bias = name.endswith("o_proj.bias") and not read_tensor(*files[name]).any()
        shared = SHARED.search(name)
        unread = OTHER_PARTS.match(name) or (shared and int(shared[1]) >= own)
        if not (name.endswith(BUFFERS) or zero_bias or unread or (tied and name == "lm_head.weight")):
            raise UserError(
                f"{subject}, whose weights have {name}, which a {type(backbone).__name__} does not have; allowed: "
                "Gemma, Llama, Mistral and Qwen models with the architecture of transformers."
            )
    for weight, name in zip(backbone.weights, names, strict=True):
        array = read_tensor(*files[name])
        if array.size != math.prod(weight.shape):
            raise UserError(
                f"{subject}, whose {name} has the shape {list(array.shape)}, which does not match its config."
            )
        weight.assign(from_matrix(weight.path, array, weight.shape))
    return True


def preprocessor_of(task: Any, backbone: keras.Model, folder: str) -> keras.layers.Layer:
    """Return the preprocessor of a folder, made from its SentencePiece vocabulary if it has one, else by keras-hub."""
    kind = type(backbone).__name__
    family = next((name for name, family in FAMILIES.items() if family.backbone == kind), None)
    if family and Path(folder, VOCABULARY).is_file():
        return make_preprocessor(family, Path(folder, VOCABULARY), LENGTH)
    if task.preprocessor_cls.__name__ in FOR_TEXT:
        tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(folder)
        preprocessor = text_preprocessor(task.preprocessor_cls.__name__, tokenizer, LENGTH)
    else:
        preprocessor = task.preprocessor_cls.from_preset(folder)
        tokenizer = preprocessor.tokenizer
    if getattr(tokenizer, "unsplittable_tokens", None):
        tokenizer.unsplittable_tokens = sorted(tokenizer.unsplittable_tokens)  # they come from a set, in any order
    return preprocessor
