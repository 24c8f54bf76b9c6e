"""Convert causal models in folders of transformers to GGUF files, which llama.cpp reads.

Names, keys and types are those of llama.cpp's own package, gguf. Weights and settings are converted as by llama.cpp's
convert_hf_to_gguf.py, which is no package.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from sentencepiece import sentencepiece_model_pb2

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write, read_json
from tpulm.models.tensor_files import read_tensor, shape_of, tensor_files
from tpulm.specs.artifacts import GGUF_TYPES
from tpulm.specs.byte_level import rules_of

# Architectures by model_type. llama.cpp has no window for a Mistral: its context ends with the window.
ARCHITECTURES = {
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
ROTATED_BY_PAIRS = ("llama", "mistral")  # neighbours are rotated together, and not the halves of a head
MATRICES = {name: Type[name.upper()] for name in GGUF_TYPES}
FILE_TYPES = {name: gguf.LlamaFileType[f"MOSTLY_{name.upper()}"] for name in GGUF_TYPES}
NORMAL, CONTROL, UNUSED = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED
UNUSED_PIECE = "[PAD{}]"
CAPS = ("attn", "final")  # layers with a soft cap in Gemma 2: attention and the final one
LARGEST = float(np.finfo(np.float16).max)


def write_gguf(folder: Path, path: Path, file_type: str) -> None:
    """Write a causal model of transformers as a GGUF file.

    folder  as rule export_transformers writes it; file_type  of the matrices: f16 or q8_0. The rest is float32

    One tensor is in memory at a time. Raises UserError for a model that llama.cpp would compute or read differently.
    """
    config = read_json(folder / "config.json")
    refuse_others(folder, config)
    architecture = ARCHITECTURES[config["model_type"]]
    with atomic_write(path) as partial:
        writer = gguf.GGUFWriter(partial, gguf.MODEL_ARCH_NAMES[architecture])
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_file_type(FILE_TYPES[file_type])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        add_sizes(writer, config)
        add_vocabulary(writer, folder, config)
        names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
        files = tensor_files(folder)
        shapes = {name: shape_of(file, name) for name, file in files.items()}
        types = {name: type_of(shape, file_type) for name, shape in shapes.items()}
        for name, shape in shapes.items():
            nbytes = math.prod(quants.quant_shape_to_byte_shape(shape, types[name]))
            gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if gguf_name is None:
                raise UserError(f"{folder} has the tensor {name}, which llama.cpp does not know.")
            writer.add_tensor_info(gguf_name, shape, np.dtype(np.float32), nbytes, types[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, file in files.items():
            array = converted(name, read_tensor(file, name).astype(np.float32, copy=False), config)
            largest = np.abs(array).max()
            if largest > LARGEST:
                raise UserError(f"{folder}: {name} has a weight of {largest:g}, above float16's {LARGEST:g}.")
            writer.write_tensor_data(quants.quantize(array, types[name]))
        writer.close()


def refuse_others(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError for a model that llama.cpp would compute or read differently."""
    if not (folder / "tokenizer.model").is_file() and rules_of(read_json(folder / "tokenizer.json")) is None:
        raise UserError(
            f"{folder} has no tokenizer.model, and tokenizer.json cuts text into words by a rule of its own; allowed: "
            "a SentencePiece vocabulary, or the words of Llama 3 or of Qwen."
        )
    model_type = config["model_type"]
    if model_type not in ARCHITECTURES:
        raise UserError(f"{folder} is of the type {model_type}; allowed: {', '.join(ARCHITECTURES)}.")
    allowed: dict[str, Any] = {}  # values of settings that a file does not say
    if model_type in ("gemma2", "gemma3_text"):  # llama.cpp takes the scale of attention from the number of layers
        largest = config["num_hidden_layers"] == {"gemma2": 46, "gemma3_text": 62}[model_type]
        by_head = config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"]
        allowed["query_pre_attn_scalar"] = by_head
    if model_type == "gemma2":  # llama.cpp caps always
        allowed |= {f"{name}_logit_softcapping": config[f"{name}_logit_softcapping"] or "a number" for name in CAPS}
    if model_type == "gemma3_text":
        allowed["attn_logit_softcapping"] = None
    allowed["rope_scaling"] = "linear"
    settings = {**config, "rope_scaling": config.get("rope_scaling", {}).get("rope_type", "linear")}
    for key, value in allowed.items():
        if settings[key] != value:
            has = f"{folder} has {key} {settings[key]}"
            raise UserError(f"{has}, which a GGUF file of a {model_type} cannot hold; allowed: {value}.")


