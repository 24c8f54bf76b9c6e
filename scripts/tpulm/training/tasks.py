"""What a model predicts: the inputs, labels and weights from the arrays of a batch. Traced by JAX."""

from collections.abc import Callable

import jax.numpy as jnp


def causal(batch: dict) -> tuple:
    """Return inputs, labels and weights of a causal model for a batch of records.causal_batches: each next token.

    labels   int32 [records, sequence_length]; weights  float32 of that shape, 0 for padding; where documents are told
             apart, for the first token of a document, <bos>: what comes before it says nothing of it; and where the
             responses count, for all tokens but theirs
    """
    tokens, mask, segments = batch["tokens"], batch["mask"], batch.get("segment_ids")
    weights = mask[:, 1:]
    if segments is not None:
        weights = jnp.logical_and(weights, segments[:, 1:] == segments[:, :-1])
    if "loss_mask" in batch:
        weights = jnp.logical_and(weights, batch["loss_mask"][:, 1:] > 0)
    padding_mask = mask if segments is None else segments
    inputs = {"token_ids": tokens[:, :-1], "padding_mask": padding_mask[:, :-1].astype("int32")}
    return inputs, tokens[:, 1:], weights.astype("float32")


def masked(batch: dict) -> tuple:
    """Return inputs, labels and weights of a masked model for a batch of records.masked_batches: chosen positions.

    labels   int32 [records, predictions]; weights  float32 of that shape, 0 where nothing was chosen
    """
    tokens = batch["input_ids"]
    padding_mask = next((batch[name] for name in ("segment_ids", "attention_mask") if name in batch), None)
    padding_mask = jnp.ones_like(tokens) if padding_mask is None else padding_mask
    inputs = {"token_ids": tokens, "padding_mask": padding_mask, "mask_positions": batch["positions"]}
    return inputs, batch["labels"], batch["weights"]


def labelled(batch: dict) -> tuple:
    """Return inputs, labels and weights of a model with a head for labels, for a batch of records.labelled_batches.

    labels   int32, or float32 for numbers, [records], or [records, tokens] where words have labels; weights  float32 of
             that shape, 0 where nothing is to be predicted
    """
    inputs = {"token_ids": batch["input_ids"], "padding_mask": batch["attention_mask"]}
    return inputs, batch["labels"], batch["weights"]


# By the name that tpulm.config.training_step has for them.
TASKS: dict[str, Callable[[dict], tuple]] = {"causal": causal, "masked": masked, "labels": labelled}
