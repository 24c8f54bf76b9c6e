"""Private names of keras-hub 0.32. Call tpulm.training.runtime.start before importing it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import ops
from keras_hub.src.utils import preset_utils

from tpulm.compat.keras import flat_layers, replace_call

GEMMAS = (keras_hub.models.GemmaBackbone, keras_hub.models.Gemma3Backbone)
# The families whose decoder blocks are built like Llama's.
LLAMAS = (
    keras_hub.models.LlamaBackbone,
    keras_hub.models.MistralBackbone,
    keras_hub.models.QwenBackbone,
    keras_hub.models.Qwen3Backbone,
)
# Layers that normalize the queries and keys of Qwen 3, with an epsilon of 1e-5 in keras-hub.
QUERY_NORMS = ("query_dense_layernorm", "key_dense_layernorm")


def attention_of(block: keras.layers.Layer) -> keras.layers.Layer:
    """Return the attention layer of a decoder block of Gemma or Llama.

    Why, until: see `attend_by_kernel`.
    """
    return block.attention if hasattr(block, "attention") else block._self_attention_layer


def llama_head_dim(block: keras.layers.Layer) -> int:
    """Return the width of a head of a decoder block that is built like Llama's.

    Why: attention kernels support only some widths.
    Until: these blocks have it as an attribute.
    """
    return attention_of(block)._query_dense.partial_output_shape[-1]


def attend_by_kernel(block: keras.layers.Layer, kernel: Any) -> None:
    """Let a decoder block of Gemma or Llama attend by a kernel if it fits, except for cached generation.

    kernel  a tpulm.models.attention.Kernel

    Instead of a mask of pairs, the block passes segment ids [records, tokens, 1], which are `padding_mask`, on.

    Why: the blocks hold a mask and scores of all pairs of tokens in memory. With splash attention, a block of Gemma
    takes 485 MB instead of 1,104 (bfloat16, v6e).
    Until: keras-hub's blocks take segment ids and a kernel.
    """
    if hasattr(block, "attention"):
        _of_gemma(block, kernel)
    else:
        _of_llama(block, kernel)


def _of_gemma(block: keras.layers.Layer, kernel: Any) -> None:
    """Apply `attend_by_kernel` to a block of Gemma."""
    layer = block.attention
    mask_of, attend = block._compute_attention_mask, layer._compute_attention
    width = layer.head_dim if layer.query_head_dim_normalize else block.hidden_dim // layer.num_query_heads
    window = layer.sliding_window_size if layer.use_sliding_window_attention else None

    def masked(x: Any, padding_mask: Any, *more: Any) -> Any:
        cache = more[-2]
        if cache is None and kernel.fits(x.shape[1]):
            return ops.cast(padding_mask, "int32")[:, :, None]
        return mask_of(x, padding_mask, *more)

    def fused(query: Any, key: Any, value: Any, attention_mask: Any, **more: Any) -> Any:
        if attention_mask.shape[-1] != 1 or not kernel.fits(query.shape[1]):
            return attend(query, key, value, attention_mask, **more)
        scaled = query * ops.cast(1 / np.sqrt(width), query.dtype)
        segments = attention_mask[:, :, 0]
        return kernel(scaled, key, value, segments, causal=True, window=window, soft_cap=layer.logit_soft_cap)

    block._compute_attention_mask, layer._compute_attention = masked, fused


def _of_llama(block: keras.layers.Layer, kernel: Any) -> None:
    """Apply `attend_by_kernel` to a block of Llama, or one built like it.

    Only Mistral has a window in its mask; keras-hub's attention on JAX ignores that of Qwen.
    """
    layer = block._self_attention_layer
    mask_of, attend = block._compute_self_attention_mask, layer._compute_attention
    window = getattr(block, "sliding_window", None)

    def masked(**inputs: Any) -> Any:
        if inputs["self_attention_cache"] is None and kernel.fits(inputs["decoder_sequence"].shape[1]):
            return ops.cast(inputs["decoder_padding_mask"], "int32")[:, :, None]
        return mask_of(**inputs)

    def fused(query: Any, key: Any, value: Any, attention_mask: Any = None, **more: Any) -> Any:
        if attention_mask.shape[-1] != 1 or not kernel.fits(query.shape[1]):
            return attend(query, key, value, attention_mask, **more)
        scaled = query * ops.cast(layer._inv_norm_factor, query.dtype)
        return kernel(scaled, key, value, attention_mask[:, :, 0], causal=True, window=window)

    block._compute_self_attention_mask, layer._compute_attention = masked, fused


def separate_documents(block: keras.layers.Layer, same_document: Callable, places_in: Callable) -> None:
    """Let a decoder block of Gemma read segment ids instead of the padding mask.

    same_document, places_in  of tpulm.models.document_masking: which tokens see each other, and their positions

    Why: the blocks do not separate the documents of a record.
    Until: they take segment ids.
    """
    attention, mask_of = block.attention, block._compute_attention_mask

    def masked(x: Any, padding_mask: Any, *more: Any) -> Any:
        mask = mask_of(x, padding_mask, *more)
        return ops.minimum(mask, ops.cast(same_document(padding_mask), "int32"))

    attend, rope = attention.call, attention.rope_layer

    def call(x: Any, attention_mask: Any, **more: Any) -> Any:
        rotate, positions = rope.call, places_in(attention_mask)
        rope.call = lambda inputs, **_: rotate(inputs, positions=positions)
        try:
            return attend(x, attention_mask=attention_mask, **more)
        finally:
            rope.call = rotate

    block._compute_attention_mask, attention.call = masked, call


def plain_attention(model: keras.Model) -> keras.Model:
    """Give a model the same plain attention on any machine, and Qwen 3's published epsilon. Changes and returns it.

    Why: Gemmas choose a fused operation on a TPU, which a planning machine lacks; with the mask of a compiled step,
    Keras 3.15 ignores the soft cap of Gemma 2 in it. The queries and keys of Qwen 3 are normalized with an epsilon of
    1e-5, instead of that of the other layers, as in published models and transformers.
    Until: the choice and the epsilon are arguments.
    """
    for layer in flat_layers(model):
        if hasattr(layer, "_use_fused_attention_op"):
            layer._use_fused_attention_op = lambda: False
        if layer.name in QUERY_NORMS:
            layer.epsilon = model.backbone.layer_norm_epsilon
    if isinstance(model.backbone, keras_hub.models.Gemma4Backbone):
        count_positions(model)
    if isinstance(model.backbone, keras_hub.models.Qwen3_5Backbone):
        generate_from_prompts(model)
    return model


def count_positions(model: keras.Model) -> None:
    """Let a Gemma 4 count the positions of tokens itself, from 0, in `stateless_call`.

    Why: its inputs have position_ids, which the other families do without.
    Until: position_ids is optional.
    """

    def counted(call: Callable, inputs: dict, *args: Any, **kwargs: Any) -> Any:
        tokens = inputs["token_ids"]
        positions = ops.broadcast_to(ops.arange(tokens.shape[1], dtype="int32"), tokens.shape)
        return call({"position_ids": positions, **inputs}, *args, **kwargs)

    for part in (model, model.backbone):
        replace_call(part, lambda call: partial(counted, call))


def generate_from_prompts(model: keras.Model) -> None:
    """Let a Qwen 3.5 read each token of a prompt once before it generates, and no padding.

    Its linear attention has a state, which the tokens change as they are read. The first pass over prompts is left the
    tokens that all of them have, but the last of these, from which the generation goes on.

    Why: the first pass reads whole prompts and their padding, and the generation reads tokens of the prompts again.
    Until: keras-hub's generation gives the logits of the model.
    """
    build = model._build_cache

    def build_cache(token_ids: Any, padding_mask: Any, **more: Any) -> Any:
        shared = ops.min(ops.sum(ops.cast(padding_mask, "int32"), axis=-1)) - 1
        first = ops.cast(ops.arange(token_ids.shape[1]) < shared, "int32")
        return build(token_ids, ops.broadcast_to(first, token_ids.shape), **more)

    def closed(call: Callable, inputs: Any, **more: Any) -> Any:
        """Return what keeps the state as it is where the inputs are padding, which is 0."""
        return ops.where(ops.any(inputs != 0, axis=-1, keepdims=True), call(inputs, **more), -1e9)

    model._build_cache = build_cache
    for layer in flat_layers(model):
        if layer.name in ("in_proj_a", "in_proj_b"):
            replace_call(layer, lambda call: partial(closed, call))


def built_in_presets() -> dict[str, dict]:
    """Return keras-hub's metadata of its presets by name; `kaggle_handle` has the path and the version of one.

    Why: classes list the presets of their family without the handles, to which a run is pinned.
    Until: `presets` of a class has them.
    """
    return preset_utils.BUILTIN_PRESETS


def read_preset_file(preset: str, name: str) -> dict:
    """Return the content of a JSON file of a published preset.

    Why: `from_preset` reads the sizes of a model together with its weights, which a plan does without.
    Until: keras-hub reads the config of a preset alone.
    """
    return preset_utils.load_json(preset, name)
