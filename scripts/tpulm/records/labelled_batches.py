"""Batches of a task's examples: which ones, and their tokens and labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tpulm.records.order import batch_records
from tpulm.specs.label_heads import CLASS, NUMBER, TOKEN_CLASSES
from tpulm.specs.record_arrays import EVALUATION_BATCH

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

ALL = slice(None)
WORDS = "words"
Arrays = dict[str, np.ndarray]


class Pieces(Protocol):
    """The tokenizer of a causal model."""

    @property
    def special(self) -> Mapping[str, Any]:
        """Ids of bos, which may be None, eos and pad."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""


def encode(tokenizer: "Tokenizer", columns: Mapping[str, list], predict: str, length: int, pad: int) -> Arrays:
    """Return the examples of a split as arrays, each with the examples in front.

    columns  of the split, see tpulm.corpus.examples; predict  of `tpulm.specs.label_heads`
    length   tokens of an example, special ones included: the longest text is cut off first, the rest is padded

    input_ids, attention_mask   int32 [examples, length]
    labels   int32 [examples] of a class, float32 of a number; int32 [examples, length] where words have labels
    weights  float32 of the shape of labels: 0 for a token that is not the first one of its word
    words    int32 [examples, length] where words have labels: the number of the word where the weight is 1, from 0. It
             names predictions (`items_of`), and is in no batch
    """
    tokenizer.enable_truncation(length)  # the longest text first
    texts: Sequence = columns["text"]
    if "text_pair" in columns:
        texts = list(zip(texts, columns["text_pair"], strict=True))
    encodings = tokenizer.encode_batch(list(texts))
    shape = (len(encodings), length)
    arrays = padded([encoding.ids for encoding in encodings], length, pad)
    if predict != TOKEN_CLASSES:
        return arrays | labelled(columns, predict)
    labels, weights, numbers = (np.zeros(shape, kind) for kind in (np.int32, np.float32, np.int32))
    for row, (encoding, words, given) in enumerate(zip(encodings, columns["words"], columns["label"], strict=True)):
        for token, word in first_tokens(encoding, words).items():
            labels[row, token], weights[row, token], numbers[row, token] = given[word], 1.0, word
    return arrays | {"labels": labels, "weights": weights, WORDS: numbers}


def encode_causal(tokenizer: Pieces, columns: Mapping[str, list], predict: str, length: int) -> Arrays:
    """Return the examples of a split as arrays for a causal model, as `encode` does: of a class or of a number.

    An example is <bos>, the text, <eos>, and where there is a second text, that and <eos> (Radford et al. 2018): the
    last token has seen all others. Without a <bos>, <eos> begins it.
    """
    special = tokenizer.special
    begin, end = special["eos"] if special["bos"] is None else special["bos"], special["eos"]
    texts = [tokenizer.encode(columns[name]) for name in ("text", "text_pair") if name in columns]
    rows = []
    for parts in zip(*texts, strict=True):
        kept = shortened([len(part) for part in parts], length - 1 - len(parts))
        rows.append([begin] + [token for part, size in zip(parts, kept, strict=True) for token in (*part[:size], end)])
    return padded(rows, length, special["pad"] or 0) | labelled(columns, predict)


def shortened(sizes: Sequence[int], most: int) -> list[int]:
    """Return how much is kept of parts of these sizes so that all are `most` at most: the longest is cut off first."""
    kept = list(sizes)
    while sum(kept) > most:
        longest = kept.index(max(kept))
        others = [size for place, size in enumerate(kept) if place != longest]
        kept[longest] = max(most - sum(others), min(kept[longest] - 1, *others)) if others else most
    return kept


def padded(rows: Sequence[Sequence[int]], length: int, pad: int) -> Arrays:
    """Return rows of tokens as input_ids and attention_mask, see `encode`."""
    shape = (len(rows), length)
    arrays = {"input_ids": np.full(shape, pad, np.int32), "attention_mask": np.zeros(shape, np.int32)}
    for row, ids in enumerate(rows):
        arrays["input_ids"][row, : len(ids)] = ids
        arrays["attention_mask"][row, : len(ids)] = 1
    return arrays


def labelled(columns: Mapping[str, list], predict: str) -> Arrays:
    """Return labels and weights of examples with one label each, see `encode`."""
    labels = np.array(columns["label"], {CLASS: np.int32, NUMBER: np.float32}[predict])
    return {"labels": labels, "weights": np.ones(len(labels), np.float32)}


def first_tokens(encoding: "Encoding", words: Sequence[str]) -> dict[int, int]:
    """Return the number of the first token of each word, with the word's.

    A word has none if it is cut off, or if the tokenizer drops all of it.

    encoding  of the words with a space between two. A token may begin with the space before it
    """
    found: dict[int, int] = {}
    tokens = [(index, begin, stop) for index, (begin, stop) in enumerate(encoding.offsets) if stop]
    start, place = 0, 0
    for number, word in enumerate(words):
        while place < len(tokens) and tokens[place][2] <= start:
            place += 1
        if place < len(tokens) and tokens[place][1] < start + len(word):
            found.setdefault(tokens[place][0], number)
        start += len(word) + 1
    return found


def training_batch(arrays: Arrays, recipe: Mapping, step: int, rows: slice = ALL) -> Arrays:
    """Return these rows of global batch `step` (counted from 0): of every epoch each example once, in random order.

    recipe  batch_size and seed: the examples of a step depend on nothing else
    """
    indices = batch_records(len(arrays["input_ids"]), recipe["seed"], recipe["batch_size"], step)[rows]
    return {name: array[indices] for name, array in arrays.items() if name != WORDS}


def evaluation_batches(arrays: Arrays) -> Iterator[Arrays]:
    """Yield all examples in their order, in batches of one size; the last one is filled up with rows of weight 0."""
    for start in range(0, len(arrays["input_ids"]), EVALUATION_BATCH):
        batch = {name: array[start : start + EVALUATION_BATCH] for name, array in arrays.items() if name != WORDS}
        short = EVALUATION_BATCH - len(batch["input_ids"])
        yield {name: np.pad(array, [(0, short)] + [(0, 0)] * (array.ndim - 1)) for name, array in batch.items()}


def items_of(items: Sequence[str], arrays: Arrays) -> list[str]:
    """Return the name of each prediction that counts: its example's, and for a word its number in there, from 0.

    items  of the examples; arrays  as `encode` returns them
    """
    if arrays["weights"].ndim == 1:
        return list(items)
    rows = zip(items, arrays["weights"] > 0, arrays[WORDS], strict=True)
    return [f"{item}:{word:03d}" for item, first, numbers in rows for word in numbers[first]]
