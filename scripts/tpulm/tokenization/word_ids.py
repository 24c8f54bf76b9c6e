"""The ids of distinct words, for a tokenizer that cuts each word by itself."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

# Ids of texts: those of one after another, int32 [tokens]; and the number of each text's, int64 [texts].
Ids = tuple[np.ndarray, np.ndarray]

WORDS_AT_ONCE = 1 << 17  # encoded by one call of the library, whose results take memory
KNOWN_WORDS, KNOWN_BYTES = 1 << 20, 1 << 28  # at most, about, whose ids are kept for the documents to come


class KnownWords:
    """The words that came so far, and their ids.

    words   distinct
    ids     int32 of shape [tokens], those of one word after another
    starts  where the ids of each word begin, and those of the last one end: int64 of shape [words + 1]
    """

    def __init__(self, tokenizer: Tokenizer):
        """Start with no word; `tokenizer` encodes new ones."""
        self.tokenizer = tokenizer
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
        # In sorted order they take an eighth less time: words with the same beginning share pieces.
        order = pc.sort_indices(new).to_numpy()
        new = new.take(order)
        numbers = found.fill_null(-1).to_numpy().astype(np.int64)
        numbers[np.flatnonzero(numbers < 0)[order]] = len(self.words) + np.arange(len(new))
        parts = [
            encode(self.tokenizer, new.slice(start, WORDS_AT_ONCE), add_special_tokens=False)
            for start in range(0, len(new), WORDS_AT_ONCE)
        ]
        ids, lengths = zip((self.ids, np.diff(self.starts)), *parts, strict=True)
        self.words = pa.concat_arrays([self.words, new])
        self.ids, self.starts = np.concatenate(ids), np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        return numbers


def encode(tokenizer: Tokenizer, texts: pa.Array, add_special_tokens: bool) -> Ids:
    """Return the ids of strings, each encoded by itself, with or without a tokenizer's special tokens around it."""
    encodings = tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=add_special_tokens)
    parts = [np.array(encoding.ids, np.int32) for encoding in encodings]
    return np.concatenate(parts or [np.empty(0, np.int32)]), np.array([len(part) for part in parts], np.int64)
