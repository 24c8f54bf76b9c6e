"""The ids of distinct words, for a tokenizer that cuts each word by itself."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Ids of texts: those of one after another, int32 [tokens]; and the number of each text's, int64 [texts].
Ids = tuple[np.ndarray, np.ndarray]
WORDS_AT_ONCE = 1 << 17  # encoded by one call of the library, whose results take memory
WORDS_OF_A_TEXT = 256  # that are encoded as one text, where that is possible
KNOWN_WORDS = 1 << 20  # whose ids are kept for the documents to come, about


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
        if len(self.words) > KNOWN_WORDS:
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

    def __init__(self, tokenizer: "Tokenizer"):
        """Take the tokenizer."""
        self.tokenizer = tokenizer

    def encode(self, words: pa.LargeStringArray) -> Ids:
        """Return the ids of words, without special tokens."""
        return flat(self.tokenizer.encode_batch_fast(words.to_pylist(), add_special_tokens=False))


class MarkedWords(AnyWords):
    """Encodes words with a tokenizer that marks where each begins (Metaspace), many as one text: in half of the time.

    Only the mark tells where the ids of a word begin, so that words with another mark or space are encoded one by one.
    """

    def __init__(self, tokenizer: "Tokenizer", mark: str, replacements: list[tuple[str, str]]):
        """Take a tokenizer of which `marking` returned the mark and the replacements."""
        from tokenizers import Tokenizer

        super().__init__(tokenizer)
        self.mark, self.replacements = mark, replacements
        # No normalizer, no added tokens: what is left for them to do is done here.
        self.bare = Tokenizer(tokenizer.model)
        self.bare.pre_tokenizer = tokenizer.pre_tokenizer
        vocabulary = self.bare.get_vocab(with_added_tokens=False)
        self.begins = np.zeros(max(vocabulary.values()) + 1, bool)
        self.begins[[number for piece, number in vocabulary.items() if mark in piece]] = True

    def encode(self, words: pa.LargeStringArray) -> Ids:
        """Return the ids of words, without special tokens."""
        texts = words
        for pattern, content in self.replacements:
            texts = pc.replace_substring(texts, pattern, content)
        space, nothing = pa.scalar(" ", pa.large_string()), pa.scalar("", pa.large_string())
        texts = pc.if_else(pc.starts_with(texts, " "), texts, pc.binary_join_element_wise(space, texts, nothing))
        spaces, marks = pc.count_substring(texts, " "), pc.count_substring(texts, self.mark)
        alone = pc.or_(pc.not_equal(spaces, 1), pc.not_equal(marks, 0)).to_numpy(zero_copy_only=False)
        together = self.encode_together(texts.filter(pa.array(~alone)) if alone.any() else texts)
        if together is None:
            return super().encode(words)
        return interleaved(alone, super().encode(words.filter(pa.array(alone))), together) if alone.any() else together

    def encode_together(self, words: pa.LargeStringArray) -> Ids | None:
        """Return the ids of words that begin with a space each; None where these do not tell where a word begins.

        A piece with the mark can only be at the beginning of a word. So if there are as many as there are words, each
        word begins with one. There are fewer where the vocabulary has not the mark.
        """
        starts = [*range(0, len(words), WORDS_OF_A_TEXT), len(words)]
        offsets = np.frombuffer(words.buffers()[1], np.int64)[words.offset :][starts].tolist() if len(words) else [0]
        data = words.buffers()[2]
        texts = [data[start:stop].to_pybytes().decode() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]
        ids, _ = flat(self.bare.encode_batch_fast(texts, add_special_tokens=False))
        begins = np.flatnonzero(self.begins[ids])
        return (ids, np.diff(begins, append=len(ids))) if len(begins) == len(words) else None


def flat(encodings: list) -> Ids:
    """Return the ids of encodings of the library."""
    parts = [np.array(encoding.ids, np.int32) for encoding in encodings]
    return np.concatenate(parts or [np.empty(0, np.int32)]), np.array([len(part) for part in parts], np.int64)


def interleaved(where: np.ndarray, ones: Ids, others: Ids) -> Ids:
    """Return the ids of texts in their order: `ones` are those where `where`, bool of shape [texts], is true."""
    lengths = np.empty(len(where), np.int64)
    lengths[where], lengths[~where] = ones[1], others[1]
    source = np.repeat(where, lengths)
    ids = np.empty(len(source), np.int32)
    ids[source], ids[~source] = ones[0], others[0]
    return ids, lengths
