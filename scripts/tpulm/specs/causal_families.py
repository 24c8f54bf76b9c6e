"""The causal families of keras-hub that can be trained here from scratch, and the layers that LoRA adapts in any.

A preset may be of another family.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulm.core.errors import UserError

GEMMA_NORMS = {"use_post_ffw_norm": True, "use_post_attention_norm": True, "use_sliding_window_attention": True}


@dataclass(frozen=True)
class Family:
    """A causal architecture, as the config names it.

    backbone   keras-hub's class of its backbone
    head_dim   whether the width of a head is an argument, and not hidden_dim / num_query_heads
    constants  published arguments of the backbone that the config does not set
    """

    backbone: str
    head_dim: bool
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def segments(self) -> bool:
        """Whether `tpulm.models.document_masking` can keep the documents of a record apart in it."""
        return self.backbone.startswith("Gemma")


SOFT_CAPS = {"attention_logit_soft_cap": 50.0, "final_logit_soft_cap": 30.0}
TEXT_ONLY = {"image_size": None, "vision_encoder": None}
FAMILIES = {
    # Gemma Team 2024a, 2024b, 2025
    "gemma": Family("GemmaBackbone", True),
    "gemma2": Family("GemmaBackbone", True, GEMMA_NORMS | SOFT_CAPS | {"sliding_window_size": 4096}),
    "gemma3": Family("Gemma3Backbone", True, GEMMA_NORMS | TEXT_ONLY | {"sliding_window_size": 1024}),
    # Grattafiori et al. 2024
    "llama3": Family("Llama3Backbone", False, constants={"rope_max_wavelength": 500_000}),
    # Jiang et al. 2023
    "mistral": Family("MistralBackbone", True, constants={"sliding_window": 4096}),
    # Yang et al. 2024 (also Qwen 2.5), 2025
    "qwen2": Family("QwenBackbone", False, constants={"rope_max_wavelength": 1_000_000}),
    "qwen3": Family("Qwen3Backbone", True, constants={"rope_max_wavelength": 1_000_000}),
}

# Layers of keras-hub, in all families, by the names that `targets` of a finetuning run may have.
TARGETS = {
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
    "output": ("attention_output",),
    "ffn": (
        *("ffw_gating", "ffw_gating_2", "ffw_linear"),
        *("feedforward_gate_dense", "feedforward_intermediate_dense", "feedforward_output_dense"),
    ),
}

# Backbones whose blocks multiply by the kernels of the layers of `ffn` themselves, and do not call these layers: int8
# kernels would lack their scales, and adapters would be rounded with the kernels.
BYPASSING = {"Gemma4Backbone": "Gemma 4"}
# Backbones that are tuned for text alone and not trained from scratch, by the model_type of the part of a model of
# transformers that reads text; the whole model's has no _text.
TUNED_ONLY = {"gemma4_text": "Gemma4Backbone", "qwen3_5_text": "Qwen3_5Backbone"}
# Arguments of these backbones that have the same names in transformers.
SAME_NAMES = {
    "Gemma4Backbone": (
        *("layer_types", "global_head_dim", "num_global_key_value_heads", "num_kv_shared_layers"),
        *("hidden_size_per_layer_input", "vocab_size_per_layer_input", "use_double_wide_mlp"),
    ),
    "Qwen3_5Backbone": (
        *("layer_types", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"),
        *("linear_value_head_dim", "linear_conv_kernel_dim"),
    ),
}
# Arguments of backbones for images and sound, which are None here.
ENCODERS = ("vision_encoder", "audio_encoder")


def refuse_bypassed(backbone: str, where: str, targets: tuple[str, ...], base_precision: str | None) -> None:
    """Raise UserError, naming the run `where`, if LoRA would not be computed as set; backbone  keras-hub's class."""
    if backbone not in BYPASSING:
        return
    if base_precision == "int8":
        raise UserError(f"{where}.base_precision is int8; allowed for {BYPASSING[backbone]}: float32, bfloat16.")
    if "ffn" in targets:
        allowed = ", ".join(target for target in TARGETS if target != "ffn")
        raise UserError(f"{where}.targets names ffn; allowed for {BYPASSING[backbone]}: {allowed}.")


def layers_of(targets: tuple[str, ...]) -> list[str]:
    """Return the names of the layers that `targets` stand for, in the order of TARGETS."""
    return [name for target, names in TARGETS.items() if target in targets for name in names]


def constructor(model: Mapping) -> tuple[str, dict[str, Any]]:
    """Return class and arguments of a backbone without the vocabulary; model  section of a base model."""
    family = FAMILIES[model.get("architecture", "gemma")]
    sizes = {key: value for key, value in model.items() if key != "architecture"}
    return family.backbone, {**family.constants, **sizes}
