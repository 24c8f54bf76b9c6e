"""Text to ids by the byte-level BPE of causal language models, published or trained here."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from tpulm.compat.keras_hub_tokenizers import tokenizer_of
from tpulm.specs.byte_level import PUBLISHED, ByteLevel

Places = list[tuple[int, int]]  # characters of tokens


def cut_as_published(tokenizer: Tokenizer, rules: ByteLevel) -> None:
    """Let a tokenizer of byte-level BPE follow the rules of its vocabulary."""
    tokenizer.model.ignore_merges = rules.whole_words
    tokenizer.normalizer = normalizers.NFC() if rules.nfc else None
    words = pre_tokenizers.Split(Regex(rules.words), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()


def cut_words(tokenizer: Any) -> Any:
    """Return a tokenizer of keras-hub with byte-pair encoding that merges as its vocabulary was trained.

    Of 12345, Llama 3 has the pieces 123 and 45. keras-hub merges across words, and has others.
    """
    behind, rules = tokenizer_of(tokenizer), PUBLISHED.get(type(tokenizer).__name__)
    if behind is not None and rules is not None:
        cut_as_published(behind, rules)
    return tokenizer


def parts_of(path: str | Path) -> tuple[dict[str, int], list[str]]:
    """Return ids by piece and merges of a vocabulary that was trained here, as keras-hub takes them."""
    model = json.loads(Path(path).read_text(encoding="utf-8"))["model"]
    return model["vocab"], [" ".join(pair) for pair in model["merges"]]


class OfBytes:
    """Text to ids and back by a vocabulary that was trained here."""

    def __init__(self, path: str | Path):
        """Load a file, as tpulm.tokenization.training.train_byte_level makes it."""
        self.behind = Tokenizer.from_file(str(path))
        self.size = self.behind.get_vocab_size()
        single = json.loads(self.behind.to_str())["post_processor"]["single"]
        *before, eos = (part["SpecialToken"]["id"] for part in single if "SpecialToken" in part)
        ids = {"bos": before[0] if before else None, "eos": eos}
        self.special = {name: piece and self.behind.token_to_id(piece) for name, piece in ids.items()} | {"pad": 0}

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return [one.ids for one in self.behind.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        special = {self.special["bos"], self.special["eos"]}
        return self.behind.decode([token for token in ids if token not in special], skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """Return the text that stands for a token."""
        return self.behind.id_to_token(token)

    def places(self, texts: list[str]) -> list[Places]:
        """Return the characters of each of these ids."""
        return [one.offsets for one in self.behind.encode_batch(texts, add_special_tokens=False)]
