"""The ids of distinct words, for a tokenizer that cuts each word by itself."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from tpulm.tokenization.viterbi import Ids, Segmenter, flat, interleaved

WORDS_AT_ONCE = 1 << 17  # encoded by one call of the library, whose results take memory
WORDS_OF_A_TEXT = 256  # that are encoded as one text, where that is possible
KNOWN_WORDS, KNOWN_BYTES = 1 << 20, 1 << 28  # at most, about, whose ids are kept for the documents to come


class KnownWords:
    """The words that came so far, and their ids.

    words   distinct
    ids     int32 of shape [tokens], those of one word after another
    starts  where the ids of each word begin, and those of the last one end: int64 of shape [words + 1]
    """

    def __init__(self, encode: Callable[[pa.LargeStringArray], Ids]):
        """Start with no word; `encode` returns the ids of new ones."""
        self.encode = encode
        self.forget()

    def forget(self) -> None:
        """Forget all words."""
        self.words = pa.array([], pa.large_string())
        self.ids, self.starts = np.empty(0, np.int32), np.zeros(1, np.int64)

    def look_up(self, words: pa.LargeStringArray) -> np.ndarray:
        """Return the number of each of these words, which are distinct, among the known ones: int64 of shape [words].

        New words are encoded, and known from then on.
        """
        if len(self.words) > KNOWN_WORDS or self.words.nbytes + self.ids.nbytes > KNOWN_BYTES:
            self.forget()
        found = pc.index_in(words, self.words)
        new = words.filter(found.is_null())
        numbers = found.fill_null(-1).to_numpy().astype(np.int64)
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
    """Encodes words with a tokenizer that only marks where each begins (Metaspace) before its model cuts it."""

    def __init__(self, tokenizer: Tokenizer, mark: str, ends: str, replacements: list[tuple[str, str]], spec: dict):
        """Take a tokenizer of which `marking` returned the mark, what ends a word and the replacements.

        spec  tokenizer.json
        """
        super().__init__(tokenizer)
        self.mark, self.ends, self.replacements = mark, ends, replacements
        # No normalizer, no added tokens: what is left for them to do is done here.
        self.bare = Tokenizer(tokenizer.model)
        self.bare.pre_tokenizer = tokenizer.pre_tokenizer
        vocabulary = self.bare.get_vocab(with_added_tokens=False)
        self.begins = np.zeros(max(vocabulary.values()) + 1, bool)
        self.begins[[number for piece, number in vocabulary.items() if mark in piece]] = True
        self.segmenter = segmenter_of(spec["model"])
        # Words that have the token for what is unknown in them are left to the library.
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
        other = super().encode(words.filter(pc.invert(plain)))
        return interleaved(plain.to_numpy(zero_copy_only=False), self.encode_plain(texts.filter(plain)), other)

    def encode_plain(self, texts: pa.LargeStringArray) -> Ids:
        """Return the ids of words that are all a space and, after it, neither a space nor the mark."""
        if not self.segmenter:
            return self.encode_together(texts)
        characters = np.frombuffer(content(texts).decode().encode("utf-32-le"), np.int32).copy()
        lengths = pc.utf8_length(texts).to_numpy(zero_copy_only=False)
        characters[np.cumsum(lengths) - lengths] = ord(self.mark)
        fits = self.segmenter.fits(characters, lengths)
        cut = self.segmenter.encode(characters[np.repeat(fits, lengths)], lengths[fits])
        return cut if fits.all() else interleaved(fits, cut, self.encode_together(texts.filter(pa.array(~fits))))

    def encode_together(self, texts: pa.LargeStringArray) -> Ids:
        """Return the same from the library, which gets many words as one text: that takes two thirds of the time.

        A piece with the mark can only be at the beginning of a word. So if there are as many as there are words, each
        word begins with one. There are fewer where the vocabulary has not the mark.
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
    """Return a function that cuts words as a model does; None where the model does more.

    model  of tokenizer.json
    """
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
