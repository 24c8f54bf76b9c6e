"""Sizes of published models, so that a plan needs no download: Gemma Team 2024a, 2024b, 2025, as in keras-hub.

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


def sizes(layers: int, query: int, key_value: int, hidden: int, intermediate: int, head: int, **more: object) -> dict:
    """Return the arguments of a backbone."""
    return {
        "num_layers": layers, "num_query_heads": query, "num_key_value_heads": key_value, "hidden_dim": hidden,
        "intermediate_dim": intermediate, "head_dim": head,
    } | more  # fmt: skip


# Class of the backbone, arguments; by what is left of a preset's name without _instruct, _en and versions.
MODELS = {
    "gemma_2b": ("GemmaBackbone", sizes(18, 8, 1, 2048, 32_768, 256, vocabulary_size=256_000)),
    "gemma_7b": ("GemmaBackbone", sizes(28, 16, 16, 3072, 49_152, 256, vocabulary_size=256_000)),
    "gemma2_2b": ("GemmaBackbone", sizes(26, 8, 4, 2304, 18_432, 256, **GEMMA2)),
    "gemma2_9b": ("GemmaBackbone", sizes(42, 16, 8, 3584, 28_672, 256, **GEMMA2)),
    "gemma2_27b": (
        "GemmaBackbone",
        sizes(46, 32, 16, 4608, 73_728, 128, query_head_dim_normalize=False, **GEMMA2),
    ),
    "gemma3_1b": ("Gemma3Backbone", GEMMA3 | sizes(26, 4, 1, 1152, 6912, 256, sliding_window_size=512)),
    "gemma3_4b_text": ("Gemma3Backbone", GEMMA3 | sizes(34, 8, 4, 2560, 10_240, 256)),
    "gemma3_12b_text": ("Gemma3Backbone", GEMMA3 | sizes(48, 16, 8, 3840, 15_360, 256)),
    "gemma3_27b_text": (
        "Gemma3Backbone",
        GEMMA3 | sizes(62, 32, 16, 5376, 21_504, 128, query_head_dim_normalize=False),
    ),
}


def published(preset: str) -> tuple[str, dict] | None:
    """Return class and arguments of the backbone of a preset of keras-hub, by its name or handle; None if unknown."""
    name = re.sub(r"/\d+$", "", preset).removeprefix("kaggle://keras/")
    if "://" in name:
        return None  # somebody else's, whatever its name
    key = re.sub(r"(_instruct|_1\.1|_en)", "", name.rsplit("/", 1)[-1])
    return MODELS.get(key)
