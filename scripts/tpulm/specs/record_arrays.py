"""The arrays of one record of a batch: shape and dtype by name.

What tpulm.records makes, a compiled step takes, and a plan compiles for.
"""

import math
from collections.abc import Mapping
from typing import Any

# Records of a held-out split that a masked model reads at once.
EVALUATION_BATCH = 64
# Records of a held-out split that a causal model is measured on, evenly spread, at most: enough for a standard error
# of about 0.01 nats.
HELD_OUT_RECORDS = 2048

Arrays = dict[str, tuple[tuple[int, ...], str]]


def predictions_per_record(sequence_length: int, mlm_probability: float) -> int:
    """Return how many positions of a record a masked model predicts at most."""
    return math.ceil(sequence_length * mlm_probability - 1e-9)


# Of a record where the responses count: 1 for a token of one, which is to be predicted.
LOSS_MASK = "loss_mask"
# By packing: the features of a record that a batch needs beside its tokens.
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
    return arrays | {name: (shape, "int32") for name, there in more.items() if there}


def predicted_tokens(batch: Mapping) -> Any:
    """Return which tokens but the first of each record are predicted, bool [n, sequence_length]; of a JAX batch, too.

    These are no padding. With segments none is the first token of a document, <bos>: the text before it says nothing
    of it. Where the responses count, they are those of one.
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
