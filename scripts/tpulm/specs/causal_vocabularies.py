"""The vocabularies of causal models that are trained here, by the architecture of the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulm.specs.byte_level import LLAMA3_VOCABULARY, QWEN2_VOCABULARY, QWEN3_VOCABULARY, Vocabulary


@dataclass(frozen=True)
class VocabularyKind:
    """The vocabulary that the class of an architecture expects.

    tokenizer   keras-hub's class for a SentencePiece vocabulary
    bos, eos    pieces of that vocabulary before and after a document, which the class expects
    byte_level  of a vocabulary of byte-level BPE; None where keras-hub has no class for one
    """

    tokenizer: str = "LlamaTokenizer"
    bos: str = "<s>"
    eos: str = "</s>"
    byte_level: Vocabulary | None = None


GEMMA = VocabularyKind("GemmaTokenizer", "<bos>", "<eos>")
VOCABULARY_KINDS = {
    "gemma": GEMMA,
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "llama3": VocabularyKind(byte_level=LLAMA3_VOCABULARY),
    "mistral": VocabularyKind("MistralTokenizer"),
    "qwen2": VocabularyKind(byte_level=QWEN2_VOCABULARY),
    "qwen3": VocabularyKind(byte_level=QWEN3_VOCABULARY),
}

# File of the vocabulary by `tokenizer` of a base model.
VOCABULARIES = {"bpe": "vocabulary.spm", "byte-level-bpe": "vocabulary.json"}


def vocabulary_of(run: str, base: Mapping) -> str:
    """Return the file of the vocabulary of a base model below results/; base  its section of the config."""
    return f"base/{run}/{VOCABULARIES[base['tokenizer']]}"


def vocabulary_in(folder: Path) -> Path:
    """Return the vocabulary in the folder of a base model that was trained here; the newer one, if its kind changed."""
    files = [folder / name for name in VOCABULARIES.values()]
    return max(files, key=lambda file: file.stat().st_mtime_ns if file.is_file() else 0)


def vocabulary_recipe(base: Mapping) -> dict[str, Any]:
    """Return the recipe of the training of a base model's vocabulary.

    base              its section of the config

    vocab_size, seed  as in the section
    marks             for a SentencePiece vocabulary: the pieces before and after a document
    byte_level        for a vocabulary of byte-level BPE: the name of the architecture
    """
    name, common = base["model"]["architecture"], {key: base[key] for key in ("vocab_size", "seed")}
    if base["tokenizer"] == "byte-level-bpe":
        return common | {"byte_level": name}
    return common | {"marks": [VOCABULARY_KINDS[name].bos, VOCABULARY_KINDS[name].eos]}
