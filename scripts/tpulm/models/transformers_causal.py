"""Convert causal models of keras-hub to config, names and weights of transformers, without importing transformers.

keras-hub 0.32 has exporters of its own, for fewer families; Gemma's writes only the first of several key-value heads.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tpulm.core.errors import UserError
from tpulm.models.tensor_files import Tensor
from tpulm.models.weight_names import to_matrix
from tpulm.specs.causal_families import SAME_NAMES

if TYPE_CHECKING:
    import keras

# Projections of a block, by keras-hub's names of the layers in all families. The first three have heads.
MODULES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "ffw_gating": "mlp.gate_proj",
    "ffw_gating_2": "mlp.up_proj",
    "ffw_linear": "mlp.down_proj",
    "feedforward_gate_dense": "mlp.gate_proj",
    "feedforward_intermediate_dense": "mlp.up_proj",
    "feedforward_output_dense": "mlp.down_proj",
}
# Normalizations of a block. Gemma 1 has none after attention and feed-forward, and Llama's name for pre_ffw_norm.
NORMS = {
    "pre_attention_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_ffw_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "self_attention_layernorm": "input_layernorm",
    "feedforward_layernorm": "post_attention_layernorm",
    "query_dense_layernorm": "self_attn.q_norm",
    "key_dense_layernorm": "self_attn.k_norm",
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "post_per_layer_input_norm": "post_per_layer_input_norm",
    "norm": "linear_attn.norm",
}
WITHOUT_POST_NORMS = NORMS | {"pre_ffw_norm": "post_attention_layernorm"}
# Other layers of a block: those by which each block of Gemma 4 reads the token, and Qwen 3.5's linear attention.
OTHERS = {
    "per_layer_input_gate": "per_layer_input_gate",
    "per_layer_up_proj": "per_layer_projection",
    **{name: f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")},
}
# Variables of a block outside its layers.
ALONE = {
    "layer_scalar": "layer_scalar",
    "linear_attn/conv1d_kernel": "linear_attn.conv1d.weight",
    "linear_attn/dt_bias": "linear_attn.dt_bias",
    "linear_attn/A_log": "linear_attn.A_log",
}
# Variables outside the blocks, by path.
OUTSIDE = {
    "token_embedding/embeddings": "model.embed_tokens.weight",
    "token_embedding/reverse_embeddings": "lm_head.weight",
    "final_normalization/scale": "model.norm.weight",
    "sequence_output_layernorm/scale": "model.norm.weight",
    "per_layer_token_embedding/embeddings": "model.embed_tokens_per_layer.weight",
    "per_layer_model_projection/kernel": "model.per_layer_model_projection.weight",
    "per_layer_projection_norm/scale": "model.per_layer_projection_norm.weight",
}
# The path of a layer in a block, or of a variable outside the layers; groups are the block's number and the name.
BLOCK = r"(?:decoder_block|transformer_layer)_(\d+)/"
LAYER = re.compile(rf"{BLOCK}(?:(?:self_)?attention/|linear_attn/)?({'|'.join(MODULES | NORMS | OTHERS)})$")
IN_BLOCK = re.compile(rf"{BLOCK}({'|'.join(ALONE)})$")

# A Qwen 2 is a Llama with biases. transformers 5 gives every model of the type qwen2 a byte-level tokenizer, whatever
# its folder has; for a Llama it takes any.
QWEN_AS_LLAMA = "QwenBackbone with a SentencePiece vocabulary"
# transformers' class, model type, and positions as published, by keras-hub's class; Gemma 2 is a Gemma with more norms.
CLASSES = {
    "GemmaBackbone": ("Gemma", "gemma", 8192),
    "Gemma2": ("Gemma2", "gemma2", 8192),
    "Gemma3Backbone": ("Gemma3", "gemma3_text", 32768),
    "Gemma4Backbone": ("Gemma4", "gemma4_text", 131_072),
    "LlamaBackbone": ("Llama", "llama", 4096),
    "Llama3Backbone": ("Llama", "llama", 8192),
    "MistralBackbone": ("Mistral", "mistral", 32768),
    "QwenBackbone": ("Qwen2", "qwen2", 32768),
    QWEN_AS_LLAMA: ("Llama", "llama", 32768),
    "Qwen3Backbone": ("Qwen3", "qwen3", 32768),
    "Qwen3_5Backbone": ("Qwen3_5", "qwen3_5_text", 262_144),
}
SLIDING, FULL = "sliding_attention", "full_attention"
NESTED_ROTARY = ("Gemma4Backbone", "Qwen3_5Backbone")  # whose rotary positions transformers 5 alone describes


def class_key_of(backbone: "keras.Model", byte_level: bool) -> str:
    """Return the key of CLASSES for a backbone, or the name of its class if it has none."""
    sizes, name = backbone.get_config(), type(backbone).__name__
    if name == "GemmaBackbone" and sizes["use_post_ffw_norm"] and sizes["use_post_attention_norm"]:
        return "Gemma2"
    return QWEN_AS_LLAMA if name == "QwenBackbone" and not byte_level else name


def transformers_config(
    model: "keras.Model", special_ids: Mapping[str, int | None], byte_level: bool
) -> dict[str, Any]:
    """Return the config.json of a causal model, for transformers 4.57 and later; Gemma 4 and Qwen 3.5 are in 5 only.

    special_ids   of its tokenizer: bos, eos, pad
    byte_level    whether the tokenizer is byte-level BPE, and not SentencePiece

    Raises UserError for a model without a counterpart in transformers.
    """
    backbone = model.backbone
    sizes, class_key = backbone.get_config(), class_key_of(backbone, byte_level)
    refuse_unknown(class_key, sizes)
    prefix, model_type, positions = CLASSES[class_key]
    gemma = class_key.startswith("Gemma")
    variables = {variable.path for variable in backbone.weights}
    config = {
        "architectures": [f"{prefix}ForCausalLM"],
        "model_type": model_type,
        "dtype": backbone.dtype_policy.variable_dtype,
        "vocab_size": sizes["vocabulary_size"],
        "hidden_size": sizes["hidden_dim"],
        "intermediate_size": sizes["intermediate_dim"] // (2 if class_key in ("GemmaBackbone", "Gemma2") else 1),
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_query_heads"],
        "num_key_value_heads": sizes["num_key_value_heads"],
        "head_dim": sizes.get("head_dim") or sizes["hidden_dim"] // sizes["num_query_heads"],
        "max_position_embeddings": positions,
        "rms_norm_eps": sizes["layer_norm_epsilon"],
        "tie_word_embeddings": "token_embedding/reverse_embeddings" not in variables,
        "bos_token_id": special_ids["bos"],
        "eos_token_id": special_ids["eos"],
        "pad_token_id": special_ids["pad"],
    }
    activation = "gelu_pytorch_tanh" if gemma else "silu"
    config |= {"hidden_act": activation} | ({"hidden_activation": activation} if gemma else {})
    return config | rotary(class_key, sizes) | attention(class_key, backbone, sizes)


def refuse_unknown(class_key: str, sizes: Mapping[str, Any]) -> None:
    """Raise UserError for a model whose settings transformers does not have."""
    if class_key not in CLASSES:
        known = ", ".join(name for name in CLASSES if name not in ("Gemma2", QWEN_AS_LLAMA))
        raise UserError(f"a {class_key} cannot be saved for transformers; allowed: a model with a {known}.")
    without = {
        "GemmaBackbone": ("use_sliding_window_attention", "attention_logit_soft_cap", "final_logit_soft_cap")
        + ("use_post_ffw_norm", "use_post_attention_norm"),
        "Gemma3Backbone": ("vision_encoder", "is_embedding_model", "use_bidirectional_attention"),
        "Gemma4Backbone": ("vision_encoder", "audio_encoder", "is_embedding_model", "use_bidirectional_attention")
        + ("attention_logit_soft_cap", "enable_moe_block"),
        "Qwen3_5Backbone": ("vision_encoder",),
    }
    needed = {
        "Gemma3Backbone": ("use_query_key_norm", "use_post_ffw_norm", "use_post_attention_norm"),
        "Gemma4Backbone": ("use_sliding_window_attention",),
    }
    wrong = [key for key in without.get(class_key, ()) if sizes[key]] + [
        key for key in needed.get(class_key, ()) if not sizes[key]
    ]
    scaled = {"rope_position_scaling_factor": 1.0, "local_rope_scaling_factor": 1.0}
    if class_key in NESTED_ROTARY:
        scaled |= {"global_rope_scaling_factor": 1.0, "rope_scaling_factor": 1.0}
    wrong += [key for key, plain in scaled.items() if sizes.get(key, plain) != plain]
    if wrong:
        raise UserError(
            f"a {class_key} with {wrong[0]} {sizes[wrong[0]]} cannot be saved for transformers, whose model does not "
            "have this setting."
        )


def rotary(class_key: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary positions (Su et al. 2021): wavelengths and scaling."""
    if class_key == "Gemma4Backbone":
        whole = {"rope_type": "proportional", "rope_theta": float(sizes["global_rope_wavelength"] or 1e6)}
        whole["partial_rotary_factor"] = sizes["global_rope_partial_rotary_factor"]
        local = {"rope_type": "default", "rope_theta": float(sizes["local_rope_wavelength"] or 1e4)}
        return {"rope_parameters": {FULL: whole, SLIDING: local}}
    if class_key == "Qwen3_5Backbone":
        whole = {"rope_type": "default", "rope_theta": float(sizes["rope_max_wavelength"])}
        return {"rope_parameters": whole | {"partial_rotary_factor": sizes["partial_rotary_factor"]}}
    if class_key == "Gemma3Backbone":
        factor = sizes["global_rope_scaling_factor"]
        # As in keras-hub: layers with a window have the local wavelength, and no factor.
        base: dict[str, Any] = {"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
    else:
        factor, base = (
            sizes.get("rope_scaling_factor", 1.0),
            {"rope_theta": float(sizes.get("rope_max_wavelength", 1e4))},
        )
    if factor != 1.0:
        base["rope_scaling"] = {"rope_type": "linear", "factor": float(factor)}
    if sizes.get("rope_frequency_adjustment_factor"):
        base["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": float(sizes["rope_frequency_adjustment_factor"]),
            "low_freq_factor": float(sizes["rope_low_freq_factor"]),
            "high_freq_factor": float(sizes["rope_high_freq_factor"]),
            "original_max_position_embeddings": sizes["rope_pretraining_sequence_length"],
        }
    return base


def attention(class_key: str, backbone: "keras.Model", sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of attention: windows, soft caps, and the scale of scores."""
    if class_key in ("Gemma2", "Gemma3Backbone"):
        attentions = [layer.attention for layer in backbone.transformer_layers]
        by_head = attentions[0].query_head_dim_normalize
        # All kernels but eager ignore soft caps in transformers 4.57; this key of a config selects it.
        plain = {"_attn_implementation": "eager"} if sizes["attention_logit_soft_cap"] else {}
        return plain | {
            "layer_types": [SLIDING if layer.use_sliding_window_attention else FULL for layer in attentions],
            "sliding_window": sizes["sliding_window_size"],
            "attn_logit_softcapping": sizes["attention_logit_soft_cap"],
            "final_logit_softcapping": sizes["final_logit_soft_cap"],
            "query_pre_attn_scalar": sizes["head_dim"] if by_head else sizes["hidden_dim"] // sizes["num_query_heads"],
        }
    if class_key in SAME_NAMES:
        same = {key: sizes[key] for key in SAME_NAMES[class_key]}
        if class_key == "Qwen3_5Backbone":
            return same
        return same | {
            "global_head_dim": sizes["global_head_dim"] or sizes["head_dim"],
            "vocab_size_per_layer_input": sizes["vocab_size_per_layer_input"] or sizes["vocabulary_size"],
            "attention_k_eq_v": sizes["num_global_key_value_heads"] is not None,
            "sliding_window": sizes["sliding_window_size"],
            "final_logit_softcapping": sizes["final_logit_soft_cap"],
        }
    if class_key == "MistralBackbone":
        return {"sliding_window": sizes["sliding_window"]}
    if class_key == QWEN_AS_LLAMA:
        return {"attention_bias": True}
    if class_key in ("QwenBackbone", "Qwen3Backbone"):
        # Whatever their settings say, keras-hub 0.32 gives them no window on JAX.
        return {"use_sliding_window": False, "sliding_window": None, "layer_types": [FULL] * sizes["num_layers"]}
    return {}


def transformers_name(path: str, post_norms: bool) -> str:
    """Return transformers' name of the variable at a path of a causal model in keras-hub.

    post_norms   whether blocks also have a normalization after attention

    Raises UserError for a variable without a counterpart in transformers.
    """
    if path in OUTSIDE:
        return OUTSIDE[path]
    if match := IN_BLOCK.match(path):
        return f"model.layers.{match[1]}.{ALONE[match[2]]}"
    layer, kind = path.rsplit("/", 1)
    match = LAYER.match(layer)
    if match and kind in ("kernel", "bias", "scale"):
        norms = NORMS if post_norms else WITHOUT_POST_NORMS
        module = (MODULES | norms | OTHERS)[match[2]]
        return f"model.layers.{match[1]}.{module}.{'bias' if kind == 'bias' else 'weight'}"
    raise UserError(f"the variable {path} has no counterpart in a causal model of transformers.")


def tensors_of(model: "keras.Model", byte_level: bool) -> dict[str, Tensor]:
    """Return the weights of a causal model by transformers' names, each read when it is written.

    byte_level   as for `transformers_config`. Raises UserError for a weight without a counterpart in transformers.
    """
    weights = model.backbone.weights
    post_norms = any(weight.path.endswith("post_attention_norm/scale") for weight in weights)
    tensors = {}
    for weight in weights:
        read = partial(read_weight, weight)
        name = transformers_name(weight.path, post_norms)
        tensors[name] = Tensor.of(weight.shape, weight.value.dtype.itemsize, read)
        if name.endswith("o_proj.weight") and class_key_of(model.backbone, byte_level) == QWEN_AS_LLAMA:
            # Llama also has this bias, which transformers would draw.
            zeros = partial(np.zeros, weight.shape[-1:], weight.value.dtype)
            tensors[name.replace("weight", "bias")] = Tensor.of(weight.shape[-1:], weight.value.dtype.itemsize, zeros)
    return tensors


def read_weight(weight: "keras.Variable") -> np.ndarray:
    """Return a weight in the layout of transformers."""
    return to_matrix(weight.path, np.asarray(weight.value))
