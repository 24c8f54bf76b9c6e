"""Batches of records for causal language models: their tokens, and masks of padding, documents and responses.

A record has one token more than the model reads: the model reads all but the last, and predicts all but the first.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tpulm.records.order import BLOCK
from tpulm.records.reader import Records
from tpulm.specs.record_arrays import HELD_OUT_RECORDS, LOSS_MASK, MORE_FEATURES, predicted_tokens

if TYPE_CHECKING:
    from tpulm.records.mixture import Mixture

ALL = slice(None)


def training_batch(records: "Records | Mixture", recipe: dict, step: int, rows: slice = ALL) -> dict[str, np.ndarray]:
    """Return `rows` of global batch `step` (counted from 0) of a run, see `masked_tokens`.

    recipe  batch_size and seed of the run: the records of a step depend on nothing else
    """
    return masked_tokens(records.batch(features_of(records), recipe["seed"], recipe["batch_size"], step, rows))


def held_out_batches(records: Records, recipe: dict) -> Iterator[dict[str, np.ndarray]]:
    """Yield the records of a split that are measured, in batches of one size, see `masked_tokens`.

    recipe  batch_size and microbatches of the run, whose microbatch is the size of these batches
    The last batch is padded with rows that do not count.
    """
    size = recipe["batch_size"] // recipe["microbatches"]
    indices = held_out_indices(len(records))
    for start in range(0, len(indices), size):
        blocks = np.unique(indices[start : start + 2 * size] // BLOCK).tolist()
        batch = arrays(records, indices[start : start + size], blocks.copy)
        short = size - len(batch["tokens"])
        yield {name: np.pad(array, ((0, short), (0, 0))) for name, array in batch.items()}


def predicted(records: Records) -> str:
    """Return which tokens count in the loss: "responses" or "all"."""
    return "responses" if records.manifest.get("responses") else "all"


def features_of(records: "Records | Mixture") -> tuple[str, ...]:
    """Return the features of records that batches have, by their packing and whether the responses count."""
    manifest = records.manifest
    return ("input_ids", *MORE_FEATURES[manifest["packing"]], *((LOSS_MASK,) if manifest.get("responses") else ()))


def arrays(records: Records, indices: np.ndarray, upcoming: Callable[[], Iterable[int]]) -> dict[str, np.ndarray]:
    """Return `masked_tokens` of records; indices, upcoming  see `Records.features`."""
    return masked_tokens(records.features(indices, features_of(records), upcoming))


def masked_tokens(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return tokens, int32 [n, sequence_length + 1], and mask, bool of that shape, False for padding.

    features  `features_of` records
    With `packing: segments` also segment_ids, int32 of that shape: 1, 2, ... for the documents of a record. If the
    responses count also loss_mask, int32 of that shape: 1 for their tokens.
    """
    tokens = features["input_ids"]
    mask = features.get("attention_mask", np.ones_like(tokens))
    more = {name: array for name, array in features.items() if name not in ("input_ids", "attention_mask")}
    return {"tokens": tokens, "mask": mask.astype(bool), **more}


def predicted_ids(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return the ids of a batch that are predicted, int32 [tokens]."""
    return batch["tokens"][:, 1:][predicted_tokens(batch)]


def held_out_indices(records: int) -> np.ndarray:
    """Return the indices of the records of a held-out split that are measured, int64: all of a small split."""
    return np.unique(np.linspace(0, records - 1, min(records, HELD_OUT_RECORDS)).astype(np.int64))


def causal_lm(batch: dict) -> tuple:
    """Return inputs, labels (each next token) and weights of a causal model for a batch.

    inputs   token_ids and padding_mask, int32 [records, sequence_length]; with segment ids, these are the mask
    labels   int32 of that shape
    weights  float32 of that shape, 1 for `predicted_tokens`
    """
    tokens, padding_mask = batch["tokens"], batch.get("segment_ids", batch["mask"])
    inputs = {"token_ids": tokens[:, :-1], "padding_mask": padding_mask[:, :-1].astype("int32")}
    return inputs, tokens[:, 1:], predicted_tokens(batch).astype("float32")
