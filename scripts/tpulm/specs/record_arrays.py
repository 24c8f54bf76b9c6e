"""Shapes and dtypes of the arrays of a record, which tpulm.records makes and compiled steps take."""

import math
from collections.abc import Mapping
from typing import Any

# Batch size at which masked models read a held-out split.
EVALUATION_BATCH = 64
# Records of a held-out split on which a causal model is measured, evenly spread, at most: enough for a standard error
# of about 0.01 nats.
HELD_OUT_RECORDS = 2048

Arrays = dict[str, tuple[tuple[int, ...], str]]


def predictions_per_record(sequence_length: int, mlm_probability: float) -> int:
    """Return the largest number of positions of a record that a masked model predicts."""
    return math.ceil(sequence_length * mlm_probability - 1e-9)


# The feature of records where the responses count: 1 for their tokens.
LOSS_MASK = "loss_mask"
# Features of a record that a batch needs in addition to its tokens, by packing.
MORE_FEATURES: dict[str, tuple[str, ...]] = {
    "concat": (),
    "segments": ("segment_ids",),
    "pad": ("attention_mask",),
}


def masked_arrays(sequence_length: int, mlm_probability: float, packing: str) -> Arrays:
    """Return the arrays of a record for a masked model, as tpulm.records.masked_batches makes them."""
    predictions = (predictions_per_record(sequence_length, mlm_probability),)
    return {
        "input_ids": ((sequence_length,), "int32"),
        "positions": (predictions, "int32"),
        "labels": (predictions, "int32"),
        "weights": (predictions, "float32"),
        **{name: ((sequence_length,), "int32") for name in MORE_FEATURES[packing]},
    }


def causal_arrays(sequence_length: int, packing: str, responses: bool = False) -> Arrays:
    """Return the arrays of a record for a causal model, as tpulm.records.causal_batches makes them.

    One token more than the model reads: each but the first is predicted, or with `responses` those of a response.
    """
    shape = (sequence_length + 1,)
    arrays: Arrays = {"tokens": (shape, "int32"), "mask": (shape, "bool")}
    more = {"segment_ids": packing == "segments", LOSS_MASK: responses}
    return arrays | {name: (shape, "int32") for name, present in more.items() if present}


def predicted_tokens(batch: Mapping) -> Any:
    """Return which tokens after the first of each record are predicted: bool [n, sequence_length], NumPy or JAX.

    Padding is not predicted; with segments, the first token of a document neither, as it does not depend on the text
    before. If the responses count, only their tokens are.
    """
    mask = batch["mask"][:, 1:]
    if (segments := batch.get("segment_ids")) is not None:
        mask = mask & (segments[:, 1:] == segments[:, :-1])
    return mask & (batch[LOSS_MASK][:, 1:] > 0) if LOSS_MASK in batch else mask


def labelled_arrays(sequence_length: int, of_numbers: bool) -> Arrays:
    """Return the arrays of an example of a task, as tpulm.records.labelled_batches makes them.

    of_numbers  whether its label is a number
    """
    return {
        **{name: ((sequence_length,), "int32") for name in ("input_ids", "attention_mask")},
        "labels": ((), "float32" if of_numbers else "int32"),
        "weights": ((), "float32"),
    }
