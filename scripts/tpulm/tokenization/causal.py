"""The tokenizers of causal language models: plain SentencePiece if possible, otherwise keras-hub."""

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tpulm.core.errors import UserError
from tpulm.core.files import read_json, sha256

SPECIAL = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}  # ids as in the published Gemma vocabularies
MARKS = ("<bos>", "<eos>")  # their pieces there
# Tokenizers of keras-hub that are just a SentencePiece model.
PLAIN = ("GemmaTokenizer", "Gemma3Tokenizer", "LlamaTokenizer", "MistralTokenizer")
# Runs of spaces are pieces of their own, as in Gemma's, so that indentation costs one token.
USER_DEFINED = ["\n", *("\u2581" * n for n in range(2, 17))]
CLOSING = 1  # special tokens at the end of a document: <eos>
LINE_CHARACTERS = 4_000  # SentencePiece skips a line that is longer than it expects


def train_vocabulary(documents: Iterable[str], vocab_size: int, where: str, marks: tuple[str, str] = MARKS) -> bytes:
    """Train a SentencePiece Unigram model (Kudo 2018), byte fallback for rare characters; return its proto.

    where  the config key of the vocabulary's size. Raises UserError, naming it, for a size that cannot be.
    marks  the pieces before and after a document
    """
    specials: dict[str, Any] = {f"{name}_id": index for name, index in SPECIAL.items()}
    specials |= {f"{name}_piece": f"<{name}>" for name in SPECIAL} | {"bos_piece": marks[0], "eos_piece": marks[1]}
    proto = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for document in documents for line in lines(document)),
            model_writer=proto,
            model_type="unigram",
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            user_defined_symbols=USER_DEFINED,
            max_sentence_length=4 * LINE_CHARACTERS + 4,  # bytes
            num_threads=1,  # EM adds up floats: another number of threads, another vocabulary
            minloglevel=1,
            **specials,
        )
    except RuntimeError as error:
        text = str(error)
        too_big = re.search(r"Vocabulary size too high \((\d+)\).*<= (\d+)", text)
        too_small = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", text)
        if too_big:
            raise UserError(f"{where} is {vocab_size}; the text has pieces for at most {too_big[2]}.") from None
        if too_small:
            raise UserError(f"{where} is {vocab_size}; the text's characters need at least {too_small[2]}.") from None
        raise
    return proto.getvalue()


def lines(document: str) -> Iterator[str]:
    """Yield the lines of a document, long ones in pieces."""
    for line in document.split("\n"):
        for start in range(0, len(line), LINE_CHARACTERS):
            yield line[start : start + LINE_CHARACTERS]


def vocabulary_file(preset: Path) -> Path | None:
    """Return the SentencePiece file of a preset folder, or None where the tokenizer is of another kind."""
    path = preset / "assets" / "tokenizer" / "vocabulary.spm"
    if not path.is_file() or read_json(preset / "tokenizer.json")["class_name"] not in PLAIN:
        return None
    return path


class SentencePiece:
    """Text to ids and back by a SentencePiece model."""

    def __init__(self, path: str | Path):
        """Load a serialized model."""
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=Path(path).read_bytes())
        self.size = self.processor.vocab_size()
        ids = {"bos": self.processor.bos_id(), "eos": self.processor.eos_id(), "pad": self.processor.pad_id()}
        self.special = ids | {"pad": max(0, ids["pad"])}  # keras-hub pads with 0 where a vocabulary has no piece for it

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return self.processor.encode(texts, num_threads=1)


class KerasHub:
    """Text to ids by the tokenizer of any preset folder; needs tpulm.training.runtime.start first."""

    def __init__(self, preset: str | Path):
        """Load the tokenizer of a preset folder."""
        import keras_hub

        self.tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(str(preset))
        self.size = self.tokenizer.vocabulary_size()
        self.special = {
            "bos": self.tokenizer.start_token_id,
            "eos": self.tokenizer.end_token_id,
            "pad": self.tokenizer.pad_token_id,
        }

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return [list(map(int, ids)) for ids in self.tokenizer(texts)]


def load_tokenizer(path: str, start: Callable[[], None]) -> SentencePiece | KerasHub:
    """Return the tokenizer of a vocabulary file or of a preset folder; calls `start` where it needs Keras."""
    if not Path(path).is_dir():
        return SentencePiece(path)
    vocabulary = vocabulary_file(Path(path))
    if vocabulary:
        return SentencePiece(vocabulary)
    start()
    return KerasHub(path)


def tokenize(
    batches: Iterable[list[str]], tokenizer: SentencePiece | KerasHub
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids of documents in batches: <bos> before each, where the vocabulary has it, and <eos> after each.

    Each batch: ids int32 [tokens], one document after another; the number of each document's, int64 [documents]
    """
    bos, eos = tokenizer.special["bos"], tokenizer.special["eos"]
    opening = [] if bos is None else [bos]  # Qwen's vocabularies have none
    for texts in batches:
        encoded = [[*opening, *ids, eos] for ids in tokenizer.encode(texts)]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        yield np.fromiter((i for ids in encoded for i in ids), np.int32, int(lengths.sum())), lengths


def describe(tokenizer: SentencePiece | KerasHub, path: str | Path) -> dict:
    """Return what a manifest says of a tokenizer: tokenizer_sha256, vocab_size, special_ids.

    path  as for `load_tokenizer`; the SHA-256 is that of the vocabulary file, or of those of the folder's tokenizer
    """
    path = Path(path)
    file = vocabulary_file(path) if path.is_dir() else path
    if file:
        digest = sha256(file)
    else:
        files = sorted((path / "assets" / "tokenizer").rglob("*"))
        parts = [path / "tokenizer.json", *(part for part in files if part.is_file())]
        digest = hashlib.sha256("".join(map(sha256, parts)).encode()).hexdigest()
    return {"tokenizer_sha256": digest, "vocab_size": tokenizer.size, "special_ids": tokenizer.special}
