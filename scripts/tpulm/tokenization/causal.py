"""The tokenizers of causal language models: plain SentencePiece or `tokenizers` if possible, otherwise keras-hub."""

import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tpulm.compat.keras_hub_tokenizers import tokenizer_of
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, sha256
from tpulm.tokenization.byte_level import OfBytes, Places, cut_words

SPECIAL = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}  # ids as in the published Gemma vocabularies
MARKS = ("<bos>", "<eos>")  # their pieces there
# Tokenizers of keras-hub that are just a SentencePiece model.
PLAIN = ("GemmaTokenizer", "Gemma3Tokenizer", "LlamaTokenizer", "MistralTokenizer")
# Runs of spaces are pieces of their own, as in Gemma's, so that indentation costs one token.
USER_DEFINED = ["\n", *("\u2581" * n for n in range(2, 17))]
CLOSING = 1  # special tokens at the end of a document: <eos>
LINE_CHARACTERS = 4_000  # SentencePiece skips a line that is longer than it expects


def train_vocabulary(documents: Iterable[str], vocab_size: int, where: str, marks: tuple[str, str] = MARKS) -> bytes:
    """Train a SentencePiece model of byte-pair encoding (Sennrich 2016), with bytes for rare characters.

    Returns its proto. The published vocabularies of Gemma are such models, and llama.cpp's converter takes any
    SentencePiece vocabulary of the architectures that are trained here for one.

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
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            user_defined_symbols=USER_DEFINED,
            max_sentence_length=4 * LINE_CHARACTERS + 4,  # bytes
            num_threads=1,  # as the rule requests
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

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.processor.decode(ids)

    def piece(self, token: int) -> str:
        """Return the text that stands for a token."""
        return self.processor.id_to_piece(token)

    def places(self, texts: list[str]) -> list[Places]:
        """Return the characters of each of these ids; of the bytes of a rare character, only the last one has it."""
        found = self.processor.encode(texts, return_type="offset_mapping", return_bytes=False, num_threads=1)
        return [one["offsets"] for one in found]


class KerasHub:
    """Text to ids by the tokenizer of any preset folder; needs tpulm.training.runtime.start first."""

    def __init__(self, preset: str | Path):
        """Load the tokenizer of a preset folder."""
        import keras_hub

        self.tokenizer = cut_words(keras_hub.tokenizers.Tokenizer.from_preset(str(preset)))
        self.size = self.tokenizer.vocabulary_size()
        self.special = {
            "bos": self.tokenizer.start_token_id,
            "eos": self.tokenizer.end_token_id,
            "pad": self.tokenizer.pad_token_id,
        }

    @property
    def behind(self) -> Any:
        """What is behind a tokenizer with byte-pair encoding: one of the library `tokenizers`; None for others."""
        return tokenizer_of(self.tokenizer)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return [list(map(int, ids)) for ids in self.tokenizer(texts)]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        special = {self.special["bos"], self.special["eos"]}  # for padding, some have an ordinary token
        return self.tokenizer.detokenize([token for token in ids if token not in special])

    def piece(self, token: int) -> str:
        """Return the text that stands for a token."""
        return self.tokenizer.id_to_token(token)

    def places(self, texts: list[str]) -> list[Places]:
        """Return the characters of each of these ids. Raises UserError where the tokenizer does not say."""
        if getattr(self.tokenizer, "proto", None):
            processor = sentencepiece.SentencePieceProcessor(model_proto=self.tokenizer.proto)
            found = processor.encode(texts, return_type="offset_mapping", return_bytes=False, num_threads=1)
            ids, places = [one["ids"] for one in found], [one["offsets"] for one in found]
        elif self.behind is not None:
            encodings = self.behind.encode_batch(texts)
            ids, places = [one.ids for one in encodings], [one.offsets for one in encodings]
        else:
            ids, places = [], []
        if ids != self.encode(texts):
            raise UserError(
                f"the base model's {type(self.tokenizer).__name__} does not give the characters of a token, which "
                "training on responses only needs; allowed: SentencePiece or byte-pair encoding tokenizers."
            )
        return places


CausalTokenizer = SentencePiece | OfBytes | KerasHub


def load_tokenizer(path: str, start: Callable[[], None]) -> CausalTokenizer:
    """Return the tokenizer of a vocabulary file or of a preset folder; calls `start` where it needs Keras."""
    if not Path(path).is_dir():
        return OfBytes(path) if path.endswith(".json") else SentencePiece(path)
    vocabulary = vocabulary_file(Path(path))
    if vocabulary:
        return SentencePiece(vocabulary)
    start()
    return KerasHub(path)


def tokenize(
    batches: Iterable[list[str]],
    tokenizer: CausalTokenizer,
    responses: Iterable[list[list[tuple[int, int]]]] | None = None,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the ids of documents in batches: <bos> before each, where the vocabulary has it, and <eos> after each.

    responses  where they are in the documents of each batch: characters, as (start, stop); None where all counts

    Each batch: ids int32 [tokens], one document after another; the number of each document's, int64 [documents]; with
    responses, which tokens belong to one, int32 [tokens], see `completion_mask`
    """
    bos, eos = tokenizer.special["bos"], tokenizer.special["eos"]
    opening = [] if bos is None else [bos]  # Qwen's vocabularies have none
    spans = itertools.repeat(None) if responses is None else iter(responses)
    for texts in batches:
        encoded = [[*opening, *ids, eos] for ids in tokenizer.encode(texts)]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        ids = np.fromiter((i for ids in encoded for i in ids), np.int32, int(lengths.sum()))
        own = next(spans)
        if own is None:
            yield ids, lengths
        else:
            found = zip(texts, tokenizer.places(texts), own, strict=True)
            yield ids, lengths, np.concatenate([completion_mask(*one)[1 - len(opening) :] for one in found])


def check_control_tokens(batches: Iterable[list[str]], tokenizer: CausalTokenizer) -> Iterator[list[str]]:
    """Yield documents that a chat template has written.

    Raises UserError where one has <bos> or <eos> between its turns, and the tokenizer reads that as plain text.
    """
    control = [tokenizer.special[name] for name in ("bos", "eos") if tokenizer.special[name] is not None]
    pieces = {tokenizer.piece(token): token for token in control}
    plain = [piece for piece, token in pieces.items() if tokenizer.encode([piece]) != [[token]]]
    for texts in batches:
        for piece in plain:
            if any(piece in text for text in texts):
                raise UserError(
                    f"the chat template writes {piece} between turns, which the tokenizer of the base model reads as "
                    "plain text; allowed: another template, or conversations of one turn."
                )
        yield texts


def completion_mask(text: str, places: Places, responses: list[tuple[int, int]]) -> np.ndarray:
    """Return 1 for each token of a document that belongs to a response and 0 for others: int32 [tokens + 2].

    places  characters of each token, as (start, stop); <bos> and <eos> are not among them

    A token with characters on both sides of a boundary belongs to the response: to say the response, a model has to
    say it. <eos> does where the response ends the text, <bos> never does.
    """
    bounds = np.array(places, np.int64).reshape(-1, 2)
    starts, stops = bounds[:, 0], bounds[:, 1]
    inside = np.zeros(len(bounds) + 2, np.int32)
    for start, stop in responses:
        # A token without a character of its own is the first part of the one at its place.
        inside[1:-1] |= (starts < stop) & ((stops > start) | (starts >= start))
    inside[-1] = any(stop == len(text) for _, stop in responses)
    return inside


def describe(tokenizer: CausalTokenizer, path: str | Path) -> dict:
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
