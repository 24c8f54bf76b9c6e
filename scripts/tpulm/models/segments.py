"""Several documents in a record that do not see each other: each is attended to by itself only, its positions from 0.

The input `padding_mask` of such a model holds segment ids: 0 for padding, 1, 2, ... for the documents of a record, in
order. With ones and zeros, it means what it always does. Needs tpulm.training.runtime.start first.
"""

from collections.abc import Callable
from typing import Any

import jax
import keras
import keras_hub
from keras import ops

from tpulm.core.errors import UserError


def never(length: int) -> bool:
    """Return that no attention reads segment ids."""
    return False


def separate_documents(model: keras.Model, where: str, read: Callable[[int], bool] = never) -> None:
    """Let a model read segment ids in place of the padding mask.

    where  the config key of the run, which the error names
    read   whether its attention reads segment ids itself for sequences of so many tokens (tpulm.models.attention):
           then nobody makes a mask of pairs

    Raises UserError for a family that this is not implemented for.
    """
    backbone = model.backbone
    if getattr(backbone, "reads_segments", False):
        return
    if isinstance(backbone, keras_hub.models.RobertaBackbone):
        separate_encoder(backbone, read)
    elif isinstance(backbone, (keras_hub.models.GemmaBackbone, keras_hub.models.Gemma3Backbone)):
        for block in backbone.transformer_layers:
            separate_decoder(block)
    else:
        raise UserError(
            f"{where}.packing is segments, which {type(backbone).__name__} cannot read; allowed with it: concat, pad."
        )


def same_document(segments: Any) -> Any:
    """Return which pairs of tokens belong to one document: bool [records, tokens, tokens].

    segments  int32 [records, tokens]. Padding is a document of its own: an attention over nothing would have no value
    """
    return ops.equal(segments[:, :, None], segments[:, None, :])


def separate_encoder(backbone: keras.Model, read: Callable[[int], bool]) -> None:
    """Replace the `call` of a RobertaBackbone: the same layers in the same order, with positions and masks."""
    for block in backbone.transformer_layers:
        block._self_attention_layer._flash_attention = False  # keras' kernel for TPUs takes no mask of pairs

    def call(inputs: dict, training: bool | None = None, mask: Any = None) -> Any:
        segments = inputs["padding_mask"]
        same = {"padding_mask": segments} if read(segments.shape[1]) else {"attention_mask": same_document(segments)}
        x = backbone.embeddings(inputs["token_ids"], positions=places(segments))
        x = backbone.embeddings_layer_norm(x)
        x = backbone.embeddings_dropout(x, training=training)
        for block in backbone.transformer_layers:
            x = block(x, training=training, **same)
        return x

    backbone.call = call


def separate_decoder(block: keras.layers.Layer) -> None:
    """Replace, of a decoder block of Gemma, how it makes the mask, and how its attention counts positions."""
    attention, mask_of = block.attention, block._compute_attention_mask

    def masked(x: Any, padding_mask: Any, *more: Any) -> Any:
        mask = mask_of(x, padding_mask, *more)
        return ops.minimum(mask, ops.cast(same_document(padding_mask), "int32"))

    block._compute_attention_mask = masked
    attend, rope = attention.call, attention.rope_layer

    def call(x: Any, attention_mask: Any, **more: Any) -> Any:
        rotate, positions = rope.call, places_in(attention_mask)
        rope.call = lambda inputs, **_: rotate(inputs, positions=positions)
        try:
            return attend(x, attention_mask=attention_mask, **more)
        finally:
            rope.call = rotate

    attention.call = call


def places_in(mask: Any) -> Any:
    """Return the position of each token in its document, int32 [records, tokens].

    mask  [records, tokens, tokens], causal and within a document: how many tokens of it there are up to this one; or
          segment ids [records, tokens, 1]
    """
    if mask.shape[-1] == 1:
        return places(mask[:, :, 0])
    return ops.maximum(ops.sum(ops.cast(mask, "int32"), axis=-1) - 1, 0)


def places(segments: Any) -> Any:
    """Return the position of each token in its document, int32 [records, tokens], of segment ids of that shape."""
    index = ops.broadcast_to(ops.arange(segments.shape[1], dtype="int32"), segments.shape)
    begins = ops.not_equal(segments[:, 1:], segments[:, :-1])
    first = ops.pad(ops.where(begins, index[:, 1:], 0), ((0, 0), (1, 0)))
    return index - jax.lax.cummax(first, axis=1)
