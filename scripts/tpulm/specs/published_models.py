"""Sizes of published models as in keras-hub, so that a plan needs no download.

Gemma Team 2024a, 2024b, 2025; Grattafiori et al. 2024 (Llama 3); Jiang et al. 2023 (Mistral); Yang et al. 2024, 2025
(Qwen 2.5, Qwen 3); Gemma 4 and Qwen 3.5 by their config.json, for text alone. keras-hub keeps two tables of embeddings
also for the small models of Llama 3.2.

The feed-forward of Gemma 1 and 2 counts both halves of the gate in keras-hub's `intermediate_dim`.
"""

import re

GEMMA2 = {
    "vocabulary_size": 256_000, "use_post_ffw_norm": True, "use_post_attention_norm": True,
    "attention_logit_soft_cap": 50.0, "final_logit_soft_cap": 30.0, "use_sliding_window_attention": True,
    "sliding_window_size": 4096,
}  # fmt: skip
GEMMA3 = {
    "vocabulary_size": 262_144, "image_size": None, "vision_encoder": None, "head_dim": 256,
    "use_post_ffw_norm": True, "use_post_attention_norm": True, "use_sliding_window_attention": True,
}  # fmt: skip
LLAMA3 = {"vocabulary_size": 128_256, "rope_max_wavelength": 500_000}
LONG = {"rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0, "rope_pretraining_sequence_length": 8192}
LLAMA31 = LLAMA3 | LONG | {"rope_frequency_adjustment_factor": 8.0}
LLAMA32 = LLAMA3 | LONG | {"rope_frequency_adjustment_factor": 32.0}
QWEN = {"vocabulary_size": 151_936, "rope_max_wavelength": 1_000_000}
QWEN_UNTIED = QWEN | {"tie_word_embeddings": False}
GEMMA4 = {
    "vocabulary_size": 262_144, "image_size": None, "global_head_dim": 512, "final_logit_soft_cap": 30.0,
    "global_rope_partial_rotary_factor": 0.25,
}  # fmt: skip
EFFICIENT = {"hidden_size_per_layer_input": 256}  # E2B and E4B
QWEN35 = {"vocabulary_size": 248_320, "rope_max_wavelength": 10_000_000}
QWEN35_TIED = QWEN35 | {"tie_word_embeddings": True}


def sizes(
    layers: int, query: int, key_value: int, hidden: int, intermediate: int, head: int | None, **more: object
) -> dict:
    """Return the arguments of a backbone; head  None if its width is not an argument."""
    width = {} if head is None else {"head_dim": head}
    return {
        "num_layers": layers, "num_query_heads": query, "num_key_value_heads": key_value, "hidden_dim": hidden,
        "intermediate_dim": intermediate,
    } | width | more  # fmt: skip


QWEN35_27B = sizes(64, 24, 4, 5120, 17_408, 256, linear_num_value_heads=48, **QWEN35)  # and its successors
# Class and arguments of the backbone by the name of a preset without _instruct, _en and versions.
MODELS = {
    "gemma_2b": ("GemmaBackbone", sizes(18, 8, 1, 2048, 32_768, 256, vocabulary_size=256_000)),
    "gemma_7b": ("GemmaBackbone", sizes(28, 16, 16, 3072, 49_152, 256, vocabulary_size=256_000)),
    "gemma2_2b": ("GemmaBackbone", sizes(26, 8, 4, 2304, 18_432, 256, **GEMMA2)),
    "gemma2_9b": ("GemmaBackbone", sizes(42, 16, 8, 3584, 28_672, 256, **GEMMA2)),
    "gemma2_27b": (
        "GemmaBackbone",
        sizes(46, 32, 16, 4608, 73_728, 128, query_head_dim_normalize=False, **GEMMA2),
    ),
    "gemma3_270m": ("Gemma3Backbone", GEMMA3 | sizes(18, 4, 1, 640, 2048, 256, sliding_window_size=512)),
    "gemma3_1b": ("Gemma3Backbone", GEMMA3 | sizes(26, 4, 1, 1152, 6912, 256, sliding_window_size=512)),
    "gemma3_4b_text": ("Gemma3Backbone", GEMMA3 | sizes(34, 8, 4, 2560, 10_240, 256)),
    "gemma3_12b_text": ("Gemma3Backbone", GEMMA3 | sizes(48, 16, 8, 3840, 15_360, 256)),
    "gemma3_27b_text": (
        "Gemma3Backbone",
        GEMMA3 | sizes(62, 32, 16, 5376, 21_504, 128, query_head_dim_normalize=False),
    ),
    "gemma4_2b": (
        "Gemma4Backbone",
        GEMMA4
        | EFFICIENT
        | sizes(35, 8, 1, 1536, 6144, 256, sliding_window_pattern=5, num_kv_shared_layers=20, use_double_wide_mlp=True),
    ),
    "gemma4_4b": ("Gemma4Backbone", GEMMA4 | EFFICIENT | sizes(42, 8, 2, 2560, 10_240, 256, num_kv_shared_layers=18)),
    "gemma4_31b": (
        "Gemma4Backbone",
        GEMMA4 | sizes(60, 32, 16, 5376, 21_504, 256, num_global_key_value_heads=4, sliding_window_size=1024),
    ),
    "llama3_8b": ("Llama3Backbone", sizes(32, 32, 8, 4096, 14_336, None, **LLAMA3)),
    "llama3.1_8b": ("Llama3Backbone", sizes(32, 32, 8, 4096, 14_336, None, **LLAMA31)),
    "llama3.2_1b": ("Llama3Backbone", sizes(16, 32, 8, 2048, 8192, None, **LLAMA32)),
    "llama3.2_3b": ("Llama3Backbone", sizes(28, 24, 8, 3072, 8192, None, **LLAMA32)),
    "mistral_7b": (
        "MistralBackbone",
        sizes(32, 32, 8, 4096, 14_336, None, vocabulary_size=32_000, sliding_window=4096),
    ),
    "qwen2.5_0.5b": ("QwenBackbone", sizes(24, 14, 2, 896, 4864, None, **QWEN)),
    "qwen2.5_3b": ("QwenBackbone", sizes(36, 16, 2, 2048, 11_008, None, **QWEN)),
    "qwen3_0.6b": ("Qwen3Backbone", sizes(28, 16, 8, 1024, 3072, 128, **QWEN)),
    "qwen3_1.7b": ("Qwen3Backbone", sizes(28, 16, 8, 2048, 6144, 128, **QWEN)),
    "qwen3_4b": ("Qwen3Backbone", sizes(36, 32, 8, 2560, 9728, 128, **QWEN)),
    "qwen3_8b": ("Qwen3Backbone", sizes(36, 32, 8, 4096, 12_288, 128, **QWEN_UNTIED)),
    "qwen3_14b": ("Qwen3Backbone", sizes(40, 40, 8, 5120, 17_408, 128, **QWEN_UNTIED)),
    "qwen3_32b": ("Qwen3Backbone", sizes(64, 64, 8, 5120, 25_600, 128, **QWEN_UNTIED)),
    "qwen3_5_0.8b": ("Qwen3_5Backbone", sizes(24, 8, 2, 1024, 3584, 256, linear_num_value_heads=16, **QWEN35_TIED)),
    "qwen3_5_2b": ("Qwen3_5Backbone", sizes(24, 8, 2, 2048, 6144, 256, linear_num_value_heads=16, **QWEN35_TIED)),
    "qwen3_5_4b": ("Qwen3_5Backbone", sizes(32, 16, 4, 2560, 9216, 256, **QWEN35_TIED)),
    "qwen3_5_9b": ("Qwen3_5Backbone", sizes(32, 16, 4, 4096, 12_288, 256, **QWEN35)),
    "qwen3_5_27b": ("Qwen3_5Backbone", QWEN35_27B),
    "qwen3_6_27b": ("Qwen3_5Backbone", QWEN35_27B),
    "qwen3_8_27b": ("Qwen3_5Backbone", QWEN35_27B),
}


def name_of_preset(preset: str) -> str | None:
    """Return the name of a keras-hub preset by its name or handle; None for a preset of another owner."""
    name = re.sub(r"/\d+$", "", preset).removeprefix("kaggle://keras/")
    return None if "://" in name else name.rsplit("/", 1)[-1]  # another owner's may have the same name


def published(preset: str) -> tuple[str, dict] | None:
    """Return class and arguments of a backbone by the name or handle of a keras-hub preset; None if unknown."""
    return MODELS.get(re.sub(r"(_instruct|_1\.1|_en|_base)", "", name_of_preset(preset) or ""))
