"""Encode distinct words, with a tokenizer that cuts each word by itself, and remember their ids."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from tpulm.tokenization.viterbi import Ids, Segmenter, flat, interleaved

WORDS_AT_ONCE = 1 << 17  # words that one call of the library encodes; its results take memory
WORDS_OF_A_TEXT = 256  # words that are encoded as one text, if that is possible
KNOWN_WORDS, KNOWN_BYTES = 1 << 20, 1 << 28  # most words, and most bytes, whose ids are remembered


class KnownWords:
    """The words so far, and their ids.

    words   distinct words
    ids     ids of one word after another, int32 of shape [tokens]
    starts  where the ids of each word begin, and those of the last word end: int64 of shape [words + 1]
    """

    def __init__(self, encode: Callable[[pa.LargeStringArray], Ids]):
        """Start without words; `encode` returns the ids of new ones."""
        self.encode = encode
        self.forget()

    def forget(self) -> None:
        """Forget all words."""
        self.words = pa.array([], pa.large_string())
        self.ids, self.starts = np.empty(0, np.int32), np.zeros(1, np.int64)

    def look_up(self, words: pa.LargeStringArray) -> np.ndarray:
        """Return the index of each of these distinct words in `words`, after adding the new ones: int64 [words]."""
        if len(self.words) > KNOWN_WORDS or self.words.nbytes + self.ids.nbytes > KNOWN_BYTES:
            self.forget()
        indices = pc.index_in(words, self.words)
        new = words.filter(indices.is_null())
        numbers = indices.fill_null(-1).to_numpy().astype(np.int64)
        numbers[numbers < 0] = len(self.words) + np.arange(len(new))
        parts = [self.encode(new.slice(start, WORDS_AT_ONCE)) for start in range(0, len(new), WORDS_AT_ONCE)]
        ids, lengths = zip((self.ids, np.diff(self.starts)), *parts, strict=True)
        self.words = pa.concat_arrays([self.words, new])
        self.ids, self.starts = np.concatenate(ids), np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        return numbers


class AnyWords:
    """Encodes words with a tokenizer, one by one."""

    def __init__(self, tokenizer: Tokenizer):
        """Take the tokenizer."""
        self.tokenizer = tokenizer

    def encode(self, words: pa.LargeStringArray) -> Ids:
        """Return the ids of words, without special tokens."""
        return flat(self.tokenizer.encode_batch_fast(words.to_pylist(), add_special_tokens=False))


class MarkedWords(AnyWords):
    """Encodes words with a tokenizer that only marks the beginning of each (Metaspace) before its model cuts it."""

    def __init__(self, tokenizer: Tokenizer, mark: str, ends: str, replacements: list[tuple[str, str]], spec: dict):
        """Take a tokenizer; mark, ends, replacements  as `marking` returns them; spec  tokenizer.json."""
        super().__init__(tokenizer)
        self.mark, self.ends, self.replacements = mark, ends, replacements
        # It has no normalizer and no added tokens: `encode` does their work.
        self.bare = Tokenizer(tokenizer.model)
        self.bare.pre_tokenizer = tokenizer.pre_tokenizer
        vocabulary = self.bare.get_vocab(with_added_tokens=False)
        self.begins = np.zeros(max(vocabulary.values()) + 1, bool)
        self.begins[[number for piece, number in vocabulary.items() if mark in piece]] = True
        self.segmenter = segmenter_of(spec["model"])
        # Words that spell the unknown token are left to the library.
        unknown = spec["model"].get("unk_id")
        self.unknown = spec["model"]["vocab"][unknown][0] if self.segmenter and unknown is not None else None

    def encode(self, words: pa.LargeStringArray) -> Ids:
        """Return the ids of words, without special tokens."""
        texts = words
        for pattern, content in self.replacements:
            texts = pc.replace_substring(texts, pattern, content)
        space, nothing = pa.scalar(" ", pa.large_string()), pa.scalar("", pa.large_string())
        texts = pc.if_else(pc.starts_with(texts, " "), texts, pc.binary_join_element_wise(space, texts, nothing))
        spaces, marks = pc.count_substring(texts, " "), pc.count_substring(texts, self.mark)
        plain = pc.and_(pc.equal(spaces, 1), pc.equal(marks, 0))
        for end in self.ends:
            plain = pc.and_not(plain, pc.match_substring(texts, end))
        if self.unknown:
            plain = pc.and_not(plain, pc.match_substring(texts, self.unknown))
        if pc.all(plain).as_py():
            return self.encode_plain(texts)
        other_ids = super().encode(words.filter(pc.invert(plain)))
        return interleaved(plain.to_numpy(zero_copy_only=False), self.encode_plain(texts.filter(plain)), other_ids)

    def encode_plain(self, texts: pa.LargeStringArray) -> Ids:
        """Return the ids of words that consist of a space and, after it, neither a space nor the mark."""
        if not self.segmenter:
            return self.encode_together(texts)
        characters = np.frombuffer(content(texts).decode().encode("utf-32-le"), np.int32).copy()
        lengths = pc.utf8_length(texts).to_numpy(zero_copy_only=False)
        characters[np.cumsum(lengths) - lengths] = ord(self.mark)
        fits = self.segmenter.fits(characters, lengths)
        cut = self.segmenter.encode(characters[np.repeat(fits, lengths)], lengths[fits])
        return cut if fits.all() else interleaved(fits, cut, self.encode_together(texts.filter(pa.array(~fits))))

    def encode_together(self, texts: pa.LargeStringArray) -> Ids:
        """Return the same ids from the library, which gets many words as one text: that takes two thirds of the time.

        A piece with the mark can only begin a word. So if there are as many as words, each word begins with one. There
        are fewer if the vocabulary lacks the mark.
        """
        data, ends = content(texts), pc.cumulative_sum(pc.binary_length(texts)).to_pylist()
        stops = [*ends[WORDS_OF_A_TEXT - 1 : -1 : WORDS_OF_A_TEXT], *ends[-1:]]
        many = [data[start:stop].decode() for start, stop in zip([0, *stops], stops, strict=False)]
        ids, _ = flat(self.bare.encode_batch_fast(many, add_special_tokens=False))
        begins = np.flatnonzero(self.begins[ids])
        if len(begins) == len(texts):
            return ids, np.diff(begins, append=len(ids))
        return flat(self.bare.encode_batch_fast(texts.to_pylist(), add_special_tokens=False))


def content(texts: pa.LargeStringArray) -> bytes:
    """Return the UTF-8 of texts, one after another."""
    if not len(texts):
        return b""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes() if data else b""


def segmenter_of(model: dict) -> Segmenter | None:
    """Return a segmenter that cuts words as a model of tokenizer.json does; None if the model does more."""
    known = {"type", "unk_id", "vocab", "byte_fallback"}
    if (
        model["type"] != "Unigram"
        or set(model) - known
        or not np.isfinite([score for _, score in model["vocab"]]).all()
    ):
        return None
    try:
        return Segmenter(model["vocab"])
    except ValueError:
        return None
