"""The causal families of keras-hub that can be trained here from scratch, and the layers that LoRA adapts in any.

A preset may be of another family.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpulm.specs.byte_level import LLAMA3_VOCABULARY, QWEN2_VOCABULARY, QWEN3_VOCABULARY, Vocabulary

GEMMA_NORMS = {"use_post_ffw_norm": True, "use_post_attention_norm": True, "use_sliding_window_attention": True}


@dataclass(frozen=True)
class Family:
    """A causal architecture, as the config names it.

    backbone   keras-hub's class of its backbone
    head_dim   whether the width of a head is an argument, and not hidden_dim / num_query_heads
    tokenizer  keras-hub's class for a SentencePiece vocabulary
    bos, eos   pieces of that vocabulary before and after a document, which the class expects
    constants  published arguments of the backbone that the config does not set
    byte_level vocabulary of byte-level BPE; None if keras-hub has no class for one
    """

    backbone: str
    head_dim: bool
    tokenizer: str = "LlamaTokenizer"
    bos: str = "<s>"
    eos: str = "</s>"
    constants: Mapping[str, Any] = field(default_factory=dict)
    byte_level: Vocabulary | None = None

    @property
    def segments(self) -> bool:
        """Whether `tpulm.models.document_masking` can keep the documents of a record apart in it."""
        return self.backbone.startswith("Gemma")


GEMMA_VOCABULARY = ("GemmaTokenizer", "<bos>", "<eos>")
SOFT_CAPS = {"attention_logit_soft_cap": 50.0, "final_logit_soft_cap": 30.0}
TEXT_ONLY = {"image_size": None, "vision_encoder": None}
FAMILIES = {
    # Gemma Team 2024a, 2024b, 2025
    "gemma": Family("GemmaBackbone", True, *GEMMA_VOCABULARY),
    "gemma2": Family("GemmaBackbone", True, *GEMMA_VOCABULARY, GEMMA_NORMS | SOFT_CAPS | {"sliding_window_size": 4096}),
    "gemma3": Family(
        "Gemma3Backbone", True, *GEMMA_VOCABULARY, GEMMA_NORMS | TEXT_ONLY | {"sliding_window_size": 1024}
    ),
    # Grattafiori et al. 2024
    "llama3": Family("Llama3Backbone", False, constants={"rope_max_wavelength": 500_000}, byte_level=LLAMA3_VOCABULARY),
    # Jiang et al. 2023
    "mistral": Family("MistralBackbone", True, "MistralTokenizer", constants={"sliding_window": 4096}),
    # Yang et al. 2024 (also Qwen 2.5), 2025
    "qwen2": Family("QwenBackbone", False, constants={"rope_max_wavelength": 1_000_000}, byte_level=QWEN2_VOCABULARY),
    "qwen3": Family("Qwen3Backbone", True, constants={"rope_max_wavelength": 1_000_000}, byte_level=QWEN3_VOCABULARY),
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


def layers_of(targets: tuple[str, ...]) -> list[str]:
    """Return the names of the layers that `targets` stand for, in the order of TARGETS."""
    return [name for target, names in TARGETS.items() if target in targets for name in names]


# By `tokenizer` of a base model: the file of its vocabulary.
VOCABULARIES = {"bpe": "vocabulary.spm", "byte-level-bpe": "vocabulary.json"}


def vocabulary_of(run: str, base: Mapping) -> str:
    """Return the file of a base model's vocabulary below results/; base  its section of the config."""
    return f"base/{run}/{VOCABULARIES[base['tokenizer']]}"


def vocabulary_in(folder: Path) -> Path:
    """Return the vocabulary in the folder of a base model that was trained here; the newer one of two."""
    files = [folder / name for name in VOCABULARIES.values()]
    return max(files, key=lambda file: file.stat().st_mtime_ns if file.is_file() else 0)


def vocabulary_recipe(base: Mapping) -> dict[str, Any]:
    """Return the recipe for training a base model's vocabulary.

    vocab_size, seed  of the base model
    marks             for SentencePiece, the pieces before and after a document
    byte_level        for byte-level BPE, the architecture
    """
    name, common = base["model"]["architecture"], {key: base[key] for key in ("vocab_size", "seed")}
    if base["tokenizer"] == "byte-level-bpe":
        return common | {"byte_level": name}
    return common | {"marks": [FAMILIES[name].bos, FAMILIES[name].eos]}


def constructor(model: Mapping) -> tuple[str, dict[str, Any]]:
    """Return class and arguments of a backbone without the vocabulary; model  section of a base model."""
    family = FAMILIES[model.get("architecture", "gemma")]
    sizes = {key: value for key, value in model.items() if key != "architecture"}
    return family.backbone, {**family.constants, **sizes}
