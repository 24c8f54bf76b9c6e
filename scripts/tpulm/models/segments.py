"""Several documents in a record that do not see each other: each is attended to by itself only, its positions from 0.

The input `padding_mask` of such a model holds segment ids: 0 for padding, 1, 2, ... for the documents of a record, in
order. With ones and zeros, it means what it always does. Needs tpulm.training.runtime.start first.
"""

from typing import Any

import keras
import keras_hub
from keras import ops

from tpulm.core.errors import UserError


def separate_documents(model: keras.Model, where: str) -> None:
    """Let a model read segment ids in place of the padding mask.

    where  the config key of the run, which the error names

    Raises UserError for a family that this is not implemented for.
    """
    backbone = model.backbone
    if isinstance(backbone, keras_hub.models.RobertaBackbone):
        separate_encoder(backbone)
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


def separate_encoder(backbone: keras.Model) -> None:
    """Replace the `call` of a RobertaBackbone: the same layers in the same order, with positions and masks."""
    for block in backbone.transformer_layers:
        block._self_attention_layer._flash_attention = False  # keras' kernel for TPUs takes no mask of pairs

    def call(inputs: dict, training: bool | None = None, mask: Any = None) -> Any:
        same = same_document(inputs["padding_mask"])
        x = backbone.embeddings(inputs["token_ids"], positions=places(ops.tril(same)))
        x = backbone.embeddings_layer_norm(x)
        x = backbone.embeddings_dropout(x, training=training)
        for block in backbone.transformer_layers:
            x = block(x, attention_mask=same, training=training)
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
        # The mask is causal and within a document: it says how many tokens of it there are up to this one.
        rotate, positions = rope.call, places(attention_mask)
        rope.call = lambda inputs, **_: rotate(inputs, positions=positions)
        try:
            return attend(x, attention_mask=attention_mask, **more)
        finally:
            rope.call = rotate

    attention.call = call


def places(mask: Any) -> Any:
    """Return the position of each token in its document, int32 [records, tokens].

    mask  [records, tokens, tokens], not 0 where a token is of the same document as one that is not before it
    """
    return ops.maximum(ops.sum(ops.cast(mask, "int32"), axis=-1) - 1, 0)
