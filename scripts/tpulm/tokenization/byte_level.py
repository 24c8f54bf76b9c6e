"""Apply the rules of published byte-level BPE to tokenizers of causal models, and read its vocabularies."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from tpulm.compat.keras_hub_tokenizers import tokenizer_of
from tpulm.specs.byte_level import PUBLISHED, ByteLevel


def cut_as_published(tokenizer: Tokenizer, rules: ByteLevel) -> None:
    """Set the normalizer, pre-tokenizer and decoder of a tokenizer of byte-level BPE by the rules of its vocabulary."""
    tokenizer.model.ignore_merges = rules.whole_words
    tokenizer.normalizer = normalizers.NFC() if rules.nfc else None
    words = pre_tokenizers.Split(Regex(rules.words), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()


def cut_words(tokenizer: Any) -> Any:
    """Return a tokenizer of keras-hub, changed to merge within words, as its vocabulary was trained.

    Llama 3 cuts 12345 into the pieces 123 and 45. keras-hub merges across words, and gets others.
    """
    backend, rules = tokenizer_of(tokenizer), PUBLISHED.get(type(tokenizer).__name__)
    if backend is not None and rules is not None:
        cut_as_published(backend, rules)
    return tokenizer


def vocabulary_and_merges(path: str | Path) -> tuple[dict[str, int], list[str]]:
    """Return ids by piece, and merges, of a vocabulary that was trained here, in keras-hub's form."""
    model = json.loads(Path(path).read_text(encoding="utf-8"))["model"]
    return model["vocab"], [" ".join(pair) for pair in model["merges"]]
