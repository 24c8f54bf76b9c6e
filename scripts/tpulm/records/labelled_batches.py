"""Batches of the labelled examples of a task: their tokens, labels and weights."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpulm.records.order import batch_records
from tpulm.specs.classification_heads import CLASS, NUMBER
from tpulm.specs.record_arrays import EVALUATION_BATCH

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ALL = slice(None)
Arrays = dict[str, np.ndarray]


def encode_examples(tokenizer: "Tokenizer", columns: Mapping[str, list], predict: str, length: int, pad: int) -> Arrays:
    """Return the arrays of the examples of a split.

    columns  of the split, see tpulm.corpus.examples; predict  CLASS or NUMBER
    length   tokens of an example, special ones included: longer texts are truncated, the longest first

    input_ids, attention_mask   int32 [examples, length]
    labels   [examples], int32 for classes, float32 for numbers; weights  float32 [examples], 1
    """
    tokenizer.enable_truncation(length)  # the longest text first
    texts: Sequence = columns["text"]
    if "text_pair" in columns:
        texts = list(zip(texts, columns["text_pair"], strict=True))
    encodings = tokenizer.encode_batch(list(texts))
    shape = (len(encodings), length)
    arrays = {"input_ids": np.full(shape, pad, np.int32), "attention_mask": np.zeros(shape, np.int32)}
    for row, encoding in enumerate(encodings):
        arrays["input_ids"][row, : len(encoding.ids)] = encoding.ids
        arrays["attention_mask"][row, : len(encoding.ids)] = 1
    labels = np.array(columns["label"], {CLASS: np.int32, NUMBER: np.float32}[predict])
    return arrays | {"labels": labels, "weights": np.ones(len(labels), np.float32)}


def training_batch(arrays: Arrays, recipe: Mapping, step: int, rows: slice = ALL) -> Arrays:
    """Return `rows` of global batch `step` (counted from 0): each epoch has each example once, in random order.

    recipe  batch_size and seed: the examples of a step depend on nothing else
    """
    indices = batch_records(len(arrays["input_ids"]), recipe["seed"], recipe["batch_size"], step)[rows]
    return {name: array[indices] for name, array in arrays.items()}


def evaluation_batches(arrays: Arrays) -> Iterator[Arrays]:
    """Yield all examples in order, in batches of one size; the last one is padded with rows of weight 0."""
    for start in range(0, len(arrays["input_ids"]), EVALUATION_BATCH):
        batch = {name: array[start : start + EVALUATION_BATCH] for name, array in arrays.items()}
        short = EVALUATION_BATCH - len(batch["input_ids"])
        yield {name: np.pad(array, [(0, short)] + [(0, 0)] * (array.ndim - 1)) for name, array in batch.items()}


def labelling(batch: dict) -> tuple:
    """Return inputs, labels and weights of a model with a classification head, for a batch.

    labels   int32, or float32 for numbers, [records]; weights  float32 [records], 0 where nothing is predicted
    """
    inputs = {"token_ids": batch["input_ids"], "padding_mask": batch["attention_mask"]}
    return inputs, batch["labels"], batch["weights"]
