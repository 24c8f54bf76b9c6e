"""Records for causal language models, from files of tokens: numpy only.

A file of tokens (rule tokenize_causal) is safetensors with
tokens   int32 [tokens], the documents one after another, without special tokens
offsets  int64 [documents + 1], where each begins and the last one ends

A record is `length` + 1 tokens: the model reads the first `length`, and predicts the last `length`.
"""

from collections.abc import Iterator

import numpy as np

from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.records.order import batch_records

ALL = slice(None)
HELD_OUT_RECORDS = 2048  # of a split, at most, evenly spread: enough for a standard error of about 0.01 nats


class Packed:
    """Documents end to end, cut into windows: <bos> document <eos> <bos> document <eos> ...

    Windows overlap by one token, so that each token but the first is predicted once.
    """

    def __init__(self, path: str, length: int, special: dict[str, int]):
        """Read a file of tokens; `special` has the ids bos, eos and pad. Raises UserError when it is too short."""
        arrays = load_arrays(path)
        self.stream = pack(arrays["tokens"], arrays["offsets"], special["bos"], special["eos"])
        self.length = length
        self.records = (len(self.stream) - 1) // length
        if not self.records:
            raise UserError(
                f"{path} holds {len(self.stream)} tokens with those that mark documents; "
                f"sequence_length {length} needs {length + 1}."
            )

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens int32 [n, length + 1] and, all true, which of them are no padding: bool, the same shape."""
        tokens = self.stream[indices[:, None] * self.length + np.arange(self.length + 1)]
        return tokens, np.ones(tokens.shape, bool)


class OnePerRecord:
    """A document per record: <bos> document <eos>, its end cut off where it is too long, padded.

    As keras-hub's CausalLMPreprocessor does it: a document that was cut has its <eos>, too.
    """

    def __init__(self, path: str, length: int, special: dict[str, int]):
        """Read a file of tokens; `special` has the ids bos, eos and pad."""
        arrays = load_arrays(path)
        self.tokens, self.offsets = arrays["tokens"], arrays["offsets"]
        self.length, self.special = length, special
        self.records = len(self.offsets) - 1

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens int32 [n, length + 1] and which of them are no padding: bool, the same shape."""
        tokens = np.full((len(indices), self.length + 1), self.special["pad"], np.int32)
        mask = np.zeros(tokens.shape, bool)
        for row, index in enumerate(indices):
            document = self.tokens[self.offsets[index] : self.offsets[index + 1]][: self.length - 1]
            tokens[row, : len(document) + 2] = [self.special["bos"], *document, self.special["eos"]]
            mask[row, : len(document) + 2] = True
        return tokens, mask


def pack(tokens: np.ndarray, offsets: np.ndarray, bos: int, eos: int) -> np.ndarray:
    """Return all documents with their marks as one stream: int32 [tokens + 2 * documents]."""
    lengths = np.diff(offsets)
    starts = offsets[:-1] + 2 * np.arange(len(lengths))
    stream = np.empty(len(tokens) + 2 * len(lengths), np.int32)
    inside = np.ones(len(stream), bool)
    inside[starts] = inside[starts + lengths + 1] = False
    stream[inside] = tokens
    stream[starts] = bos
    stream[starts + lengths + 1] = eos
    return stream


def training_batch(records: Packed | OnePerRecord, recipe: dict, step: int, rows: slice = ALL) -> dict[str, np.ndarray]:
    """Return these rows of global batch `step` (counted from 0) of a run: tokens and mask, as `read` returns them.

    recipe  batch_size and seed of the run: the records of a step depend on nothing else
    """
    indices = batch_records(records.records, recipe["seed"], recipe["batch_size"], step)
    tokens, mask = records.read(indices[rows])
    return {"tokens": tokens, "mask": mask}


def held_out_batches(records: Packed | OnePerRecord, recipe: dict) -> Iterator[dict[str, np.ndarray]]:
    """Yield the records by which a split is measured, in batches of one size: tokens and mask.

    recipe  batch_size and microbatches of the run: as many sequences go at once as training has in memory
    The last batch is filled up with rows that do not count.
    """
    size = recipe["batch_size"] // recipe["microbatches"]
    indices = held_out_indices(records.records)
    for start in range(0, len(indices), size):
        tokens, mask = records.read(indices[start : start + size])
        short = ((0, size - len(tokens)), (0, 0))
        yield {"tokens": np.pad(tokens, short), "mask": np.pad(mask, short)}


def held_out_indices(records: int) -> np.ndarray:
    """Return which records of a held-out split are measured: int64, all of a small split."""
    return np.unique(np.linspace(0, records - 1, min(records, HELD_OUT_RECORDS)).astype(np.int64))
