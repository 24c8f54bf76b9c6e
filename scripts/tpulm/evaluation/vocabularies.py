"""Texts as the token ids that a model reads, and what of a text its vocabulary cannot say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpulm.config.architectures import ARCHITECTURES, JAX_ONLY
from tpulm.core.files import read_json
from tpulm.tokenization.causal import load_tokenizer
from tpulm.tokenization.encoding import template
from tpulm.tokenization.folder import load, special_ids, vocabulary_size


@dataclass(frozen=True)
class Encoded:
    """A text as tokens, without special ones.

    ids      of its tokens
    words    the number of the word of each token, or None; of no use for causal models, which have none
    unknown  bytes of UTF-8 that stand behind tokens for unknown characters
    """

    ids: list[int]
    words: list[int | None]
    unknown: int = 0


class MaskedVocabulary:
    """The tokenizer of a masked model."""

    def __init__(self, tokenizer: str | Path, special_tokens_map: str | Path):
        """Load tokenizer.json, and the names of its special tokens."""
        self.tokenizer = load(tokenizer)
        self.size = vocabulary_size(self.tokenizer)
        self.special = special_ids(self.tokenizer, special_tokens_map)
        self.before, self.after = template(self.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the tokens of texts."""
        unknown, found = self.special.get("unk"), []
        for text, one in zip(texts, self.tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True):
            spans = [text[slice(*span)] for token, span in zip(one.ids, one.offsets, strict=True) if token == unknown]
            found.append(Encoded(one.ids, one.word_ids, sum(len(span.encode()) for span in spans)))
        return found

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of many texts, without the rest."""
        return [one.ids for one in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


class CausalVocabulary:
    """The tokenizer of a causal model."""

    def __init__(self, path: str, start: Callable[[], None]):
        """Load a vocabulary file or the tokenizer of a preset folder; calls `start` where that needs Keras."""
        self.tokenizer = load_tokenizer(path, start)
        self.size = self.tokenizer.size
        special = self.tokenizer.special
        # As the harness does it: what has no beginning of a text has its end before it.
        self.prefix = special["eos"] if special["bos"] is None else special["bos"]

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the tokens of texts."""
        return [Encoded(ids, []) for ids in self.ids(texts)]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of many texts, without the rest."""
        return self.tokenizer.encode(list(texts)) if texts else []


def unknown_nats(encoded: Sequence[Encoded]) -> np.ndarray:
    """Return what the unknown characters of texts cost beside their tokens, float64 [texts]: a byte, ln 256.

    Without that, a vocabulary that knows fewer characters would make text cheaper.
    """
    return np.array([one.unknown for one in encoded]) * np.log(256)


def costs_of(texts: Sequence[str], encoded: Sequence[Encoded], nats: np.ndarray) -> dict[str, float]:
    """Return what each text costs a model, with its unknown characters; nats  of its tokens, float64 [texts]."""
    return dict(zip(texts, (nats + unknown_nats(encoded)).tolist(), strict=True))


def fitting(length: int, folder: Path) -> int:
    """Return how many tokens a masked model of a Hugging Face folder reads at once: `length`, or as many as it can."""
    config = read_json(folder / "config.json")
    known = (ARCHITECTURES | JAX_ONLY).get(config["model_type"])
    unused = config["pad_token_id"] + 1 if known and known.after_pad else 0
    return min(length, (config.get("max_position_embeddings") or length + unused) - unused)
