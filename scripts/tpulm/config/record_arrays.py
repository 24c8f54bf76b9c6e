"""The arrays of one record of a batch: shape and dtype by name.

What tpulm.records makes, a compiled step takes, and a plan compiles for.
"""

import math

Arrays = dict[str, tuple[tuple[int, ...], str]]


def predictions_per_record(sequence_length: int, mlm_probability: float) -> int:
    """Return how many positions of a record a masked model predicts at most."""
    return math.ceil(sequence_length * mlm_probability - 1e-9)


def masked_arrays(sequence_length: int, mlm_probability: float) -> Arrays:
    """Return the arrays of a record for a masked model, as tpulm.records.masking makes them."""
    predictions = (predictions_per_record(sequence_length, mlm_probability),)
    return {
        "input_ids": ((sequence_length,), "int32"),
        "positions": (predictions, "int32"),
        "labels": (predictions, "int32"),
        "weights": (predictions, "float32"),
    }


def causal_arrays(sequence_length: int) -> Arrays:
    """Return the arrays of a record for a causal model, as tpulm.records.causal_batches makes them.

    One token more than the model reads: each but the first is predicted.
    """
    return {"tokens": ((sequence_length + 1,), "int32"), "mask": ((sequence_length + 1,), "bool")}
