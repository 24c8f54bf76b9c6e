"""What a model predicts: the inputs, labels and weights from the arrays of a batch. Traced by JAX."""

from collections.abc import Callable

import jax.numpy as jnp


def causal(batch: dict) -> tuple:
    """Return inputs, labels and weights of a causal model for a batch of records.causal_batches: each next token.

    labels   int32 [records, sequence_length]; weights  float32 of that shape, 0 for padding
    """
    tokens, mask = batch["tokens"], batch["mask"]
    inputs = {"token_ids": tokens[:, :-1], "padding_mask": mask[:, :-1].astype("int32")}
    return inputs, tokens[:, 1:], mask[:, 1:].astype("float32")


def masked(batch: dict) -> tuple:
    """Return inputs, labels and weights of a masked model for a batch of records.masked_batches: chosen positions.

    labels   int32 [records, predictions]; weights  float32 of that shape, 0 where nothing was chosen
    """
    tokens = batch["input_ids"]
    inputs = {"token_ids": tokens, "padding_mask": jnp.ones_like(tokens), "mask_positions": batch["positions"]}
    return inputs, batch["labels"], batch["weights"]


# By the name that tpulm.config.training_step has for them.
TASKS: dict[str, Callable[[dict], tuple]] = {"causal": causal, "masked": masked}