def add_sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Add the sizes and settings in config.json."""
    window, context = config.get("sliding_window"), config["max_position_embeddings"]
    if window is not None and "layer_types" in config:
        writer.add_sliding_window(window)
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config["layer_types"]])
    elif window is not None:
        context = min(context, window)
    writer.add_context_length(context)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "rope_scaling" in config:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    if "rope_local_base_freq" in config:
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: Mapping[str, Any]) -> None:
    """Add the tokens of a vocabulary, its special tokens, and the chat template."""
    if (folder / "tokenizer.model").is_file():
        add_sentencepiece(writer, (folder / "tokenizer.model").read_bytes(), config["vocab_size"])
    else:
        add_byte_level(writer, read_json(folder / "tokenizer.json"), config["vocab_size"])
    if config["bos_token_id"] is not None:
        writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(config["bos_token_id"] is not None)
    writer.add_add_eos_token(False)
    ends = read_json(folder / "generation_config.json")["eos_token_id"]
    if isinstance(ends, list):  # the last one ends a response
        writer.add_eot_token_id(ends[-1])
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))


def add_sentencepiece(writer: gguf.GGUFWriter, serialized: bytes, size: int) -> None:
    """Add the pieces of a SentencePiece vocabulary, and unused ones up to `size`, the rows of the embeddings."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(serialized)  # type: ignore[attr-defined]
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    pieces += [(UNUSED_PIECE.format(i), -1e4, UNUSED) for i in range(len(pieces), size)]
    user = gguf.TokenType.USER_DEFINED  # llama.cpp looks for these in the text as it is
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece.replace("\u2581", " ") if type_ == user else piece for piece, _, type_ in pieces])
    # llama.cpp merges pieces as SentencePiece does, by their scores.
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([type_ for *_, type_ in pieces])
    writer.add_unk_token_id(next(i for i, piece in enumerate(pieces) if piece[2] == gguf.TokenType.UNKNOWN))
    writer.add_add_space_prefix(proto.normalizer_spec.add_dummy_prefix)


def add_byte_level(writer: gguf.GGUFWriter, tokenizer: Mapping[str, Any], size: int) -> None:
    """Add the tokens and merges of a byte-level tokenizer.json, and unused tokens up to `size`, see above."""
    rules = rules_of(tokenizer)
    assert rules is not None  # others are refused
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens = {i: token for token, i in tokenizer["model"]["vocab"].items()} | special
    types = [UNUSED if i not in tokens else CONTROL if i in special else NORMAL for i in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rules.gguf)
    writer.add_token_list([tokens.get(i, UNUSED_PIECE.format(i)) for i in range(size)])
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])


def type_of(shape: list[int], file_type: str) -> Type:
    """Return the type of a tensor in the file; rows that are no multiple of a block of q8_0 are f16."""
    if len(shape) == 1:
        return Type.F32
    block, _ = gguf.GGML_QUANT_SIZES[MATRICES[file_type]]
    return Type.F16 if shape[-1] % block else MATRICES[file_type]


def converted(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Return a weight in the layout of llama.cpp: Gemma's norms plus 1, and heads reordered for rotation by pairs."""
    if config["model_type"].startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads and config["model_type"] in ROTATED_BY_PAIRS:
        by_half = array.reshape(config[heads], 2, -1, *array.shape[1:])
        return by_half.swapaxes(1, 2).reshape(array.shape)
    return array
