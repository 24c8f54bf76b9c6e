"""The size of a model from its config alone: parameters, and the bytes that training keeps of them.

Requests for memory and disk follow from it. Nothing is built or downloaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from tpulm.config.outline import Model
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.specs.causal_families import ENCODERS, FAMILIES, SAME_NAMES, TUNED_ONLY, Family, constructor
from tpulm.specs.masked_sizes import SIZE_TABLES
from tpulm.specs.published_models import MODELS, name_of_preset, published

FLOAT32 = 4
# Bytes of a stored weight by `precision` or `base_precision`.
STORED = {"float32": 4, "mixed_bfloat16": 4, "bfloat16": 2, "int8": 1}
# Backbones of keras-hub that have a second table of embeddings for the output by default.
UNTIED = ("LlamaBackbone", "Llama3Backbone", "MistralBackbone")
# Backbones with a norm over the width of each head's queries and keys.
HEAD_NORMS = ("Gemma3Backbone", "Qwen3Backbone")
# Families by `model_type`, and the names of sizes, in a config.json of transformers.
OF_TRANSFORMERS = {
    "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3", "llama": "llama3", "mistral": "mistral",
    "qwen2": "qwen2", "qwen3": "qwen3",
}  # fmt: skip
SIZES_OF_TRANSFORMERS = {
    "num_layers": "num_hidden_layers", "num_query_heads": "num_attention_heads", "hidden_dim": "hidden_size",
    "vocabulary_size": "vocab_size",
}  # fmt: skip
BY_HEADS = ("llama", "mistral", "qwen2")
# The causal presets of keras-hub, whose import takes seconds, with their parameters. Written by tools/presets.py.
PRESETS = Path(__file__).parents[3] / "schemas" / "presets.txt"
# Gemma 7B and RoBERTa-large stand for models whose sizes are not known before the download, or whose family is not.
ASSUMED, ASSUMED_MASKED = "Gemma 7B", "RoBERTa-large"
UNKNOWN = ("GemmaBackbone", {
    "num_layers": 28, "num_query_heads": 16, "num_key_value_heads": 16, "hidden_dim": 3072, "intermediate_dim": 49_152,
    "head_dim": 256, "vocabulary_size": 256_000,
})  # fmt: skip
UNKNOWN_VOCABULARY = 50_265  # tokens of RoBERTa's own vocabulary, if the tokenizer is not trained here
UNKNOWN_MASKED = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}


@dataclass(frozen=True)
class ModelSize:
    """The size of a model.

    parameters  of the model without LoRA; adapters  of LoRA
    layers, hidden, heads, vocabulary   from which the sizes of activations and of the largest table follow
    per_layer   width of the second table of a Gemma 4, which has embeddings for each block
    """

    parameters: int
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    adapters: int = 0
    per_layer: int = 0

    @property
    def table(self) -> int:
        """Parameters of the largest variable, a table of embeddings."""
        return self.vocabulary * max(self.hidden, self.per_layer)


def model_size(model: Model) -> ModelSize:
    """Return the size of a model, or of the one that `assumed` returns."""
    if model.stage != "mlm":
        lora = model.recipe if model.recipe.get("method") == "lora" else None
        return base_size(model.base, lora)
    if model.origin is None:
        return masked_size(model.recipe["model"], model.vocab_size or UNKNOWN_VOCABULARY)
    return masked_size(*(sizes_in_folder(model.origin["pretrained"]) or (UNKNOWN_MASKED, UNKNOWN_VOCABULARY)))


def sizes_in_folder(place: str) -> tuple[Mapping[str, Any], int] | None:
    """Return the config.json of a masked model in a folder, and its vocabulary size; None without such a folder."""
    try:
        config = read_json(Path(place) / "config.json")
        return config, int(config["vocab_size"])
    except (OSError, UserError, ValueError, LookupError, TypeError):
        return None


def assumed(model: Model) -> str | None:
    """Return the name of the model whose size stands for an unknown one; None if the size is known."""
    if model.stage == "mlm":
        return ASSUMED_MASKED if model.origin and not sizes_in_folder(model.origin["pretrained"]) else None
    return ASSUMED if base_backbone(model.base) is UNKNOWN else None


def is_converted(model: Model) -> bool:
    """Return whether fetch_base converts a base model; it copies a preset of Keras for text alone."""
    preset = model.base["preset"]
    try:
        config = read_json(Path(preset) / "config.json")
        return "registered_name" not in config or any(config["config"].get(name) for name in ENCODERS)
    except (OSError, UserError, ValueError, TypeError, LookupError, AttributeError):
        return preset.startswith("hf://") or base_backbone(model.base)[0] in TUNED_ONLY.values()


def base_backbone(base: Mapping) -> tuple[str, Mapping[str, Any]]:
    """Return class and arguments of a base model's backbone, from its config, its local folder, or as published."""
    if "model" in base:
        family, sizes = constructor(base["model"])
        return family, sizes | {"vocabulary_size": base["vocab_size"]}
    try:
        config = read_json(Path(base["preset"]) / "config.json")
        family, sizes = backbone_arguments(config)
        causal_size(family, sizes)
        return family, sizes
    # The folder does not exist, or holds another family.
    except (OSError, UserError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return published(base["preset"]) or similar(base_parameters(base)) or UNKNOWN


def base_size(base: Mapping, lora: Mapping | None = None) -> ModelSize:
    """Return the size of a base model; of a preset whose sizes are not known here, that of `similar` to its parameters.

    lora  rank and targets, where it is tuned with LoRA
    """
    backbone = base_backbone(base)
    size, parameters = causal_size(*backbone, lora=lora), base_parameters(base)
    return replace(size, parameters=parameters) if parameters and not published(base["preset"]) else size


@cache
def preset_parameters() -> dict[str, int]:
    """Return the number of parameters of each causal preset of keras-hub by its name."""
    return {name: int(number) for name, number in map(str.split, PRESETS.read_text().splitlines())}


def base_parameters(base: Mapping) -> int | None:
    """Return the number of parameters that keras-hub gives for its preset; None for another base model."""
    preset = base.get("preset", "")
    return None if (Path(preset) / "config.json").is_file() else preset_parameters().get(name_of_preset(preset) or "")


def similar(parameters: int | None) -> tuple[str, dict[str, Any]] | None:
    """Return class and arguments of the published backbone with the nearest number of parameters."""
    if not parameters:
        return None
    return min(MODELS.values(), key=lambda model: abs(log(causal_size(*model).parameters / parameters)))


def backbone_arguments(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return class and arguments of a backbone from a config.json of keras-hub or transformers. Raises LookupError."""
    if "registered_name" in config:
        return config["registered_name"].rpartition(">")[2], dict(config["config"])
    if f"{config['model_type']}_text" in TUNED_ONLY:
        config = {**config, **config.get("text_config", {})}
    kind = config["model_type"]
    family = Family(TUNED_ONLY[kind], True) if kind in TUNED_ONLY else FAMILIES[OF_TRANSFORMERS[kind]]
    sizes = {key: config[name] for key, name in SIZES_OF_TRANSFORMERS.items()}
    sizes |= {
        "num_key_value_heads": config.get("num_key_value_heads") or sizes["num_query_heads"],
        # Where Gemma and Qwen 3 leave it out, it is not the width by the heads.
        "head_dim": config.get("head_dim") if config["model_type"] in BY_HEADS else config["head_dim"],
        "intermediate_dim": config["intermediate_size"] * (2 if family.backbone == "GemmaBackbone" else 1),
        "tie_word_embeddings": config.get("tie_word_embeddings", family.backbone.startswith("Gemma")),
    }
    same = {key: config[key] for key in SAME_NAMES.get(family.backbone, ()) if key in config}
    return family.backbone, {**family.constants, **sizes, **same}


def causal_size(family: str, sizes: Mapping[str, Any], lora: Mapping | None = None) -> ModelSize:
    """Return the size of a causal model as keras-hub builds it. Raises LookupError for unknown sizes."""
    hidden, heads, pairs = sizes["hidden_dim"], sizes["num_query_heads"], sizes["num_key_value_heads"]
    layers, vocabulary = sizes["num_layers"], sizes["vocabulary_size"]
    if family in TUNED_ONLY.values():
        return size_by_block(family, sizes, lora)
    width = sizes.get("head_dim") or hidden // heads
    # keras-hub's GemmaBackbone counts both halves of the gate.
    inner = sizes["intermediate_dim"] // (2 if family == "GemmaBackbone" else 1)
    norms = hidden * (2 + bool(sizes.get("use_post_ffw_norm")) + bool(sizes.get("use_post_attention_norm")))
    norms += 2 * width if family in HEAD_NORMS else 0
    biases = (heads + 2 * pairs) * width if family == "QwenBackbone" else 0
    block = 2 * (heads + pairs) * width * hidden + 3 * hidden * inner + norms + biases
    tables = 1 if sizes.get("tie_word_embeddings", family not in UNTIED) else 2
    # Rows of LoRA's A and B together, by target; the rank is their other dimension.
    shapes = {
        "query": heads * hidden + width,
        "key": pairs * hidden + width,
        "value": pairs * hidden + width,
        "output": heads * width + hidden,
        "ffn": 3 * (hidden + inner),
    }
    adapters = layers * lora["rank"] * sum(shapes[target] for target in lora["targets"]) if lora else 0
    parameters = layers * block + tables * vocabulary * hidden + hidden
    return ModelSize(parameters, layers, hidden, heads, vocabulary, adapters)


def size_by_block(family: str, sizes: Mapping[str, Any], lora: Mapping | None) -> ModelSize:
    """Return the size of a Gemma 4 or a Qwen 3.5, whose blocks differ, as for `causal_size`."""
    hidden, layers, vocabulary = sizes["hidden_dim"], sizes["num_layers"], sizes["vocabulary_size"]
    gemma, per_layer = family == "Gemma4Backbone", layers * (sizes.get("hidden_size_per_layer_input") or 0)
    every = sizes.get("sliding_window_pattern", 6) if gemma else 4
    kinds = sizes.get("layer_types") or ["" if (i + 1) % every else "full_attention" for i in range(layers)]
    parameters, adapters = vocabulary * hidden + hidden, 0
    if per_layer:
        rows = sizes.get("vocab_size_per_layer_input") or vocabulary
        parameters += (rows + hidden) * per_layer + per_layer // layers
    if not sizes.get("tie_word_embeddings", gemma):
        parameters += vocabulary * hidden
    for index, kind in enumerate(kinds):
        others, matrices = (gemma4_block if gemma else qwen35_block)(sizes, index, kind == "full_attention")
        parameters += others + sum(rows * columns for matrix in matrices.values() for rows, columns in matrix)
        if lora:
            adapted = [shape for target in lora["targets"] for shape in matrices.get(target, ())]
            adapters += lora["rank"] * sum(rows + columns for rows, columns in adapted)
    return ModelSize(parameters, layers, hidden, sizes["num_query_heads"], vocabulary, adapters, per_layer)


def gemma4_block(sizes: Mapping[str, Any], index: int, full: bool) -> tuple[int, dict[str, list]]:
    """Return the parameters of a block that no target has, and the rows of A and columns of B of LoRA by target."""
    hidden, heads, inner = (sizes[name] for name in ("hidden_dim", "num_query_heads", "intermediate_dim"))
    own = index < sizes["num_layers"] - (sizes.get("num_kv_shared_layers") or 0)  # has keys and values of its own
    alike = sizes.get("num_global_key_value_heads") if full else None  # heads of keys that are also the values
    width = (full and sizes.get("global_head_dim")) or sizes["head_dim"]
    inner *= 2 if sizes.get("use_double_wide_mlp") and not own else 1
    per_layer = sizes.get("hidden_size_per_layer_input") or 0
    matrices = {
        "query": [(heads * hidden, width)],
        "key": [((alike or sizes["num_key_value_heads"]) * hidden, width)] if own else [],
        "output": [(heads * width, hidden)],
        "ffn": [(hidden, inner), (hidden, inner), (inner, hidden)],
    }
    matrices["value"] = [] if alike else matrices["key"]
    others = 4 * hidden + (1 + own) * width + 1
    return others + ((2 * per_layer + 1) * hidden if per_layer else 0), matrices


def qwen35_block(sizes: Mapping[str, Any], index: int, full: bool) -> tuple[int, dict[str, list]]:
    """Return for a block of Qwen 3.5 what `gemma4_block` does."""
    hidden, heads, inner = (sizes[name] for name in ("hidden_dim", "num_query_heads", "intermediate_dim"))
    ffn: dict[str, list] = {"ffn": [(hidden, inner), (hidden, inner), (inner, hidden)]}
    if full:
        width, pairs = sizes["head_dim"], [(sizes["num_key_value_heads"] * hidden, sizes["head_dim"])]
        output = [(heads * width, hidden)]
        query = [(heads * hidden, 2 * width)]  # the query and the gate of the output
        return 2 * hidden + 2 * width, ffn | {"query": query, "key": pairs, "value": pairs, "output": output}
    values, width = sizes.get("linear_num_value_heads", 32), sizes.get("linear_value_head_dim", 128)
    keys = sizes.get("linear_num_key_heads", 16) * sizes.get("linear_key_head_dim", 128)
    mixed = 2 * keys + values * width
    projections = hidden * (mixed + 2 * values * width + 2 * values)
    return projections + mixed * sizes.get("linear_conv_kernel_dim", 4) + 2 * values + width + 2 * hidden, ffn


def masked_size(model: Mapping[str, Any], vocabulary: int) -> ModelSize:
    """Return the size of a masked model: exact for RoBERTa, BERT and ModernBERT, otherwise approximate."""
    table = SIZE_TABLES.get(model.get("architecture", model.get("model_type")), SIZE_TABLES["roberta"])
    sizes = {**table.sizes, **{key: value for key, value in model.items() if key in table.sizes}}
    hidden, inner, layers = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_hidden_layers"]
    embeddings = (vocabulary + sizes["max_position_embeddings"] + model.get("type_vocab_size", 1) + 2) * hidden
    block = 4 * (hidden + 1) * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    head = (hidden + 1) * hidden + 2 * hidden + vocabulary
    if table is SIZE_TABLES["modernbert"]:
        # There is no table of positions, and only the head has a bias. The first layer lacks the norm that the end has.
        embeddings, head = (vocabulary + 1) * hidden, hidden * hidden + hidden + vocabulary
        block = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    return ModelSize(embeddings + layers * block + head, layers, hidden, sizes["num_attention_heads"], vocabulary)


def weight_bytes(model: Model) -> int:
    """Return the bytes of the trained weights of a model, which are float32 at any precision."""
    size = model_size(model)
    return FLOAT32 * (size.adapters or size.parameters)


def model_bytes(model: Model) -> int:
    """Return the bytes of a model while it is trained: LoRA's own weights, and the others as they are stored."""
    size, recipe = model_size(model), model.recipe
    stored = recipe.get("base_precision") or recipe["precision"]
    return STORED[stored] * size.parameters + FLOAT32 * size.adapters


def optimizer_bytes(model: Model) -> int:
    """Return the bytes of an optimizer's state.

    Two moments of each weight in AdamW (Loshchilov and Hutter 2019), one in Lion (Chen et al. 2023), in Adafactor a row
    and a column of each matrix (Shazeer and Stern 2018), and in Muon one moment of each weight and another one of the
    embeddings, of which there are at most two large tables (Jordan et al. 2024).
    """
    weights, size = weight_bytes(model), model_size(model)
    return {
        "adamw": 2 * weights,
        "lion": weights,
        "adafactor": 2 * weights // size.hidden,
        "muon": min(2 * weights, weights + 2 * FLOAT32 * size.table),
    }[model.recipe["optimizer"]["name"]]


def checkpoint_bytes(model: Model) -> int:
    """Return the bytes of a checkpoint: the weights, the best so far, and the optimizer's state."""
    return 2 * weight_bytes(model) + optimizer_bytes(model)
