"""Encode and decode text by a tokenizer.json, of masked and causal models, and mark the tokens of responses."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers import Encoding, Tokenizer, processors

from tpulm.core.errors import UserError
from tpulm.core.files import sha256
from tpulm.tokenization.encoding import template
from tpulm.tokenization.folder import special_ids, vocabulary_size

SPACE = "\u2581"  # SentencePiece's mark for a space
CLOSING = 1  # special tokens at the end of a document: <eos>
Places = list[tuple[int, int]]  # characters of each token, as (start, stop)


class TextTokenizer:
    """A tokenizer of the library `tokenizers` with the ids of its special tokens.

    fast           tokenizer of the library
    size           rows of an embedding
    before, after  ids that it puts around a document
    special        ids by role: bos (None if no token begins a document), eos, pad; for masked models also cls, sep,
                   mask, unk
    """

    def __init__(self, fast: Tokenizer, special: dict[str, int] | None = None):
        """Take a tokenizer; special  special ids, by default those of its template and its padding."""
        padding = fast.padding or {"pad_id": 0}
        fast.no_truncation()
        fast.no_padding()
        self.fast, self.size = fast, vocabulary_size(fast)
        self.before, self.after = template(fast)
        self.special: dict[str, Any] = {}
        if special is not None:
            self.special |= special
            return
        self.special |= {"bos": self.before[0] if self.before else None, "eos": self.after[0], "pad": padding["pad_id"]}
        # A text that spells a special token, such as <eos>, has its characters, as in SentencePiece.
        fast.encode_special_tokens = not self.byte_level

    @classmethod
    def load(cls, path: str | Path, special_tokens_map: str | Path | None = None) -> Self:
        """Load tokenizer.json, and special_tokens_map.json for a masked model."""
        fast = Tokenizer.from_file(str(path))
        return cls(fast, None if special_tokens_map is None else special_ids(fast, special_tokens_map))

    @property
    def byte_level(self) -> bool:
        """Whether its pieces are bytes."""
        return "ByteLevel" in repr(self.fast.decoder)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return [encoding.ids for encoding in self.fast.encode_batch_fast(texts, add_special_tokens=False)]

    def encodings(self, texts: list[str]) -> list[Encoding]:
        """Return the ids of each text with their characters and words, without special tokens."""
        return self.fast.encode_batch(texts, add_special_tokens=False)

    def places(self, texts: list[str]) -> list[Places]:
        """Return the characters of each token of each text, as (start, stop)."""
        return [encoding.offsets for encoding in self.encodings(texts)]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without bos and eos."""
        ends = {self.special["bos"], self.special["eos"]}
        return self.fast.decode([token for token in ids if token not in ends], skip_special_tokens=not self.byte_level)

    def piece(self, token: int) -> str:
        """Return the vocabulary's piece for an id."""
        return self.fast.id_to_token(token)

    def shown(self, token: int) -> str:
        """Return a token as it stands in a text."""
        if self.byte_level:
            return self.fast.decode([token], skip_special_tokens=False)
        return self.piece(token).replace(SPACE, " ")

    def for_transformers(self) -> Tokenizer:
        """Return the tokenizer for AutoTokenizer, which puts bos before a text and nothing after it."""
        fast = Tokenizer.from_str(self.fast.to_str())
        piece = self.piece(self.special["bos"]) if self.special["bos"] is not None else ""
        fast.post_processor = (
            processors.TemplateProcessing(
                single=f"{piece} $A", pair=f"{piece} $A {piece} $B", special_tokens=[(piece, self.special["bos"])]
            )
            if piece
            else None
        )
        return fast


def tokenize(
    batches: Iterable[list[str]],
    tokenizer: TextTokenizer,
    responses: Iterable[list[list[tuple[int, int]]]] | None = None,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the ids of documents in batches: <bos> before each, if the vocabulary has it, and <eos> after each.

    responses  characters of the responses in the documents of each batch, as (start, stop); None if all tokens count

    Each batch: ids int32 [tokens], one document after another; tokens of each document, int64 [documents]; with
    responses, their mask, int32 [tokens], see `completion_mask`
    """
    bos, eos = tokenizer.special["bos"], tokenizer.special["eos"]
    opening = [] if bos is None else [bos]  # Qwen's vocabularies have none
    spans = itertools.repeat(None) if responses is None else iter(responses)
    for texts in batches:
        encoded = [[*opening, *ids, eos] for ids in tokenizer.encode(texts)]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        ids = np.fromiter((i for ids in encoded for i in ids), np.int32, int(lengths.sum()))
        responses_of_batch = next(spans)
        if responses_of_batch is None:
            yield ids, lengths
        else:
            documents = zip(texts, tokenizer.places(texts), responses_of_batch, strict=True)
            masks = [completion_mask(*document)[1 - len(opening) :] for document in documents]
            yield ids, lengths, np.concatenate(masks)


def check_control_tokens(batches: Iterable[list[str]], tokenizer: TextTokenizer) -> Iterator[list[str]]:
    """Yield documents that a chat template has written, unchanged.

    Raises UserError if one has <bos> or <eos> between its turns, and the tokenizer reads that as plain text.
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

    places  characters of each token without <bos> and <eos>, as (start, stop)

    A token with characters on both sides of a boundary belongs to the response, since a model has to generate it. <eos>
    does if the response ends the text, <bos> never does.
    """
    bounds = np.array(places, np.int64).reshape(-1, 2)
    starts, stops = bounds[:, 0], bounds[:, 1]
    inside = np.zeros(len(bounds) + 2, np.int32)
    for start, stop in responses:
        # A token without characters is the first part of the character at its start.
        inside[1:-1] |= (starts < stop) & ((stops > start) | (starts >= start))
    inside[-1] = any(stop == len(text) for _, stop in responses)
    return inside


def describe(tokenizer: TextTokenizer, path: str | Path) -> dict:
    """Return the facts of a tokenizer for a manifest: tokenizer_sha256 (of tokenizer.json), vocab_size, special_ids."""
    return {"tokenizer_sha256": sha256(path), "vocab_size": tokenizer.size, "special_ids": tokenizer.special}
