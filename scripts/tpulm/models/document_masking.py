"""Mask the documents of a record from each other: attention within each, positions from 0 in each.

The input `padding_mask` of such a model holds segment ids: 0 for padding, 1, 2, ... for the documents of a record, in
order. With ones and zeros, it is a usual padding mask.
"""

from typing import Any

import jax
import keras
from keras import ops

from tpulm.compat import keras_hub
from tpulm.core.errors import UserError


def separate_documents(model: keras.Model, where: str) -> None:
    """Make a model read its padding mask as segment ids. Raises UserError, naming the run `where`, if it cannot."""
    backbone = model.backbone
    if isinstance(backbone, keras_hub.GEMMAS):
        for block in backbone.transformer_layers:
            keras_hub.separate_documents(block, same_document, places_in)
    elif hasattr(backbone, "separate_documents"):
        backbone.separate_documents()
    else:
        raise UserError(
            f"{where}.packing is segments, which {type(backbone).__name__} cannot read; allowed with it: concat, pad."
        )


def same_document(segments: Any) -> Any:
    """Return which pairs of tokens belong to one document: bool [records, tokens, tokens].

    segments  int32 [records, tokens]. Padding is a document, since attention over nothing is not defined
    """
    return ops.equal(segments[:, :, None], segments[:, None, :])


def visible(segments: Any, window: int | None) -> Any:
    """Return which pairs of tokens see each other: bool [records, tokens, tokens].

    segments  int32 [records, tokens]
    window    how far a token sees to each side; None is no limit
    """
    pairs = same_document(segments)
    if window is None:
        return pairs
    index = ops.arange(segments.shape[1])
    return ops.logical_and(pairs, ops.abs(index[:, None] - index) <= window)


def places_in(mask: Any) -> Any:
    """Return the position of each token in its document, int32 [records, tokens].

    mask  [records, tokens, tokens], causal and within a document; or segment ids [records, tokens, 1]
    """
    if mask.shape[-1] == 1:
        return places(mask[:, :, 0])
    return ops.maximum(ops.sum(ops.cast(mask, "int32"), axis=-1) - 1, 0)


def places(segments: Any) -> Any:
    """Return the position of each token in its document, int32 [records, tokens], for segment ids of that shape."""
    index = ops.broadcast_to(ops.arange(segments.shape[1], dtype="int32"), segments.shape)
    begins = ops.not_equal(segments[:, 1:], segments[:, :-1])
    first = ops.pad(ops.where(begins, index[:, 1:], 0), ((0, 0), (1, 0)))
    return index - jax.lax.cummax(first, axis=1)
